//! HTTP calls: headers, retries, error bodies (protocol ch. 1).

use std::path::Path;
use std::sync::RwLock;
use std::time::{Duration, Instant};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use reqwest::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, DATE, HeaderMap, HeaderValue, RETRY_AFTER};
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
/// As long as the server wants to be paid first, and how often it is asked again.
const BILLING_LIMIT: Duration = Duration::from_secs(3600);
const BILLING_PAUSE: Duration = Duration::from_secs(5);
/// A server's own wish for a pause is followed up to this.
const LONGEST_WISH: Duration = Duration::from_secs(60);
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);

/// One server and one key.
pub(crate) struct Transport {
    http: reqwest::Client,
    base: String,
    /// The key, or the token it was exchanged for.
    credential: RwLock<HeaderValue>,
    /// How long one call is tried in all.
    retry_limit: Duration,
}

/// One HTTP call; a retry sends the same bytes under the same idempotency key.
pub(crate) struct Call<'a> {
    pub method: Method,
    /// Below `/api/v1`.
    pub path: &'a str,
    pub body: Bytes,
    pub content_type: &'static str,
    pub accept: &'static str,
    /// A further header.
    pub header: Option<(&'static str, HeaderValue)>,
}

/// Any answer, whatever its status.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub status: u16,
    pub protobuf: bool,
    pub body: Bytes,
    /// How long the server wants the client to wait.
    pub retry_after: Option<Duration>,
    /// What the server says about trying again, if anything.
    pub should_retry: Option<bool>,
    /// The server's clock.
    pub date: Option<DateTime<Utc>>,
}

