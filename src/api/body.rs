//! Request bodies: bounded, decompressed, and every problem with them a 4xx that says what it is.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;

use crate::futures::admission::Permit;
use crate::ids::OwnerId;

use super::arrival::{self, Arrival, Pace};
use super::auth::Owner;
use super::error::{ApiError, ApiResult};
use super::headers::text;
use super::numbers;
use super::reading::read;
use super::state::App;
use super::unzstd::unzstd;

/// Bodies of requests that start no work hold a few names and settings.
const MAX_SMALL: usize = 4 << 20;

/// What is looked at of a body that is too large, to find its number, and for how long it may take to arrive.
const PEEK: usize = 64 << 10;
const PEEK_TIME: Duration = Duration::from_secs(2);

/// A small JSON object. Unlike axum's own extractor it ignores the content type and answers every fault with 400.
pub struct JsonBody<T>(pub T);

impl<T: DeserializeOwned + Send + 'static> FromRequest<App> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> ApiResult<Self> {
        let (bytes, permit) = small(request, app).await?;
        Ok(Self(read(app, bytes, max_small(app), permit).await?.0))
    }
}

/// As [`JsonBody`]; no body at all is an empty object.
pub struct OptionalBody<T>(pub T);

impl<T: DeserializeOwned + Default + Send + 'static> FromRequest<App> for OptionalBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> ApiResult<Self> {
        let (bytes, permit) = small(request, app).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        Ok(Self(read(app, bytes, max_small(app), permit).await?.0))
    }
}

/// The bytes of a body that starts no work.
async fn small(request: Request, app: &App) -> ApiResult<(Bytes, Permit)> {
    let (mut parts, body) = request.into_parts();
    let Owner(owner) = Owner::from_request_parts(&mut parts, app).await?;
    let permit = app.futures().admission().aside(&owner);
    let received = receive(app, &parts.headers, body, max_small(app), arrival::SMALL, permit).await;
    received.map_err(|fault| fault.error)
}

fn max_small(app: &App) -> usize {
    app.limits().json_body_bytes.min(MAX_SMALL)
}

/// As [`JsonBody`], for requests that start work: as large as the limit allows, and admitted while there is room.
pub struct WorkBody<T>(pub T, pub Permit);

impl<T: DeserializeOwned + Send + 'static> FromRequest<App> for WorkBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> ApiResult<Self> {
        let (mut parts, body) = request.into_parts();
        let Owner(owner) = Owner::from_request_parts(&mut parts, app).await?;
        let permit = app.futures().admission().enter(&owner)?;
        let limit = app.limits().json_body_bytes;
        let received = receive(app, &parts.headers, body, limit, arrival::LARGE, permit).await;
        let (bytes, permit) = received.map_err(|fault| fault.error)?;
        let (value, permit) = read(app, bytes, limit, permit).await?;
        Ok(Self(value, permit))
    }
}

/// As [`WorkBody`], for requests with `model_id` and `seq_id`: when the body is wrong, the number is spent, so that
/// later requests of the run do not wait for it (protocol §11.2 rule 4).
pub struct NumberedBody<T>(pub T, pub Permit);

impl<T: DeserializeOwned + Send + 'static> FromRequest<App> for NumberedBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> ApiResult<Self> {
        let (mut parts, body) = request.into_parts();
        let Owner(owner) = Owner::from_request_parts(&mut parts, app).await?;
        let (bytes, permit) = numbered(app, &owner, &parts.headers, body, app.limits().json_body_bytes).await?;
        let (value, permit) = read_numbered(app, &owner, bytes, permit).await?;
        Ok(Self(value, permit))
    }
}

/// The body of a request with a number, which is spent when the body cannot be had because it is wrong.
pub async fn numbered(
    app: &App,
    owner: &OwnerId,
    headers: &HeaderMap,
    body: Body,
    limit: usize,
) -> ApiResult<(Bytes, Permit)> {
    let permit = app.futures().admission().enter(owner)?;
    match receive(app, headers, body, limit, arrival::LARGE, permit).await {
        Ok(received) => Ok(received),
        Err(Fault { error, seen }) => {
            spend(app, owner, seen).await;
            Err(error)
        }
    }
}

/// As [`read`], of a body with a number; a wrong body's number is spent.
pub async fn read_numbered<T>(app: &App, owner: &OwnerId, bytes: Bytes, permit: Permit) -> ApiResult<(T, Permit)>
where
    T: DeserializeOwned + Send + 'static,
{
    let read = read(app, bytes.clone(), app.limits().json_body_bytes, permit).await;
    // Where there was no room for it, it will come again.
    if read.as_ref().is_err_and(|e| e.status() != StatusCode::TOO_MANY_REQUESTS) {
        spend(app, owner, bytes).await;
    }
    read
}

/// The number of this body will not come again, if it is one of the owner's runs.
pub async fn spend(app: &App, owner: &OwnerId, body: Bytes) {
    if body.is_empty() {
        return;
    }
    if let Ok(Some((model, seq))) = app.heavy(move || numbers::find(&body)).await {
        app.refuse(owner, model, seq).await;
    }
}

