//! HTTP calls: headers, retries, error bodies (protocol ch. 1).

use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::types::service::ErrorBody;

/// The SDK version whose protocol this client speaks.
pub(crate) const PROTOCOL_VERSION: &str = "0.38.0";
pub(crate) const PROTOBUF: &str = "application/x-protobuf";
const JSON: &str = "application/json";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two bytes; long polls are answered well before.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// How long one call is tried in all.
const RETRY_LIMIT: Duration = Duration::from_secs(300);

/// One server and one key.
pub(crate) struct Transport {
    http: reqwest::Client,
    base: String,
}

/// One HTTP call; a retry sends the same bytes under the same idempotency key.
pub(crate) struct Call<'a> {
    pub method: Method,
    /// Below `/api/v1`.
    pub path: &'a str,
    pub body: Bytes,
    pub content_type: &'static str,
    pub accept: &'static str,
}

/// Any answer, whatever its status.
pub(crate) struct Answer {
    pub status: u16,
    pub protobuf: bool,
    pub body: Bytes,
}

impl Transport {
    /// Errors: a malformed URL, or a key that no header can carry.
    pub fn new(base_url: &str, api_key: &str) -> Result<Self> {
        let url = Url::parse(base_url).map_err(|e| Error::Usage(format!("base URL {base_url:?}: {e}")))?;
        let key =
            HeaderValue::from_str(api_key).map_err(|_| Error::Usage("the API key has illegal characters".into()))?;
        let mut headers = HeaderMap::from_iter([
            (reqwest::header::HeaderName::from_static("x-api-key"), key),
            (
                reqwest::header::HeaderName::from_static("x-stainless-package-version"),
                HeaderValue::from_static(PROTOCOL_VERSION),
            ),
        ]);
        headers.iter_mut().for_each(|(name, value)| value.set_sensitive(name == "x-api-key"));
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("tinderbox-client/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT);
        if is_loopback(&url) {
            // A proxy of the environment could not reach this machine's own server.
            builder = builder.no_proxy();
        }
        Ok(Self { http: builder.build()?, base: format!("{}/api/v1", base_url.trim_end_matches('/')) })
    }

    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        parse(path, &self.send(&Call::json(Method::POST, path, body)?).await?)
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str, query: &impl Serialize) -> Result<T> {
        // The URL type does the escaping; only its query part is used.
        let mut url = Url::parse("http://query.invalid").expect("a constant URL");
        let query = serde_json::to_value(query).map_err(|e| Error::Usage(e.to_string()))?;
        for (key, value) in query.as_object().into_iter().flatten() {
            let text = value.as_str().map_or_else(|| value.to_string(), Into::into);
            url.query_pairs_mut().append_pair(key, &text);
        }
        let target = url.query().map_or_else(|| path.to_owned(), |q| format!("{path}?{q}"));
        parse(path, &self.send(&Call::empty(Method::GET, &target)).await?)
    }

    /// A call whose answer's body means nothing.
    pub async fn send_only(&self, call: &Call<'_>) -> Result<()> {
        self.send(call).await.map(drop)
    }

    /// Repeats the call over connection faults and 402, 408, 409, 429 and 5xx, for at most five minutes.
    pub async fn send(&self, call: &Call<'_>) -> Result<Answer> {
        let idempotency_key = uuid::Uuid::new_v4().to_string();
        let start = Instant::now();
        for attempt in 0u32.. {
            let fault = match self.once(call, &idempotency_key).await {
                Ok(answer) if answer.status < 400 => return Ok(answer),
                Ok(answer) if !is_retryable(answer.status) => return Err(answer.into_error(call)),
                Ok(answer) => answer.into_error(call),
                Err(e) => e,
            };
            let pause = backoff(attempt, Duration::from_secs(10));
            if start.elapsed() + pause > RETRY_LIMIT {
                return Err(fault);
            }
            tracing::debug!(path = call.path, attempt, error = %fault, "call is retried");
            tokio::time::sleep(pause).await;
        }
        unreachable!("the loop ends by its time limit")
    }

