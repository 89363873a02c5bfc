//! How long the device worked for whom: the engine adds, whoever gets an outcome takes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::ids::{ModelId, RequestId};

/// Whom device time is spent on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Consumer {
    Run(ModelId),
    /// A sample, by its promise.
    Sample(RequestId),
}

/// Clones share the counts.
#[derive(Clone, Default)]
pub struct Meter(Arc<Mutex<HashMap<Consumer, Duration>>>);

impl Meter {
    /// Work that took `time` and was done for all of these at once, each with its share (tokens, rows).
    pub fn spent(&self, time: Duration, consumers: Vec<(Consumer, usize)>) {
        let all: usize = consumers.iter().map(|(_, share)| share).sum();
        let mut counts = self.lock();
        // What nobody takes must not pile up: it is then little and old.
        if counts.len() > 1 << 18 {
            counts.clear();
        }
        for (consumer, share) in consumers {
            *counts.entry(consumer).or_default() += time.mul_f64(share as f64 / all.max(1) as f64);
        }
    }

    /// Does work for samples, by their promises, and notes its time.
    pub fn samples<T>(&self, shares: Vec<(RequestId, usize)>, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = work();
        self.spent(start.elapsed(), shares.into_iter().map(|(id, share)| (Consumer::Sample(id), share)).collect());
        done
    }

    /// The time spent since the last call.
    pub fn take(&self, consumer: &Consumer) -> Duration {
        self.lock().remove(consumer).unwrap_or_default()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Consumer, Duration>> {
        self.0.lock().expect("no code panics while it holds the counts")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_divided_by_share_and_taken_once() {
        let meter = Meter::default();
        let (run, sample) = (Consumer::Run(ModelId("r".into())), Consumer::Sample(RequestId("p".into())));
        meter.spent(Duration::from_secs(4), vec![(run.clone(), 3), (sample.clone(), 1)]);
        meter.spent(Duration::from_secs(1), vec![(run.clone(), 5)]);
        meter.spent(Duration::from_secs(1), vec![]);
        assert_eq!(meter.take(&run), Duration::from_secs(4));
        assert_eq!(meter.take(&run), Duration::ZERO);
        assert_eq!(meter.take(&sample), Duration::from_secs(1));
    }
}
