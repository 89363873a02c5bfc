//! `tinderbox doctor` on sound and unsound installations and addresses: verdicts, advice, exit status, nothing left behind.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::{Method, StatusCode, Uri};
use axum::{Json, Router};
use serde_json::{Value, json};
use tinderbox_client::types::checkpoints::{CheckpointsQuery, RunsQuery};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::program::{KEY, MODEL, Server, free_port, ran, tinderbox};

/// Exit status and lines of a report.
async fn diagnosed(args: &[&str]) -> (i32, Vec<Value>) {
    let output = ran(tinderbox().arg("doctor").arg("--json").args(args)).await;
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| {
        panic!("{e}: {} {}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    });
    let status = output.status.code().unwrap();
    assert_eq!(report["ok"], status == 0);
    (status, report["checks"].as_array().unwrap().clone())
}

fn line<'a>(lines: &'a [Value], area: &str, check: &str) -> &'a Value {
    let found = lines.iter().find(|l| l["area"] == area && l["check"] == check);
    found.unwrap_or_else(|| panic!("no line {area} {check} in {lines:#?}"))
}

#[track_caller]
fn fails(lines: &[Value], area: &str, check: &str, says: &str, advises: &str) {
    let line = line(lines, area, check);
    assert_eq!(line["result"], "fail", "{line}");
    assert!(line["detail"].as_str().unwrap().contains(says), "{line}");
    assert!(line["advice"].as_str().unwrap().contains(advises), "{line}");
}

fn files(dir: &Path) -> usize {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|e| if e.path().is_dir() { files(&e.path()) } else { 1 }).sum()
}

#[tokio::test]
async fn a_served_model_passes_call_by_call_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Server::start(dir.path(), &data, MODEL).await;
    let (status, lines) = diagnosed(&["--url", &server.url, "--api-key", KEY]).await;
    assert_eq!(status, 0, "{lines:#?}");
    assert!(lines.iter().all(|l| l["result"] == "pass"), "{lines:#?}");
    let calls: Vec<&str> =
        lines.iter().filter(|l| l["area"] == "address").map(|l| l["check"].as_str().unwrap()).collect();
    for call in [
        "healthz",
        "client config",
        "capabilities",
        "create session",
        "heartbeat",
        "sample of the base model",
        "create LoRA run",
        "forward_backward",
        "optim_step",
        "save",
        "save for sampling",
        "sample of saved weights",
        "list runs",
        "list checkpoints",
        "delete weights",
        "delete sampler_weights",
        "unload",
        "finish session",
    ] {
        assert!(calls.contains(&call), "{call} is missing in {calls:?}");
        let ms = line(&lines, "address", call)["latency_ms"].as_f64();
        assert!(ms.is_some_and(|ms| ms > 0.0), "{call}");
    }
    let rest = server.rest();
    assert!(rest.list_user_checkpoints(&CheckpointsQuery::default()).await.unwrap().checkpoints.is_empty());
    let sessions = rest.list_sessions(&RunsQuery::default()).await.unwrap().sessions;
    let finished = rest.get_session(&sessions[0]).await.unwrap();
    assert_eq!((sessions.len(), finished.training_run_ids.len()), (1, 1));
    // For people: aligned, without colours where no terminal is.
    let output = ran(tinderbox().args(["doctor", "--url", &server.url, "--api-key", KEY])).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("0 failed, 0 skipped") && !text.contains('\x1b'), "{text}");
    // The same from the machine's side: who holds the directory, who answers at the port.
    let port = server.url.rsplit(':').next().unwrap();
    let (status, lines) = diagnosed(&["--data-dir", data.to_str().unwrap(), "--port", port]).await;
    assert_eq!(status, 0, "{lines:#?}");
    let holder = format!("process {} serves from it now", server.process_id());
    assert_eq!(line(&lines, "data directory", "lock")["detail"], holder);
    assert!(line(&lines, "port", "is free")["detail"].as_str().unwrap().starts_with("a Tinker server answers"));
}