/// Why a body was not received, and what of it may show its number: nothing, when the same request will come again.
struct Fault {
    error: ApiError,
    seen: Bytes,
}

impl Fault {
    fn blank(error: impl Into<ApiError>) -> Self {
        Self { error: error.into(), seen: Bytes::new() }
    }
}

/// The whole body, at most `limit` bytes before and after decompression. Its bytes are added to the permit.
async fn receive(
    app: &App,
    headers: &HeaderMap,
    body: Body,
    limit: usize,
    pace: Pace,
    mut permit: Permit,
) -> Result<(Bytes, Permit), Fault> {
    // One that is no text is none we know.
    let encoding = headers.get(header::CONTENT_ENCODING).map_or("", |v| v.to_str().unwrap_or("?"));
    let declared = text(headers, header::CONTENT_LENGTH).and_then(|v| v.parse::<usize>().ok());
    if let Some(size) = declared.filter(|n| *n > limit) {
        let error = ApiError::too_large("the request body", size, limit);
        let seen = tokio::time::timeout(PEEK_TIME, peek(body)).await.unwrap_or_default();
        let seen = if encoding == "zstd" { unzstd(&seen, PEEK, |_| Ok(())).unwrap_or_else(|e| e.1) } else { seen };
        return Err(Fault { error, seen });
    }
    permit.check(declared.unwrap_or(0)).map_err(Fault::blank)?;
    let raw = collect(body, limit, pace, &mut permit).await?;
    match encoding {
        "" | "identity" => Ok((raw, permit)),
        "zstd" => {
            let unpack = move || (unzstd(&raw, limit, |n| permit.grow(n)), permit);
            let (unpacked, permit) = app.heavy(unpack).await.map_err(Fault::blank)?;
            unpacked.map(|bytes| (bytes, permit)).map_err(|(error, seen)| Fault { error, seen })
        }
        other => Err(Fault::blank(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            format!("Content-Encoding {other:?} is not supported; send zstd or none"),
        ))),
    }
}

/// The body as it arrives.
async fn collect(body: Body, limit: usize, pace: Pace, permit: &mut Permit) -> Result<Bytes, Fault> {
    let mut arrival = Arrival::new("the request body", body, pace);
    let mut raw = BytesMut::new();
    while let Some(frame) = arrival.next().await.map_err(Fault::blank)? {
        // Whoever broke off will send it all again.
        let frame = frame.map_err(|e| Fault::blank(broken(&e)))?;
        let size = raw.len() + frame.len();
        if size > limit {
            raw.truncate(PEEK);
            let error = ApiError::too_large("the request body", format_args!("at least {size}"), limit);
            return Err(Fault { error, seen: raw.freeze() });
        }
        permit.grow(frame.len()).map_err(Fault::blank)?;
        raw.extend_from_slice(&frame);
    }
    Ok(raw.freeze())
}

/// The beginning of a body.
async fn peek(body: Body) -> Bytes {
    let mut stream = body.into_data_stream();
    let mut seen = BytesMut::new();
    while seen.len() < PEEK
        && let Some(Ok(frame)) = stream.next().await
    {
        seen.extend_from_slice(&frame);
    }
    seen.freeze()
}

