//! Tokens per second over the last minute. Pure: the time is an argument, in whole seconds.

use crate::store::usage::Counters;

const SECONDS: usize = 60;

/// Tokens of the whole server, by the second they were done in.
#[derive(Clone, Debug)]
pub struct Speed {
    /// One slot per second, used in turn; which second each holds stands beside it.
    slots: [(u64, Tokens); SECONDS],
}

/// Tokens of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Trained on, or run forward only.
    pub training: u64,
    pub prefill: u64,
    pub sampled: u64,
}

impl Default for Speed {
    fn default() -> Self {
        Self { slots: [(0, Tokens::default()); SECONDS] }
    }
}

impl Speed {
    pub fn add(&mut self, counters: &Counters, second: u64) {
        let slot = &mut self.slots[second as usize % SECONDS];
        if slot.0 != second {
            *slot = (second, Tokens::default());
        }
        slot.1.training += counters.forward_tokens + counters.train_tokens;
        slot.1.prefill += counters.prefill_tokens;
        slot.1.sampled += counters.sampled_tokens;
    }

    /// All of the 60 seconds that end with this one.
    pub fn last_minute(&self, second: u64) -> Tokens {
        let recent = self.slots.iter().filter(|(at, _)| *at <= second && second - at < SECONDS as u64);
        recent.fold(Tokens::default(), |sum, (_, t)| Tokens {
            training: sum.training + t.training,
            prefill: sum.prefill + t.prefill,
            sampled: sum.sampled + t.sampled,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_a_minute_counts_no_more() {
        let mut speed = Speed::default();
        let sampled = |n| Counters { sampled_tokens: n, train_tokens: 2 * n, ..Counters::default() };
        speed.add(&sampled(5), 1000);
        speed.add(&sampled(7), 1059);
        assert_eq!(speed.last_minute(1059), Tokens { training: 24, prefill: 0, sampled: 12 });
        assert_eq!(speed.last_minute(1060).sampled, 7);
        speed.add(&sampled(1), 1060);
        assert_eq!((speed.last_minute(1060).sampled, speed.last_minute(1200).sampled), (8, 0));
    }
}