#[tokio::test]
async fn a_wrong_key_and_a_wrong_model_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &dir.path().join("data"), MODEL).await;
    let (status, lines) = diagnosed(&["--url", &server.url, "--api-key", "tml-wrong"]).await;
    assert_eq!((status, &line(&lines, "address", "healthz")["result"]), (1, &"pass".into()));
    let refused = lines.iter().find(|l| l["result"] == "fail").unwrap();
    assert!(refused["detail"].as_str().unwrap().contains("answered 401"), "{refused}");
    assert!(refused["advice"].as_str().unwrap().contains("--api-key"), "{refused}");
    let (_, lines) = diagnosed(&["--url", &server.url, "--api-key", KEY, "--model", "no/such"]).await;
    fails(&lines, "address", "model", "no/such is not among what is served: demo/adder", "--model");
}

/// Says the same to everybody; `None` = nothing, for ever.
async fn says(answer: Option<&'static str>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 4096];
                let _ = connection.read(&mut request).await;
                match answer {
                    Some(text) => drop(connection.write_all(text.as_bytes()).await),
                    None => std::future::pending().await,
                }
            });
        }
    });
    url
}

#[tokio::test]
async fn addresses_where_no_server_answers_are_told_apart() {
    let closed = format!("http://127.0.0.1:{}", free_port());
    let broken = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 5\r\nconnection: close\r\n\r\nwoops";
    let garbage =
        "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 13\r\nconnection: close\r\n\r\n<html></html>";
    for (url, detail, advice) in [
        (closed, "refused", "start the server"),
        (says(Some(broken)).await, "answered 500: woops", "its log says more"),
        (says(Some(garbage)).await, "unexpected answer", "no Tinker server"),
        (says(Some("nonsense\r\n\r\n")).await, "cannot reach the server", "--url"),
        (says(None).await, "no answer in 2 s", "--timeout"),
        ("no url".to_owned(), "base URL", "--url"),
    ] {
        let start = Instant::now();
        let (status, lines) = diagnosed(&["--url", &url, "--timeout", "2"]).await;
        assert!(start.elapsed() < Duration::from_secs(20), "{url}");
        assert_eq!(status, 1, "{url}");
        let first = lines[0]["check"].as_str().unwrap().to_owned();
        fails(&lines, "address", &first, detail, advice);
        assert!(lines[1..].iter().all(|l| l["result"] == "skip"), "{lines:#?}");
    }
}

