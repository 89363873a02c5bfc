//! A span and an id for each request; handlers add the run, the sampler and the `seq_id`.

use std::fmt::Display;
use std::time::Instant;

use axum::extract::Request;
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;
use tracing::{Instrument, Span, field};

use crate::error::shortened;

/// Outermost middleware: logs how each request ended and tells the client its id as `x-request-id`.
pub async fn trace(request: Request, next: Next) -> Response {
    let id = uuid::Uuid::new_v4().simple().to_string();
    let span = tracing::info_span!(
        "http",
        id = &id[..12],
        method = %request.method(),
        path = %path_for_log(request.uri().path()),
        run = field::Empty,
        sampler = field::Empty,
        seq_id = field::Empty,
    );
    async move {
        let start = Instant::now();
        let mut response = next.run(request).await;
        let (status, ms) = (response.status().as_u16(), start.elapsed().as_millis() as u64);
        if status >= 500 {
            tracing::error!(status, ms, "answered");
        } else {
            tracing::debug!(status, ms, "answered");
        }
        if let Ok(value) = HeaderValue::from_str(&id[..12]) {
            response.headers_mut().insert("x-request-id", value);
        }
        response
    }
    .instrument(span)
    .await
}

/// Bytes of an id in the log: clients may send any.
const MAX_ID: usize = 120;

/// Name the run in everything logged for this request, and its number if it has one.
pub fn on_run(run: impl Display, seq_id: Option<u64>) {
    Span::current().record("run", &*shortened(&run.to_string(), MAX_ID)).record("seq_id", seq_id);
}

/// Name the sampler and the number in everything logged for this request.
pub fn on_sampler(sampler: impl Display, seq_id: u64) {
    Span::current().record("sampler", &*shortened(&sampler.to_string(), MAX_ID)).record("seq_id", seq_id);
}

/// What a link's token follows. It is as good as a key and does not belong into a log.
const LINKS: [&str; 3] = ["/download/", "/export/", "/upload/"];

fn path_for_log(path: &str) -> &str {
    let token = LINKS.iter().filter_map(|link| path.find(link).map(|at| at + link.len())).min();
    &path[..token.unwrap_or(path.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_links_token_is_logged() {
        for link in ["/api/v1/download/", "/api/v1/export/", "/api/v1/upload/"] {
            assert_eq!(path_for_log(&format!("{link}TOKEN/file")), link);
        }
        assert_eq!(path_for_log("/api/v1/export/TOKEN/upload/x"), "/api/v1/export/");
        assert_eq!(path_for_log("/api/v1/asample"), "/api/v1/asample");
    }
}
