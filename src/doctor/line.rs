//! What a check came to, and what to do about it.

use std::time::{Duration, Instant};

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Pass,
    Fail,
    /// Not looked at, since something before it failed or there is nothing to look at.
    Skip,
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    pub area: &'static str,
    pub check: String,
    pub result: Verdict,
    /// How long it took; of a quick call the median of a few.
    pub latency_ms: Option<f64>,
    /// What was found, or the fault in the words of whoever reported it.
    pub detail: String,
    /// What to do; on a line that passes, what would be better.
    pub advice: Option<String>,
}

impl Line {
    pub fn pass(area: &'static str, check: impl Into<String>, detail: impl Into<String>) -> Self {
        let (check, detail) = (check.into(), detail.into());
        Self { area, check, result: Verdict::Pass, latency_ms: None, detail, advice: None }
    }

    pub fn fail(
        area: &'static str,
        check: impl Into<String>,
        detail: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { result: Verdict::Fail, advice: Some(advice.into()), ..Self::pass(area, check, detail) }
    }

    pub fn skip(area: &'static str, check: impl Into<String>, why: impl Into<String>) -> Self {
        Self { result: Verdict::Skip, ..Self::pass(area, check, why) }
    }

    pub fn took(self, time: Duration) -> Self {
        Self { latency_ms: Some(time.as_secs_f64() * 1e3), ..self }
    }

    pub fn since(self, start: Instant) -> Self {
        self.took(start.elapsed())
    }

    /// What would be better, when `wanted`.
    pub fn better(self, wanted: bool, advice: impl Into<String>) -> Self {
        Self { advice: wanted.then(|| advice.into()).or(self.advice), ..self }
    }
}

/// The middle one, of a few at least.
pub fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
