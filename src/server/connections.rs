//! Connections: one that brings no request in time, or takes no answer, is closed, and at the end those in use may finish.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;

use super::unstuck::Unstuck;

/// How long a connection may be without a whole request head while no request is served on it. It holds for half a head
/// as for one that idles, and HTTP clients keep idle connections for up to 90 s, so it is longer than that. A long poll
/// is a request being served; bodies have a limit of their own (`api/body.rs`).
const HEAD_TIME: Duration = Duration::from_secs(120);

/// How long an answer may wait for a client that takes nothing of it: with it wait a task, and files or streams that
/// others could have.
const WRITE_TIME: Duration = Duration::from_secs(120);

/// How long a connection may be silent, in each direction.
#[derive(Clone, Copy)]
pub struct Times {
    pub head: Duration,
    pub write: Duration,
}

pub const TIMES: Times = Times { head: HEAD_TIME, write: WRITE_TIME };

/// Serves until `shutdown` resolves, then takes no new connection, closes those that idle, and returns when the
/// requests in flight are answered.
pub async fn serve(mut listener: TcpListener, router: Router, times: Times, shutdown: impl Future<Output = ()>) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(times.head);
    let service = TowerToHyperService::new(router);
    let open = GracefulShutdown::new();
    let mut shutdown = pin!(shutdown);
    loop {
        // Of axum's trait: it goes on after errors, such as too many open files.
        let (stream, _) = tokio::select! {
            accepted = Listener::accept(&mut listener) => accepted,
            () = &mut shutdown => break,
        };
        // Small answers must not wait for more data to fill a packet.
        if let Err(e) = stream.set_nodelay(true) {
            tracing::debug!(error = %e, "TCP_NODELAY not set");
        }
        let stream = TokioIo::new(Unstuck::new(stream, times.write));
        let connection = open.watch(http.serve_connection(stream, service.clone()));
        tokio::spawn(async move {
            if let Err(e) = connection.await {
                tracing::debug!(error = %e, "a connection ended early");
            }
        });
    }
    drop(listener);
    open.shutdown().await;
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, LazyLock};

    use axum::body::Body;
    use axum::routing::get;
    use futures_util::stream::repeat_with;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::{Notify, oneshot};
    use tokio::task::JoinHandle;
    use tokio::time::{sleep, timeout};

    use super::*;

    const HEAD: Duration = Duration::from_secs(2);
    const SHORT: Times = Times { head: HEAD, write: HEAD };
    /// Longer than a head may take.
    const POLL: Duration = Duration::from_secs(3);
    const SOON: Duration = Duration::from_secs(10);
    const QUICK: &str = "GET /quick HTTP/1.1\r\nHost: x\r\n\r\n";
    const ENDLESS_REQUEST: &str = "GET /endless HTTP/1.1\r\nHost: x\r\n\r\n";
    static ENDLESS: LazyLock<Arc<()>> = LazyLock::new(Arc::default);
    const SLOW: &str = "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n";

    /// What `/slow` tells when it has begun, and what it waits for.
    #[derive(Clone, Default)]
    struct Slow {
        begun: Arc<Notify>,
        go_on: Arc<Notify>,
    }

    /// `/quick`, `/slow`, and `/endless`, which holds a clone of `ENDLESS`. → a connection, what stops the server, and the server.
    async fn server(times: Times, slow: Slow) -> (TcpStream, oneshot::Sender<()>, JoinHandle<()>) {
        let slow = move || async move {
            slow.begun.notify_one();
            slow.go_on.notified().await;
            "done"
        };
        let endless = || async {
            let held = ENDLESS.clone();
            let piece = move || {
                let _held = &held;
                Ok::<_, std::convert::Infallible>(vec![0u8; 1 << 16])
            };
            Body::from_stream(repeat_with(piece))
        };
        let router = Router::new().route("/quick", get(|| async { "done" })).route("/slow", get(slow));
        let router = router.route("/endless", get(endless));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async {
            let _ = stopped.await;
        };
        let serving = tokio::spawn(serve(listener, router, times, shutdown));
        (TcpStream::connect(address).await.unwrap(), stop, serving)
    }

    /// Sends, and reads one answer; empty when the connection was closed.
    async fn ask(stream: &mut TcpStream, request: &str) -> String {
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = vec![0; 1024];
        let n = timeout(SOON, stream.read(&mut answer)).await.expect("an answer, or an end").unwrap();
        String::from_utf8_lossy(&answer[..n]).into_owned()
    }

    #[tokio::test]
    async fn half_a_head_and_silence_end_a_connection() {
        let ends = |half| async move {
            let (mut stream, _stop, _serving) = server(SHORT, Slow::default()).await;
            assert_eq!(ask(&mut stream, half).await, "", "{half:?}");
        };
        tokio::join!(ends(""), ends("GET /quick HT"), ends("GET /quick HTTP/1.1\r\nHost: x\r\n"));
    }

    #[tokio::test]
    async fn a_connection_that_idles_between_requests_and_a_long_poll_go_on() {
        let slow = Slow::default();
        let (mut stream, _stop, _serving) = server(SHORT, slow.clone()).await;
        tokio::spawn(async move {
            slow.begun.notified().await;
            sleep(POLL).await;
            slow.go_on.notify_one();
        });
        for request in [QUICK, SLOW, QUICK] {
            let answer = ask(&mut stream, request).await;
            assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("done"), "{answer}");
            sleep(HEAD / 8).await;
        }
    }

    #[tokio::test]
    async fn an_answer_that_nobody_takes_ends_and_one_that_is_taken_slowly_goes_on() {
        let (mut stream, _stop, _serving) = server(SHORT, Slow::default()).await;
        assert!(ask(&mut stream, ENDLESS_REQUEST).await.starts_with("HTTP/1.1 200 "));
        let mut taken = vec![0; 1 << 22];
        for _ in 0..8 {
            sleep(HEAD / 3).await;
            timeout(SOON, stream.read_exact(&mut taken)).await.expect("it goes on").unwrap();
        }
        assert_eq!(Arc::strong_count(&ENDLESS), 2, "the answer is being sent");
        let ended = async {
            while Arc::strong_count(&ENDLESS) > 1 {
                sleep(HEAD / 8).await;
            }
        };
        timeout(SOON, ended).await.expect("the answer is given up");
    }

    #[tokio::test]
    async fn at_the_end_idle_connections_close_and_requests_in_flight_are_answered() {
        let slow = Slow::default();
        let (mut busy, stop, mut serving) = server(TIMES, slow.clone()).await;
        let mut idle = TcpStream::connect(busy.peer_addr().unwrap()).await.unwrap();
        assert!(ask(&mut idle, QUICK).await.ends_with("done"));
        busy.write_all(SLOW.as_bytes()).await.unwrap();
        timeout(SOON, slow.begun.notified()).await.expect("a request in flight");
        stop.send(()).unwrap();
        assert_eq!(timeout(SOON, idle.read(&mut [0])).await.expect("closed before its time is up").unwrap(), 0);
        assert!(timeout(HEAD / 8, &mut serving).await.is_err(), "a request is in flight");
        slow.go_on.notify_one();
        assert!(ask(&mut busy, "").await.ends_with("done"));
        timeout(SOON, serving).await.unwrap().unwrap();
    }
}
