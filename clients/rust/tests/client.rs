//! The client against a server that answers as it is told: retries, back-pressure, resubmission, order of chunks,
//! cancelling, tokens, links.
#![expect(clippy::unwrap_used, reason = "a test stops where something is missing")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use prost::Message;
use serde_json::{Value, json};
use tinderbox_client::types::datum::Datum;
use tinderbox_client::types::model_input::ModelInput;
use tinderbox_client::types::sampling::SamplingParams;
use tinderbox_client::types::training::LoraConfig;
use tinderbox_client::types::uploads::ExternalWeightsUploadStartRequest;
use tinderbox_client::{ClientOptions, Error, RestClient, ServiceClient, proto};

/// A request as it arrived.
#[derive(Clone)]
struct Seen {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

impl Seen {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }
}

type Script = Arc<dyn Fn(&Seen, usize) -> Option<Response> + Send + Sync>;

/// Answers by `script`, which is told how many requests of the path came before; by `usual` where that says nothing.
#[derive(Clone)]
struct Mock {
    url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    script: Script,
}

impl Mock {
    async fn start(script: impl Fn(&Seen, usize) -> Option<Response> + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mock = Self { url, seen: Arc::default(), script: Arc::new(script) };
        let router = Router::new().fallback(answer).with_state(mock.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        mock
    }

    fn rest(&self) -> RestClient {
        RestClient::connect(&self.url, "tml-key").unwrap()
    }

    async fn service(&self) -> ServiceClient {
        ServiceClient::connect(ClientOptions::new(&self.url, "tml-key")).await.unwrap()
    }

    async fn until_seen(&self, path: &str) {
        let seen = async {
            while self.seen(path).is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), seen).await.expect("it is sent");
    }

    fn seen(&self, path: &str) -> Vec<Seen> {
        self.seen.lock().unwrap().iter().filter(|s| s.path == format!("/api/v1{path}")).cloned().collect()
    }
}

async fn answer(State(mock): State<Mock>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let seen = Seen { method, path: uri.path().to_owned(), headers, body };
    let before = {
        let mut all = mock.seen.lock().unwrap();
        let before = all.iter().filter(|s| s.path == seen.path).count();
        all.push(seen.clone());
        before
    };
    (mock.script)(&seen, before).unwrap_or_else(|| usual(&seen))
}

fn usual(seen: &Seen) -> Response {
    let number = || seen.json()["seq_id"].as_u64().unwrap_or_default();
    ok(match seen.path.trim_start_matches("/api/v1") {
        "/create_session" => json!({"session_id": "s"}),
        "/create_model" => json!({"request_id": "created"}),
        "/get_info" => json!({"model_id": "s:train:0", "model_data": {"model_name": "m"}}),
        "/create_sampling_session" => json!({"sampling_session_id": "s:sample:0"}),
        "/asample" => json!({"request_id": format!("sample-{}", number()), "sample_sequence_ids": ["x"]}),
        "/retrieve_future" if seen.json()["request_id"] == "created" => json!({"model_id": "s:train:0"}),
        _ => json!({}),
    })
}

fn ok(body: Value) -> Response {
    axum::Json(body).into_response()
}

/// An error that asks for a short pause, so that the test is quick.
fn refuse(status: u16, detail: &str) -> Response {
    let soon = [("retry-after-ms", "1")];
    (StatusCode::from_u16(status).unwrap(), soon, axum::Json(json!({"detail": detail}))).into_response()
}

fn sampled() -> Response {
    let sequences = json!([{"stop_reason": "stop", "tokens": [7], "logprobs": [-0.5]}]);
    ok(json!({"type": "sample", "sequences": sequences}))
}

#[tokio::test]
async fn a_call_is_retried_under_one_idempotency_key_until_it_is_answered() {
    let mock = Mock::start(|seen, before| match (seen.path.as_str(), before) {
        ("/api/v1/copy_weights", 0) => Some(refuse(503, "starting")),
        ("/api/v1/copy_weights", 1) => Some(refuse(429, "later")),
        ("/api/v1/copy_weights", _) => Some(ok(json!({"tinker_path": "tinker://c/weights/a"}))),
        _ => None,
    })
    .await;
    let copy = mock.rest().copy_weights("tinker://r/weights/a", "p", Some(3600), Some("secret")).await.unwrap();
    assert_eq!(copy, "tinker://c/weights/a");
    let seen = mock.seen("/copy_weights");
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|s| s.header("x-idempotency-key") == seen[0].header("x-idempotency-key")));
    assert_eq!((seen[0].header("x-tinker-weights-access-token"), seen[0].header("x-api-key")), ("secret", "tml-key"));
    let body = json!({"source_path": "tinker://r/weights/a", "ttl_seconds": 3600, "destination_project_id": "p"});
    assert_eq!(seen[2].json(), body);
}

