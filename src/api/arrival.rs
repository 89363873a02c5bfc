//! How a body arrives: frame by frame, as slowly as it may, and 408 when it does not.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::StatusCode;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::{Instant, timeout_at};

use super::error::{ApiError, ApiResult};

/// How slowly a body may come.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The longest time in which nothing comes.
    pub silence: Duration,
    /// What is whole within this time may come in any way.
    pub grace: Duration,
    /// Bytes a second that must have come on average at any time after the grace; `None`: all must be there by then.
    pub rate: Option<u32>,
}

/// For bodies that may be large.
pub const LARGE: Pace = Pace { silence: Duration::from_secs(60), grace: Duration::from_secs(60), rate: Some(16 << 10) };

/// For bodies that hold a few names and settings.
pub const SMALL: Pace = Pace { rate: None, ..LARGE };

/// A body that is on its way.
pub struct Arrival<'a> {
    /// What it is, for errors.
    what: &'a str,
    stream: BodyDataStream,
    pace: Pace,
    begun: Instant,
    received: u64,
}

impl<'a> Arrival<'a> {
    pub fn new(what: &'a str, body: Body, pace: Pace) -> Self {
        Self { what, stream: body.into_data_stream(), pace, begun: Instant::now(), received: 0 }
    }

    /// Its next bytes, or why its client broke off; `None` at the end.
    ///
    /// # Errors
    /// 408 when nothing came for too long, or too little in all.
    pub async fn next(&mut self) -> ApiResult<Option<Result<Bytes, axum::Error>>> {
        let (silent, slow) = (Instant::now() + self.pace.silence, self.begun + self.allowed());
        let Ok(frame) = timeout_at(silent.min(slow), self.stream.next()).await else {
            let detail = if slow < silent { self.slow() } else { self.silent() };
            return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, detail));
        };
        if let Some(Ok(bytes)) = &frame {
            self.received += bytes.len() as u64;
        }
        Ok(frame)
    }

    /// How long after its begin more must have come than what is here.
    fn allowed(&self) -> Duration {
        let earned = |rate| Duration::from_secs_f64(self.received as f64 / f64::from(rate));
        self.pace.rate.map_or(self.pace.grace, |rate| self.pace.grace.max(earned(rate)))
    }

    fn silent(&self) -> String {
        let (what, received, seconds) = (self.what, self.received, self.pace.silence.as_secs_f64());
        format!("nothing of {what} came for {seconds} s, after {received} bytes; send it again")
    }

    fn slow(&self) -> String {
        let (what, received, grace) = (self.what, self.received, self.pace.grace.as_secs_f64());
        let Some(rate) = self.pace.rate else {
            return format!("{what} was not whole after {grace} s, with {received} bytes; send it again");
        };
        let seconds = self.begun.elapsed().as_secs_f64();
        let average = received as f64 / seconds;
        format!(
            "{what} came too slowly: {received} bytes in {seconds:.0} s are {average:.0} a second; after {grace} s it must \
             be {rate} a second or more; send it again"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::response::IntoResponse;

    const BEAT: Duration = Duration::from_millis(100);
    const PATIENT: Pace = Pace { silence: Duration::from_millis(400), grace: Duration::from_secs(60), rate: None };

    /// Pieces of two bytes, each after so many beats. → how many bytes came, and why no more did.
    async fn arrive(waits: &'static [u32], pace: Pace) -> (u64, Option<String>) {
        let piece = |wait: &u32| {
            let wait = *wait;
            async move {
                tokio::time::sleep(BEAT * wait).await;
                Ok::<_, std::io::Error>("ab")
            }
        };
        let body = Body::from_stream(futures_util::stream::iter(waits).then(piece));
        let mut arrival = Arrival::new("the body", body, pace);
        loop {
            match arrival.next().await {
                Ok(Some(frame)) => assert_eq!(frame.unwrap(), "ab"),
                Ok(None) => return (arrival.received, None),
                Err(e) => {
                    let detail = e.detail().to_owned();
                    assert_eq!(e.into_response().status(), StatusCode::REQUEST_TIMEOUT);
                    return (arrival.received, Some(detail));
                }
            }
        }
    }

    #[tokio::test]
    async fn a_body_may_be_slow_but_not_silent() {
        assert_eq!(arrive(&[2, 2, 2, 2], PATIENT).await, (8, None), "twice the time in all");
        let (received, detail) = arrive(&[0, 0, 100, 0], PATIENT).await;
        assert_eq!(received, 4);
        assert_eq!(detail.unwrap(), "nothing of the body came for 0.4 s, after 4 bytes; send it again");
    }

    #[tokio::test]
    async fn a_body_that_drips_ends() {
        let short = Pace { silence: Duration::from_secs(60), grace: BEAT, ..PATIENT };
        let (received, detail) = arrive(&[0, 0, 2, 2, 2, 2, 2, 2], short).await;
        assert!(received < 16, "{received}");
        assert!(detail.unwrap().starts_with("the body was not whole after 0.1 s, with "));
        let (received, detail) = arrive(&[0, 0, 2, 2, 2, 2, 2, 2], Pace { rate: Some(1000), ..short }).await;
        assert!(received < 16, "{received}");
        let detail = detail.unwrap();
        assert!(detail.contains("after 0.1 s it must be 1000 a second or more"), "{detail}");
        assert_eq!(arrive(&[0, 1, 1, 1], Pace { rate: Some(1), ..short }).await, (8, None), "fast enough on average");
    }
}