    /// One try; every status is an answer.
    pub async fn once(&self, call: &Call<'_>, idempotency_key: &str) -> Result<Answer> {
        let mut request = self
            .http
            .request(call.method.clone(), format!("{}{}", self.base, call.path))
            .header(CONTENT_TYPE, call.content_type)
            .header(ACCEPT, call.accept)
            .header("x-stainless-read-timeout", "45");
        if call.method != Method::GET {
            request = request.header("x-idempotency-key", idempotency_key).body(call.body.clone());
        }
        let response = request.send().await?;
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let protobuf = content_type.contains(PROTOBUF);
        let status = response.status().as_u16();
        Ok(Answer { status, protobuf, body: response.bytes().await? })
    }
}

impl<'a> Call<'a> {
    pub fn json(method: Method, path: &'a str, body: &impl Serialize) -> Result<Self> {
        let body = serde_json::to_vec(body).map_err(|e| Error::Usage(e.to_string()))?.into();
        Ok(Self { method, path, body, content_type: JSON, accept: JSON })
    }

    pub fn protobuf(path: &'a str, body: Bytes) -> Self {
        Self { method: Method::POST, path, body, content_type: PROTOBUF, accept: JSON }
    }

    pub fn empty(method: Method, path: &'a str) -> Self {
        Self { method, path, body: Bytes::new(), content_type: JSON, accept: JSON }
    }
}

impl Answer {
    pub fn detail(&self) -> String {
        match serde_json::from_slice::<ErrorBody>(&self.body) {
            Ok(ErrorBody { detail: serde_json::Value::String(text) }) => text,
            Ok(ErrorBody { detail }) => detail.to_string(),
            Err(_) => String::from_utf8_lossy(&self.body).chars().take(500).collect(),
        }
    }

    pub fn into_error(self, call: &Call<'_>) -> Error {
        let detail = self.detail();
        Error::Status { method: call.method.to_string(), path: call.path.into(), status: self.status, detail }
    }
}

/// 1/2, 1, 2, 4 … seconds.
pub(crate) fn backoff(attempt: u32, most: Duration) -> Duration {
    Duration::from_millis(500u64.saturating_mul(1 << attempt.min(16))).min(most)
}

pub(crate) fn is_retryable(status: u16) -> bool {
    matches!(status, 402 | 408 | 409 | 429 | 500..)
}

fn parse<T: DeserializeOwned>(path: &str, answer: &Answer) -> Result<T> {
    serde_json::from_slice(&answer.body).map_err(|e| Error::Decode(format!("{path}: {e}")))
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    host == "localhost" || host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_statuses_are_tried_again() {
        for status in [402, 408, 409, 429, 500, 503] {
            assert!(is_retryable(status), "{status}");
        }
        for status in [400, 401, 403, 404, 410, 413, 422, 425] {
            assert!(!is_retryable(status), "{status}");
        }
    }

    #[test]
    fn pauses_double_up_to_the_limit() {
        let most = Duration::from_secs(10);
        assert_eq!([0, 1, 2, 9, 4_000_000].map(|n| backoff(n, most).as_millis()), [500, 1000, 2000, 10_000, 10_000]);
    }

    #[test]
    fn this_machine_is_reached_without_a_proxy() {
        let loopback = |s: &str| is_loopback(&Url::parse(s).unwrap());
        assert!(loopback("http://127.0.0.1:8000") && loopback("http://localhost/x") && loopback("http://[::1]:1"));
        assert!(!loopback("http://10.0.0.1:8000") && !loopback("https://localhost.example"));
    }

    #[test]
    fn bad_settings_are_named() {
        assert!(matches!(Transport::new("no url", "tml-x"), Err(Error::Usage(_))));
        assert!(matches!(Transport::new("http://a", "tml-\n"), Err(Error::Usage(_))));
    }
}