fn broken(e: &axum::Error) -> ApiError {
    let text = std::error::Error::source(e).map_or_else(|| e.to_string(), ToString::to_string);
    ApiError::new(StatusCode::BAD_REQUEST, format!("the request body could not be read: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::testing;
    use crate::engine::handle::Message;
    use axum::response::IntoResponse;
    use tinderbox_client::types::service::ClientConfigRequest;
    use tinderbox_client::types::training::OptimStepRequest;

    async fn optim_step(app: &App, owner: &str, headers: &[(&str, &str)], body: impl Into<Body>) -> StatusCode {
        let mut request = Request::builder().method("POST");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(body.into()).unwrap();
        request.extensions_mut().insert(Owner(OwnerId(owner.into())));
        match NumberedBody::<OptimStepRequest>::from_request(request, app).await {
            Ok(_) => StatusCode::OK,
            Err(e) => e.into_response().status(),
        }
    }

    #[tokio::test]
    async fn a_wrong_bodys_number_is_spent_but_not_by_others() {
        let (app, engine) = testing::app().await;
        let model = testing::run(&app).await.0;
        let json = |seq: u64| format!("{{\"model_id\":\"{model}\",\"seq_id\":{seq},\"adam_params\":NaN}}");
        let spent = || match engine.try_recv() {
            Ok(Message::Skip { model, seq }) => Some((model.0, seq)),
            Ok(_) => panic!("the engine was told something else"),
            Err(_) => None,
        };
        assert_eq!(optim_step(&app, "other", &[], json(1)).await, StatusCode::BAD_REQUEST);
        assert_eq!(spent(), None);
        assert_eq!(optim_step(&app, "me", &[], json(1)).await, StatusCode::BAD_REQUEST);
        assert_eq!(spent(), Some((model.clone(), 1)));
        let length = (app.limits().json_body_bytes + 1).to_string();
        assert_eq!(
            optim_step(&app, "me", &[("content-length", &length)], json(2)).await,
            StatusCode::PAYLOAD_TOO_LARGE
        );
        assert_eq!(spent(), Some((model.clone(), 2)));
        let mut packed = zstd::encode_all(json(3).repeat(10_000).as_bytes(), 3).unwrap();
        packed.truncate(packed.len() - 4);
        assert_eq!(optim_step(&app, "me", &[("content-encoding", "zstd")], packed).await, StatusCode::BAD_REQUEST);
        assert_eq!(spent(), Some((model.clone(), 3)));
        // A client that broke off, or that was told to wait, sends the same number again.
        let broken = futures_util::stream::iter([Ok(json(4)), Err(std::io::Error::other("gone"))]);
        assert_eq!(optim_step(&app, "me", &[], Body::from_stream(broken)).await, StatusCode::BAD_REQUEST);
        let mut full = app.futures().admission().enter(&testing::owner()).unwrap();
        full.grow(app.limits().pending_bytes).unwrap();
        assert_eq!(optim_step(&app, "me", &[], json(4)).await, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(spent(), None);
    }

    #[tokio::test]
    async fn a_body_may_take_so_much_memory() {
        let (app, engine) = testing::app().await;
        let model = testing::run(&app).await.0;
        let small = |n: usize| {
            let body = format!("{{\"x\":[{}0]}}", "{\"a\":0},".repeat(n));
            let mut request = Request::builder().body(Body::from(body)).unwrap();
            request.extensions_mut().insert(Owner(testing::owner()));
            request
        };
        let status = async |n| match JsonBody::<ClientConfigRequest>::from_request(small(n), &app).await {
            Ok(_) => StatusCode::OK,
            Err(e) => e.status(),
        };
        // 32 MiB for 828 bytes each.
        assert_eq!(status(40_000).await, StatusCode::OK);
        assert_eq!(status(41_000).await, StatusCode::PAYLOAD_TOO_LARGE);
        let numbered = |seq: u64, n: usize| {
            format!(
                "{{\"model_id\":\"{model}\",\"seq_id\":{seq},\"adam_params\":{{}},\"x\":[{}0]}}",
                "{\"a\":0},".repeat(n)
            )
        };
        let mut full = app.futures().admission().enter(&OwnerId("other".into())).unwrap();
        full.grow(app.limits().pending_bytes - (1 << 20)).unwrap();
        assert_eq!(status(40_000).await, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(status(10).await, StatusCode::OK);
        assert_eq!(optim_step(&app, "me", &[], numbered(1, 10_000)).await, StatusCode::TOO_MANY_REQUESTS);
        assert!(engine.try_recv().is_err(), "its number comes again");
        drop(full);
        assert_eq!(optim_step(&app, "me", &[], numbered(1, 10_000)).await, StatusCode::OK);
        let (lists, limit) = (8 * app.limits().json_body_bytes / 192, app.limits().json_body_bytes);
        let nested = format!("{{\"model_id\":\"{model}\",\"seq_id\":2,\"x\":[{}0]}}", "[],".repeat(lists));
        assert!(nested.len() < limit);
        assert_eq!(optim_step(&app, "me", &[], nested).await, StatusCode::PAYLOAD_TOO_LARGE);
        assert!(matches!(engine.try_recv(), Ok(Message::Skip { seq: 2, .. })));
    }

    #[tokio::test]
    async fn what_is_too_long_and_what_is_too_slow_end_a_body() {
        let (app, _engine) = testing::app().await;
        let pieces = |pauses: [u64; 4]| {
            let piece = |ms| async move {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                Ok::<_, std::io::Error>("ab")
            };
            Body::from_stream(futures_util::stream::iter(pauses).then(piece))
        };
        let admission = app.futures().admission();
        let enter = || admission.aside(&testing::owner());
        let whole = collect(pieces([0; 4]), 100, arrival::SMALL, &mut enter()).await.ok().unwrap();
        assert_eq!(whole, "abababab");
        let large = collect(pieces([0; 4]), 5, arrival::SMALL, &mut enter()).await.err().unwrap();
        assert_eq!(large.error.detail(), "the request body has at least 6 bytes; the limit is 5 bytes");
        let hasty = Pace { grace: Duration::from_millis(500), ..arrival::LARGE };
        let slow = collect(pieces([0, 0, 60_000, 0]), 100, hasty, &mut enter()).await.err().unwrap();
        assert!(slow.error.detail().starts_with("the request body came too slowly: 4 bytes in "));
        assert!(slow.seen.is_empty(), "its number comes again");
        assert_eq!(slow.error.into_response().status(), StatusCode::REQUEST_TIMEOUT);
    }
}