impl Transport {
    /// Errors: a malformed URL, or a key that no header can carry.
    pub fn new(base_url: &str, api_key: &str) -> Result<Self> {
        let url = Url::parse(base_url).map_err(|e| Error::Usage(format!("base URL {base_url:?}: {e}")))?;
        let version = reqwest::header::HeaderName::from_static("x-stainless-package-version");
        let headers = HeaderMap::from_iter([(version, HeaderValue::from_static(PROTOCOL_VERSION))]);
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("tinderbox-client/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT);
        if is_loopback(&url) {
            // A proxy of the environment could not reach this machine's own server.
            builder = builder.no_proxy();
        }
        let base = format!("{}/api/v1", base_url.trim_end_matches('/'));
        let credential = RwLock::new(secret("the API key", api_key)?);
        Ok(Self { http: builder.build()?, base, credential, retry_limit: RETRY_LIMIT })
    }

    /// The same, but no call is tried longer than that; one that takes longer by itself is waited for.
    pub fn trying_for(self, limit: Duration) -> Self {
        Self { retry_limit: limit, ..self }
    }

    /// The same server under another credential.
    pub fn sibling(&self, credential: &str) -> Result<Self> {
        let credential = RwLock::new(secret("the API key", credential)?);
        Ok(Self { http: self.http.clone(), base: self.base.clone(), credential, retry_limit: self.retry_limit })
    }

    /// From now on calls present this instead of the key.
    pub fn present(&self, credential: &str) -> Result<()> {
        let value = secret("the token", credential)?;
        *self.credential.write().expect("no code panics while it holds the credential") = value;
        Ok(())
    }

    fn credential(&self) -> HeaderValue {
        self.credential.read().expect("no code panics while it holds the credential").clone()
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

    /// Repeats the call over connection faults and 408, 409, 429 and 5xx, for at most five minutes, and over 402 for an
    /// hour, or for less where that was said; the server may say otherwise for an answer (`x-should-retry`) and how long to wait (`retry-after`).
    pub async fn send(&self, call: &Call<'_>) -> Result<Answer> {
        let idempotency_key = uuid::Uuid::new_v4().to_string();
        let start = Instant::now();
        for attempt in 0u32.. {
            let (fault, limit, pause) = match self.once(call, &idempotency_key).await {
                Ok(answer) if answer.status < 400 => return Ok(answer),
                Ok(answer) if !answer.is_retryable() => return Err(answer.into_error(call)),
                Ok(answer) if answer.status == 402 => {
                    let limit = if self.retry_limit < RETRY_LIMIT { self.retry_limit } else { BILLING_LIMIT };
                    (answer.into_error(call), limit, BILLING_PAUSE)
                }
                Ok(answer) => {
                    let pause = answer.retry_after.unwrap_or_else(|| backoff(attempt, LONGEST_BACKOFF));
                    (answer.into_error(call), self.retry_limit, pause)
                }
                Err(e) => (e, self.retry_limit, backoff(attempt, LONGEST_BACKOFF)),
            };
            if start.elapsed() + pause > limit {
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
            .header("x-api-key", self.credential())
            .header("x-stainless-read-timeout", "45");
        if let Some((name, value)) = &call.header {
            request = request.header(*name, value);
        }
        if call.method != Method::GET {
            request = request.header("x-idempotency-key", idempotency_key).body(call.body.clone());
        }
        let response = request.send().await?;
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let protobuf = content_type.contains(PROTOBUF);
        let status = response.status().as_u16();
        let (retry_after, should_retry) = wishes(response.headers());
        let date = response.headers().get(DATE).and_then(|v| v.to_str().ok());
        let date = date.and_then(|text| DateTime::parse_from_rfc2822(text).ok()).map(Into::into);
        Ok(Answer { status, protobuf, body: response.bytes().await?, retry_after, should_retry, date })
    }

    /// Fetches a file over a link, which is all the credential there is, and returns its size.
    pub async fn fetch(&self, url: &str, to: &Path) -> Result<u64> {
        let broken = |e: std::io::Error| Error::Usage(format!("{}: {e}", to.display()));
        let mut response = self.http.get(url).send().await?;
        if !response.status().is_success() {
            return Err(link_refused("GET", url, response).await);
        }
        let announced = response.content_length();
        let mut file = tokio::fs::File::create(to).await.map_err(broken)?;
        let mut size = 0;
        while let Some(piece) = response.chunk().await? {
            tokio::io::AsyncWriteExt::write_all(&mut file, &piece).await.map_err(broken)?;
            size += piece.len() as u64;
        }
        tokio::io::AsyncWriteExt::flush(&mut file).await.map_err(broken)?;
        match announced {
            Some(announced) if announced != size => {
                Err(Error::Connection(format!("{}: {size} of {announced} bytes arrived", to.display())))
            }
            _ => Ok(size),
        }
    }

    /// Sends a file to a link.
    pub async fn put_file(&self, url: &str, from: &Path) -> Result<()> {
        let broken = |e: std::io::Error| Error::Usage(format!("{}: {e}", from.display()));
        let file = tokio::fs::File::open(from).await.map_err(broken)?;
        let size = file.metadata().await.map_err(broken)?.len();
        let body = reqwest::Body::wrap_stream(tokio_util::io::ReaderStream::new(file));
        let response = self.http.put(url).header(CONTENT_LENGTH, size).body(body).send().await?;
        if response.status().is_success() { Ok(()) } else { Err(link_refused("PUT", url, response).await) }
    }
}

impl<'a> Call<'a> {
    pub fn json(method: Method, path: &'a str, body: &impl Serialize) -> Result<Self> {
        let body = serde_json::to_vec(body).map_err(|e| Error::Usage(e.to_string()))?.into();
        Ok(Self { method, path, body, content_type: JSON, accept: JSON, header: None })
    }

    pub fn protobuf(path: &'a str, body: Bytes) -> Self {
        Self { method: Method::POST, path, body, content_type: PROTOBUF, accept: JSON, header: None }
    }

    /// Says that this client slows down when the server asks for it.
    pub fn with_backpressure(self) -> Self {
        Self { header: Some(("x-tinker-sampling-backpressure", HeaderValue::from_static("1"))), ..self }
    }

    pub fn with_secret(self, name: &'static str, value: &str) -> Result<Self> {
        Ok(Self { header: Some((name, secret(name, value)?)), ..self })
    }

    pub fn empty(method: Method, path: &'a str) -> Self {
        Self { method, path, body: Bytes::new(), content_type: JSON, accept: JSON, header: None }
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

    pub fn is_retryable(&self) -> bool {
        self.should_retry.unwrap_or(is_retryable(self.status))
    }

    pub fn into_error(self, call: &Call<'_>) -> Error {
        let detail = self.detail();
        Error::Status { method: call.method.to_string(), path: call.path.into(), status: self.status, detail }
    }
}

/// A header's value that no log shows.
pub(crate) fn secret(what: &str, text: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| Error::Usage(format!("{what} has characters that no header carries")))?;
    value.set_sensitive(true);
    Ok(value)
}

/// `retry-after-ms` or `retry-after`, and `x-should-retry`.
fn wishes(headers: &HeaderMap) -> (Option<Duration>, Option<bool>) {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    let number = |name: &str| text(name).and_then(|v| v.parse::<f64>().ok());
    let seconds = number("retry-after-ms").map(|ms| ms / 1000.0).or_else(|| number(RETRY_AFTER.as_str()));
    let pause = seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
    let pause = pause.filter(|p| !p.is_zero() && *p <= LONGEST_WISH);
    (pause, text("x-should-retry").and_then(|v| v.parse().ok()))
}

/// The link itself is a credential, so only its file's name is told.
async fn link_refused(method: &str, url: &str, response: reqwest::Response) -> Error {
    let status = response.status().as_u16();
    let body = response.bytes().await.unwrap_or_default();
    let detail = Answer { status, body, ..Answer::default() }.detail();
    let path = format!("…/{}", url.split('?').next().unwrap_or_default().rsplit('/').next().unwrap_or_default());
    Error::Status { method: method.into(), path, status, detail }
}

/// 1/2, 1, 2, 4 … seconds.
pub(crate) fn backoff(attempt: u32, most: Duration) -> Duration {
    Duration::from_millis(500u64.saturating_mul(1 << attempt.min(16))).min(most)
}

fn is_retryable(status: u16) -> bool {
    matches!(status, 402 | 408 | 409 | 429 | 500..)
}

pub(crate) fn parse<T: DeserializeOwned>(path: &str, answer: &Answer) -> Result<T> {
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
    fn the_servers_wishes_are_read() {
        let of = |pairs: &[(&'static str, &'static str)]| {
            let name = reqwest::header::HeaderName::from_static;
            wishes(&HeaderMap::from_iter(pairs.iter().map(|(k, v)| (name(k), HeaderValue::from_static(v)))))
        };
        assert_eq!(of(&[("retry-after-ms", "250"), ("retry-after", "9")]).0, Some(Duration::from_millis(250)));
        assert_eq!(of(&[("retry-after", "9")]).0, Some(Duration::from_secs(9)));
        for ignored in ["0", "61", "-1", "soon"] {
            assert_eq!(of(&[("retry-after", ignored)]).0, None, "{ignored}");
        }
        assert_eq!(of(&[("x-should-retry", "false")]).1, Some(false));
        assert!(!Answer { status: 503, should_retry: Some(false), ..Answer::default() }.is_retryable());
        assert!(Answer { status: 400, should_retry: Some(true), ..Answer::default() }.is_retryable());
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
