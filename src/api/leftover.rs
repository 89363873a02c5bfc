//! What nobody read of a request's body: a little is read to its end, so that the connection can bring the next request.

use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use futures_util::StreamExt;
use hyper::body::{Frame, SizeHint};

/// Bytes that are read for the connection's sake, and for how long the answer waits for them.
const LITTLE: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(1);

/// Middleware: an unread body would end the connection behind the answer without a word, and the client's next request
/// on it would fail. What is too much to read is answered with `connection: close`.
pub async fn read(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let left = Left::default();
    let mut response = next.run(request.map(|body| Body::new(Kept { body, left: left.clone() }))).await;
    let rest = left.lock().expect("no code panics while it holds this").take();
    if let Some(rest) = rest
        && !ends_soon(rest).await
    {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Reads a body to its end; false when it is too long, too slow or broken.
async fn ends_soon(body: Body) -> bool {
    if body.size_hint().lower() > LITTLE as u64 {
        return false;
    }
    let read = async {
        let (mut stream, mut room) = (body.into_data_stream(), LITTLE);
        while let Some(frame) = stream.next().await {
            match frame.ok().and_then(|bytes| room.checked_sub(bytes.len())) {
                Some(less) => room = less,
                None => return false,
            }
        }
        true
    };
    tokio::time::timeout(PATIENCE, read).await.unwrap_or(false)
}

/// Where a body is found that was given up before its end.
type Left = Arc<Mutex<Option<Body>>>;

struct Kept {
    body: Body,
    left: Left,
}

impl HttpBody for Kept {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if !self.body.is_end_stream()
            && let Ok(mut left) = self.left.lock()
        {
            *left = Some(mem::take(&mut self.body));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::middleware::from_fn;
    use axum::routing::post;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::{sleep, timeout};

    const SOON: Duration = Duration::from_secs(10);

    /// `/ignores` looks at no body, `/reads` sends it back. → a connection.
    async fn connect() -> TcpStream {
        let router = Router::new()
            .route("/ignores", post(|| async { "done" }))
            .route("/reads", post(|body: String| async { body }))
            .layer(from_fn(read));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        TcpStream::connect(address).await.unwrap()
    }

    /// Sends a head and, when that has arrived, the beginning of its body. → the answer.
    async fn ask(stream: &mut TcpStream, path: &str, framing: &str, body: &str) -> String {
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        sleep(Duration::from_millis(50)).await;
        stream.write_all(body.as_bytes()).await.unwrap();
        let mut answer = vec![0; 1024];
        let n = timeout(SOON, stream.read(&mut answer)).await.expect("an answer, or an end").unwrap();
        String::from_utf8_lossy(&answer[..n]).into_owned()
    }

    #[tokio::test]
    async fn a_connection_goes_on_behind_a_body_that_nobody_read() {
        let mut stream = connect().await;
        for (path, framing, body, answered) in [
            ("/ignores", "Content-Length: 2", "{}", "done"),
            ("/reads", "Content-Length: 2", "{}", "{}"),
            ("/ignores", "Transfer-Encoding: chunked", "2\r\n{}\r\n0\r\n\r\n", "done"),
            ("/reads", "Transfer-Encoding: chunked", "2\r\n{}\r\n0\r\n\r\n", "{}"),
            ("/ignores", "Content-Length: 0", "", "done"),
        ] {
            let answer = ask(&mut stream, path, framing, body).await;
            assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with(answered), "{path} {framing}: {answer:?}");
            assert!(!answer.contains("connection: close"), "{path} {framing}: {answer}");
        }
    }

    #[tokio::test]
    async fn what_is_too_long_or_does_not_come_is_answered_and_ends_the_connection() {
        for (framing, body) in [("Content-Length: 65537", ""), ("Content-Length: 2", "{")] {
            let answer = ask(&mut connect().await, "/ignores", framing, body).await;
            assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("connection: close"), "{framing}: {answer}");
        }
    }
}