#[tokio::test]
async fn a_sound_installation_passes_and_nothing_is_left_there() {
    let dir = tempfile::tempdir().unwrap();
    let (model, data) = (dir.path().join("tiny"), dir.path().join("data"));
    tinderbox::recipes::demo_model::write(&model, 1).unwrap();
    std::fs::create_dir(&data).unwrap();
    let (model, place) = (model.to_str().unwrap(), data.to_str().unwrap());
    let (status, lines) = diagnosed(&["--model", model, "--data-dir", place, "--port", "0"]).await;
    assert_eq!(status, 0, "{lines:#?}");
    assert!(line(&lines, "model", "tiny")["detail"].as_str().unwrap().starts_with("qwen3, "));
    assert!(line(&lines, "data directory", "writes")["latency_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(line(&lines, "device", "computes")["result"], "pass");
    assert_eq!(files(&data), 0);
}

#[tokio::test]
async fn each_fault_of_an_installation_is_named_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let (model, data) = (dir.path().join("tiny"), dir.path().join("file"));
    tinderbox::recipes::demo_model::write(&model, 1).unwrap();
    let weights = std::fs::File::options().write(true).open(model.join("model.safetensors")).unwrap();
    weights.set_len(weights.metadata().unwrap().len() / 2).unwrap();
    std::fs::write(&data, "").unwrap();
    let holder = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = holder.local_addr().unwrap().port().to_string();
    let (model, place) = (model.to_str().unwrap().to_owned(), data.to_str().unwrap().to_owned());
    let args = ["--model", &model, "--data-dir", &place, "--port", &port];
    let (status, lines) = diagnosed(&args).await;
    assert_eq!(status, 1);
    fails(&lines, "model", "tiny", "model.safetensors", "fetch the model's files anew");
    fails(&lines, "data directory", "is there", "is no directory", "--data-dir");
    fails(&lines, "port", "is free", "another program", "--port");
    assert_eq!(line(&lines, "data directory", "writes")["result"], "skip");
    let config = dir.path().join("tiny/config.json");
    std::fs::write(&config, r#"{"model_type": "mamba"}"#).unwrap();
    fails(&diagnosed(&args).await.1, "model", "tiny", "\"mamba\" is not supported", "one that is supported");
}

/// A server whose `forward_backward` is broken; notes the calls that end things.
async fn broken_in_the_middle() -> (String, Arc<Mutex<Vec<String>>>) {
    let ended: Arc<Mutex<Vec<String>>> = Arc::default();
    let noting = ended.clone();
    let answer = move |method: Method, uri: Uri, body: Bytes| async move {
        let path = uri.path().trim_start_matches("/api/v1").to_owned();
        if method == Method::DELETE || ["/sessions/s/finish", "/unload_model"].contains(&path.as_str()) {
            noting.lock().unwrap().push(format!("{method} {path}"));
        }
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let found = match path.as_str() {
            "/healthz" => json!({ "status": "ok" }),
            "/get_server_capabilities" => json!({ "supported_models": [{ "model_name": "m" }] }),
            "/create_session" => json!({ "type": "create_session", "session_id": "s" }),
            "/session_heartbeat" => json!({ "type": "session_heartbeat" }),
            "/create_sampling_session" => {
                json!({ "type": "create_sampling_session", "sampling_session_id": "s:sample:0" })
            }
            "/get_info" => json!({ "type": "get_info", "model_id": "s:train:0", "model_data": {} }),
            "/asample" | "/create_model" | "/unload_model" => json!({ "request_id": path }),
            "/retrieve_future" => match body["request_id"].as_str().unwrap() {
                "/asample" => {
                    json!({ "type": "sample", "sequences": [{ "stop_reason": "stop", "tokens": [7], "logprobs": [0.0] }] })
                }
                "/create_model" => json!({ "type": "create_model", "model_id": "s:train:0" }),
                _ => json!({ "type": "unload_model", "model_id": "s:train:0" }),
            },
            "/forward_backward" => {
                return (StatusCode::INTERNAL_SERVER_ERROR, Json(json!({ "detail": "out of order" })));
            }
            _ if method == Method::DELETE => {
                return (StatusCode::NOT_FOUND, Json(json!({ "detail": "nothing there" })));
            }
            "/training_runs" => {
                json!({ "training_runs": [], "cursor": { "offset": 0, "limit": 20, "total_count": 0 } })
            }
            _ => json!({}),
        };
        (StatusCode::OK, Json(found))
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
    (url, ended)
}

#[tokio::test]
async fn what_was_begun_is_ended_also_when_a_call_fails() {
    let (url, ended) = broken_in_the_middle().await;
    let (status, lines) = diagnosed(&["--url", &url, "--timeout", "5"]).await;
    assert_eq!(status, 1);
    fails(&lines, "address", "forward_backward", "out of order", "its log says more");
    for skipped in ["optim_step", "save", "save for sampling"] {
        assert_eq!(line(&lines, "address", skipped)["result"], "skip");
    }
    fails(&lines, "address", "list runs", "run s:train:0 is not listed", "no Tinker server");
    for ending in ["delete weights", "delete sampler_weights", "unload", "finish session"] {
        assert_eq!(line(&lines, "address", ending)["result"], "pass", "{lines:#?}");
    }
    let ended = ended.lock().unwrap().join("\n");
    assert!(ended.contains("DELETE /training_runs/s:train:0/checkpoints/weights/doctor"), "{ended}");
    assert!(ended.ends_with("POST /unload_model\nPOST /sessions/s/finish"), "{ended}");
}
