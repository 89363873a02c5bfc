//! A session as a time line in Chrome's trace-event form, which Perfetto opens, an event a line; what is no event
//! (session, runs, samplers, checkpoints) stands in its metadata.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::error::Result;
use crate::futures::issue::Key;
use crate::futures::journal::Entry;
use crate::ids::{OwnerId, SessionId};

use super::checkpoints::wire_row;
use super::create::{lora_rank, wire_name};
use super::state::App;

/// Bytes of the clients' reports that are taken in, the newest.
const REPORTS: usize = 16 << 20;

pub struct Timeline {
    events: Vec<Value>,
    metadata: Value,
}

/// All that is known of a session: its rows, its requests since the server started, what its clients reported.
pub async fn of(app: &App, owner: &OwnerId, id: &SessionId) -> Result<Timeline> {
    let store = app.store();
    let (mut runs, mut samplers) = (Vec::new(), Vec::new());
    for run in store.session_runs(id).await? {
        let Some(row) = store.run(&run).await? else { continue };
        let checkpoints: Vec<_> = store.run_checkpoints(&run).await?.into_iter().map(wire_row).collect();
        runs.push(json!({
            "id": row.id.0, "base_model": wire_name(&row.base_model, row.kind), "lora_rank": lora_rank(row.kind),
            "created_at": row.created_at, "last_request_at": row.last_request_at, "corrupted": row.corrupted,
            "user_metadata": row.user_metadata, "checkpoints": checkpoints,
        }));
    }
    for sampler in store.session_samplers(id).await? {
        let Some(row) = store.sampler(&sampler).await? else { continue };
        samplers.push(json!({"id": row.id.0, "base_model": row.base_model, "created_at": row.created_at}));
    }
    let session = store.session(id).await?.map(|row| {
        json!({
            "id": row.id.0, "created_at": row.created_at, "last_heartbeat_at": row.last_heartbeat_at, "tags": row.tags,
            "user_metadata": row.user_metadata, "sdk_version": row.sdk_version, "project_id": row.project_id,
            "display_name": row.display_name,
            "finished": row.finished.map(|f| json!({"at": f.at, "reason": f.reason, "detail": f.detail})),
        })
    });
    let mut events = requests(&app.futures().journal_of(id));
    for (at, body) in store.session_telemetry(owner, id, REPORTS).await? {
        events.extend(reports(at, &body));
    }
    let metadata = json!({"session": session, "training_runs": runs, "samplers": samplers});
    Ok(Timeline { events, metadata })
}

impl Timeline {
    pub fn to_json(&self) -> String {
        let events: Vec<String> = self.events.iter().map(Value::to_string).collect();
        format!(
            "{{\"displayTimeUnit\":\"ms\",\"metadata\":{},\n\"traceEvents\":[\n{}\n]}}\n",
            self.metadata,
            events.join(",\n")
        )
    }
}

/// A track for each run and sampler; on it a span per request, and a curve per metric.
fn requests(entries: &[Entry]) -> Vec<Value> {
    let mut tracks: HashMap<String, usize> = HashMap::new();
    let mut events = Vec::new();
    for entry in entries {
        let (subject, seq) = subject(&entry.key);
        let next = tracks.len() + 1;
        let track = *tracks.entry(subject.clone()).or_insert(next);
        if track == next {
            events.push(json!({"ph": "M", "pid": track, "name": "process_name", "args": {"name": subject}}));
        }
        let span = |phase: &str, at: DateTime<Utc>, args: Value| {
            json!({"ph": phase, "pid": track, "tid": 0, "cat": "request", "id": entry.id.0, "name": entry.kind,
                   "ts": at.timestamp_micros(), "args": args})
        };
        let metrics: serde_json::Map<_, _> = entry.metrics.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
        events.push(span("b", entry.began, json!({"seq_id": seq, "request_id": entry.id.0})));
        events.push(span("e", entry.ended, json!({"failure": entry.failure, "metrics": metrics})));
        // A value that JSON cannot hold has no place on a curve.
        for (name, value) in entry.metrics.iter().filter(|(_, v)| v.is_finite()) {
            let ts = entry.ended.timestamp_micros();
            events.push(json!({"ph": "C", "pid": track, "name": name, "ts": ts, "args": {"value": value}}));
        }
    }
    events
}

fn subject(key: &Key) -> (String, u64) {
    match key {
        Key::Creation { session, model_seq } => (session.model(*model_seq).0, 0),
        Key::Run { model, seq } => (model.0.clone(), *seq),
        Key::Unload { model } => (model.0.clone(), 0),
        Key::Sample { sampler, seq } => (sampler.0.clone(), *seq),
        Key::CustomLoss { session, seq } => (session.0.clone(), *seq),
    }
}

/// A mark for each event of a report, at the client's time where it gave one.
fn reports(received: DateTime<Utc>, body: &str) -> Vec<Value> {
    let events: Vec<Value> = serde_json::from_str(body).unwrap_or_default();
    let mark = |event: Value| {
        let at = event["timestamp"].as_str().and_then(|t| t.parse::<DateTime<Utc>>().ok()).unwrap_or(received);
        let name = event["event_name"].as_str().or(event["event"].as_str()).unwrap_or("event").to_owned();
        json!({"ph": "i", "s": "g", "pid": 0, "tid": 0, "cat": "client", "name": name, "ts": at.timestamp_micros(),
               "args": event})
    };
    events.into_iter().map(mark).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ModelId, RequestId};

    fn at(micros: i64) -> DateTime<Utc> {
        DateTime::from_timestamp_micros(1_700_000_000_000_000 + micros).unwrap()
    }

    #[test]
    fn a_request_is_a_span_and_its_metrics_are_curves() {
        let entry = Entry {
            id: RequestId("r".into()),
            kind: "optim_step",
            key: Key::Run { model: ModelId("s:train:0".into()), seq: 4 },
            began: at(1),
            ended: at(9),
            failure: None,
            metrics: vec![("grad_norm:mean".into(), 0.5), ("bad:mean".into(), f64::NAN)],
        };
        let events = requests(&[entry.clone(), Entry { failure: Some("no".into()), metrics: vec![], ..entry }]);
        let phases: Vec<_> = events.iter().map(|e| e["ph"].as_str().unwrap()).collect();
        assert_eq!(phases, ["M", "b", "e", "C", "b", "e"]);
        assert_eq!(events[0]["args"]["name"], "s:train:0");
        assert_eq!((&events[1]["args"]["seq_id"], &events[1]["name"]), (&json!(4), &json!("optim_step")));
        assert_eq!(events[2]["ts"].as_i64().unwrap() - events[1]["ts"].as_i64().unwrap(), 8);
        assert_eq!(events[3]["args"], json!({"value": 0.5}));
        assert_eq!(events[5]["args"]["failure"], "no");
    }

    #[test]
    fn the_file_is_json_with_an_event_a_line() {
        let body = r#"[{"event": "SESSION_START", "timestamp": "2026-01-02T03:04:05Z"}, {"event_name": "x"}]"#;
        let timeline = Timeline { events: reports(at(0), body), metadata: json!({"session": null}) };
        let text = timeline.to_json();
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["traceEvents"][0]["name"], "SESSION_START");
        assert_eq!(json["traceEvents"][1]["ts"], at(0).timestamp_micros());
        assert_eq!(text.lines().count(), 5);
        assert!(reports(at(0), "no json").is_empty());
        let empty = Timeline { events: vec![], metadata: json!({}) };
        assert!(serde_json::from_str::<Value>(&empty.to_json()).is_ok());
    }
}
