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

/// What was done for a consumer since somebody last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    pub time: Duration,
    pub prompt_tokens: u64,
    pub drawn_tokens: u64,
    /// Of a run, forward alone or back again.
    pub trained_tokens: u64,
}

/// A piece of a sample's work, and what its shares count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Tokens of a prompt that are run.
    Prompt,
    /// Questions about a prompt; the share is a weight alone.
    Questions,
    /// Sequences that grow by a token.
    Tokens,
}

/// Clones share the counts.
#[derive(Clone, Default)]
pub struct Meter(Arc<Mutex<HashMap<Consumer, Spent>>>);

impl Meter {
    /// Work that took `time` and was done for all of these at once, each with its share (tokens, rows).
    pub fn spent(&self, time: Duration, consumers: Vec<(Consumer, usize)>) {
        self.add(time, consumers, |_, _| {});
    }

    /// As [`Meter::spent`]; the shares are tokens of forward_backward requests.
    pub fn trained(&self, time: Duration, consumers: Vec<(Consumer, usize)>) {
        self.add(time, consumers, |spent, share| spent.trained_tokens += share as u64);
    }

    /// Does a piece of work for samples, by their promises, and notes it.
    pub fn samples<T>(&self, piece: Piece, shares: Vec<(RequestId, usize)>, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = work();
        let consumers = shares.into_iter().map(|(id, share)| (Consumer::Sample(id), share)).collect();
        self.add(start.elapsed(), consumers, |spent, share| match piece {
            Piece::Prompt => spent.prompt_tokens += share as u64,
            Piece::Questions => {}
            Piece::Tokens => spent.drawn_tokens += share as u64,
        });
        done
    }

    /// What was spent since the last call. Trained tokens beyond `trained` were another request's of the same run, and
    /// stay until that one asks.
    pub fn take(&self, consumer: &Consumer, trained: u64) -> Spent {
        let mut counts = self.lock();
        let mut spent = counts.remove(consumer).unwrap_or_default();
        let rest = spent.trained_tokens.saturating_sub(trained);
        if rest > 0 {
            counts.insert(consumer.clone(), Spent { trained_tokens: rest, ..Spent::default() });
            spent.trained_tokens = trained;
        }
        spent
    }

    fn add(&self, time: Duration, consumers: Vec<(Consumer, usize)>, count: impl Fn(&mut Spent, usize)) {
        let all: usize = consumers.iter().map(|(_, share)| share).sum();
        let mut counts = self.lock();
        // What nobody takes must not pile up: it is then little and old.
        if counts.len() > 1 << 18 {
            counts.clear();
        }
        for (consumer, share) in consumers {
            let spent = counts.entry(consumer).or_default();
            spent.time += time.mul_f64(share as f64 / all.max(1) as f64);
            count(spent, share);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Consumer, Spent>> {
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
        assert_eq!(meter.take(&run, 0).time, Duration::from_secs(4));
        assert_eq!(meter.take(&run, 0), Spent::default());
        assert_eq!(meter.take(&sample, 0).time, Duration::from_secs(1));
    }

    #[test]
    fn a_request_takes_its_own_tokens_and_leaves_the_next_ones() {
        let (meter, run) = (Meter::default(), Consumer::Run(ModelId("r".into())));
        meter.trained(Duration::from_secs(1), vec![(run.clone(), 7), (run.clone(), 5)]);
        assert_eq!(meter.take(&run, 7).trained_tokens, 7);
        meter.trained(Duration::from_secs(1), vec![(run.clone(), 3)]);
        assert_eq!(meter.take(&run, 100).trained_tokens, 8);
        assert_eq!(meter.take(&run, 100), Spent::default());
    }

    #[test]
    fn a_samples_tokens_are_counted_by_kind() {
        let (meter, id) = (Meter::default(), RequestId("p".into()));
        meter.samples(Piece::Prompt, vec![(id.clone(), 7)], || ());
        meter.samples(Piece::Questions, vec![(id.clone(), 1)], || ());
        for _ in 0..3 {
            meter.samples(Piece::Tokens, vec![(id.clone(), 1), (id.clone(), 1)], || ());
        }
        let spent = meter.take(&Consumer::Sample(id), 0);
        assert_eq!((spent.prompt_tokens, spent.drawn_tokens), (7, 6));
    }
}
