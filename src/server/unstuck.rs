//! A stream whose writes fail, instead of waiting for ever, when the other side takes nothing.

use std::future::Future;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Reads are as patient as the stream; who reads limits them.
pub struct Unstuck<S> {
    stream: S,
    /// A write may wait so long for its first byte to be taken.
    limit: Duration,
    /// Runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Unstuck<S> {
    pub fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, waiting: None }
    }

    /// What the stream said, or an error when it has said "wait" for too long.
    fn bounded<T>(&mut self, cx: &mut Context<'_>, said: Poll<Result<T>>) -> Poll<Result<T>> {
        if said.is_ready() {
            self.waiting = None;
            return said;
        }
        let limit = self.limit;
        ready!(self.waiting.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(cx));
        let why = format!("the client took nothing of its answer for {} s", limit.as_secs());
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, why)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Unstuck<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Unstuck<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        let said = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.bounded(cx, said)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let said = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.bounded(cx, said)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let said = Pin::new(&mut self.stream).poll_flush(cx);
        self.bounded(cx, said)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let said = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.bounded(cx, said)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn the_time_begins_again_with_every_byte_that_is_taken() {
        let limit = Duration::from_millis(200);
        let (stream, mut other) = duplex(1);
        let mut stream = Unstuck::new(stream, limit);
        let taking = tokio::spawn(async move {
            for _ in 0..4 {
                sleep(limit / 2).await;
                other.read_u8().await.unwrap();
            }
            other
        });
        stream.write_all(&[7; 5]).await.unwrap();
        let _open = taking.await.unwrap();
        assert_eq!(stream.write_all(&[7]).await.unwrap_err().kind(), ErrorKind::TimedOut);
    }
}