#[tokio::test]
async fn a_final_refusal_is_told_at_once_with_the_servers_words() {
    let mock = Mock::start(|seen, _| match seen.path.ends_with("/publish") {
        true => Some(refuse(404, "there is no checkpoint")),
        false => Some(([("x-should-retry", "false")], refuse(500, "never")).into_response()),
    })
    .await;
    let e = mock.rest().publish_checkpoint_from_tinker_path("tinker://r/weights/a").await.unwrap_err();
    assert!(matches!(&e, Error::Status { status: 404, detail, .. } if detail == "there is no checkpoint"), "{e}");
    assert_eq!(mock.rest().get_session("s").await.unwrap_err().status(), Some(500));
    assert_eq!(mock.seen.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn a_sample_waits_its_turn_and_is_submitted_anew_when_the_server_lost_it() {
    let mock = Mock::start(|seen, before| match (seen.path.as_str(), before) {
        ("/api/v1/asample", 0) => Some(refuse(429, "slow down")),
        ("/api/v1/retrieve_future", 0) => Some(refuse(408, "not yet")),
        ("/api/v1/retrieve_future", 1) => Some(refuse(410, "lost")),
        ("/api/v1/retrieve_future", _) => Some(sampled()),
        _ => None,
    })
    .await;
    let sampler = mock.service().await.create_sampling_client(Some("m"), None).await.unwrap();
    let answer = sampler.sample(ModelInput::from_ints([1]), 1, SamplingParams::default()).await.unwrap();
    assert_eq!(answer.sequences[0].tokens, [7]);
    let seen = mock.seen("/asample");
    assert_eq!(seen.iter().map(|s| s.json()["seq_id"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 0, 1]);
    assert_eq!(seen[0].header("x-tinker-sampling-backpressure"), "1");
    assert_eq!(mock.seen("/retrieve_future")[2].json()["request_id"], "sample-1");
}

#[tokio::test]
async fn a_dropped_sample_is_cancelled_where_the_server_wants_that() {
    for wanted in [true, false] {
        let mock = Mock::start(move |seen, _| match seen.path.as_str() {
            "/api/v1/client/dynamic_config" => Some(ok(json!({"sample_cancel_enabled": wanted}))),
            "/api/v1/retrieve_future" => Some(refuse(408, "not yet")),
            _ => None,
        })
        .await;
        let sampler = mock.service().await.create_sampling_client(Some("m"), None).await.unwrap();
        let sample = sampler.sample(ModelInput::from_ints([1]), 1, SamplingParams::default());
        tokio::select! {
            _ = sample => panic!("it is never done"),
            () = mock.until_seen("/retrieve_future") => {}
        }
        if wanted {
            mock.until_seen("/cancel_future").await;
        }
        // What was sent before this is there when it is answered.
        mock.service().await;
        let cancelled: Vec<_> = mock.seen("/cancel_future").iter().map(Seen::json).collect();
        let expected = if wanted { vec![json!({"request_id": "sample-0"})] } else { vec![] };
        assert_eq!(cancelled, expected);
    }
}

#[tokio::test]
async fn the_first_chunk_is_sent_last_and_results_are_in_order() {
    let number = |seen: &Seen| proto::ForwardBackwardRequest::decode(seen.body.clone()).unwrap().seq_id;
    let mock = Mock::start(move |seen, _| match seen.path.as_str() {
        "/api/v1/client/config" => Some(ok(json!({"fwdbwd_max_chunk_len": 1}))),
        "/api/v1/forward_backward" => Some(ok(json!({"request_id": format!("chunk-{}", number(seen))}))),
        "/api/v1/retrieve_future" if seen.json()["request_id"] != "created" => {
            let id = seen.json()["request_id"].as_str().unwrap().to_owned();
            let chunk: f64 = id.trim_start_matches("chunk-").parse().unwrap();
            let logprobs = json!({"logprobs": {"data": [chunk], "dtype": "float32", "shape": [1]}});
            let metrics = json!({"loss:sum": chunk});
            Some(ok(json!({"loss_fn_output_type": "x", "loss_fn_outputs": [logprobs], "metrics": metrics})))
        }
        _ => None,
    })
    .await;
    let training = mock.service().await.create_lora_training_client("m", LoraConfig::default()).await.unwrap();
    let data = (0..3).map(|i| Datum::supervised(&[i, 1], [1.0])).collect();
    let output = training.forward_backward(data, "cross_entropy").await.unwrap().await.unwrap();
    assert_eq!(output.metrics["loss:sum"], 6.0);
    let logprobs: Vec<_> =
        output.loss_fn_outputs.iter().flat_map(|o| o["logprobs"].values.clone().into_f32()).collect();
    assert_eq!(logprobs, [1.0, 2.0, 3.0]);
    let order: Vec<_> = mock.seen("/forward_backward").iter().map(number).collect();
    assert!(order.len() == 3 && order[2] == 1, "{order:?}");
}

#[tokio::test]
async fn a_key_is_exchanged_for_a_token_where_the_server_wants_that() {
    // {"iat": 1, "exp": 3601}
    const TOKEN: &str = "e30.eyJpYXQiOiAxLCAiZXhwIjogMzYwMX0.x";
    let mock = Mock::start(|seen, _| match seen.path.as_str() {
        "/api/v1/client/config" => Some(ok(json!({"pjwt_auth_enabled": true}))),
        "/api/v1/auth/token" => Some(ok(json!({"jwt": TOKEN}))),
        _ => None,
    })
    .await;
    mock.service().await;
    assert_eq!(mock.seen("/auth/token")[0].header("x-api-key"), "tml-key");
    assert_eq!(mock.seen("/create_session")[0].header("x-api-key"), TOKEN);
}

#[tokio::test]
async fn files_go_up_and_come_down_over_links_alone() {
    let mock = Mock::start(|seen, _| {
        let base = format!("http://{}", seen.header("host"));
        let links = |names: [&str; 2]| json!(BTreeMap::from(names.map(|n| (n, format!("{base}/link/{n}")))));
        let files = ["adapter_config.json", "adapter_model.safetensors"];
        match seen.path.as_str() {
            "/api/v1/external_weights_upload_start" => {
                Some(ok(json!({"upload_id": "u", "urls": links(files), "expires": "2099-01-01T00:00:00Z"})))
            }
            "/api/v1/external_weights_upload_finish" => Some(ok(json!({"tinker_path": "tinker://u/weights/a"}))),
            path if path.ends_with("/external_weights_urls") => {
                Some(ok(json!({"urls": links(files), "expires": "2099-01-01T00:00:00Z"})))
            }
            path if path.starts_with("/link/") && seen.method == Method::GET => Some("content".into_response()),
            _ => None,
        }
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let down = dir.path().join("down");
    let files = mock.rest().download_external_weights("tinker://r/external_weights/e", &down).await.unwrap();
    assert_eq!(files, ["adapter_config.json", "adapter_model.safetensors"].map(|n| down.join(n)));
    assert_eq!(std::fs::read_to_string(&files[1]).unwrap(), "content");
    let path = mock.rest().upload_adapter(&down, ExternalWeightsUploadStartRequest::default()).await.unwrap();
    assert_eq!(path, "tinker://u/weights/a");
    let announced = mock.seen("/external_weights_upload_start")[0].json();
    assert_eq!(announced["files"][1], json!({"name": "adapter_model.safetensors", "size_bytes": 7}));
    let seen = mock.seen.lock().unwrap().clone();
    let sent: Vec<_> = seen.iter().filter(|s| s.method == Method::PUT).collect();
    assert!(sent.len() == 2 && sent.iter().all(|s| &s.body[..] == b"content" && s.header("content-length") == "7"));
}

#[tokio::test]
async fn an_impatient_client_hears_the_first_fault_and_the_servers_clock() {
    let mock = Mock::start(|seen, before| match (seen.path.as_str(), before) {
        ("/api/v1/healthz", 0) => Some(refuse(503, "starting")),
        ("/api/v1/healthz", _) => Some(ok(json!({"status": "ok"}))),
        _ => None,
    })
    .await;
    let options = ClientOptions { retry_for: Some(Duration::ZERO), ..ClientOptions::new(&mock.url, "tml-key") };
    let rest = RestClient::connect_with(&options).unwrap();
    let e = rest.healthz().await.unwrap_err();
    assert!(matches!(&e, Error::Status { status: 503, detail, .. } if detail == "starting"), "{e}");
    assert_eq!(mock.seen("/healthz").len(), 1);
    let (health, date) = rest.healthz().await.unwrap();
    assert_eq!(health.status, "ok");
    assert!((chrono::Utc::now() - date.unwrap()).num_seconds().abs() < 60);
}
