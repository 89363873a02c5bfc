//! The life of a promise: pending → done | failed, done → expired.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::command::{DatumOutput, SampleOutput, TargetLayout, TopK};
use crate::error::Error;
use crate::ids::{CheckpointPath, LossId, ModelId, SamplerId};

/// What a request came to, in our own terms; `api` gives it its wire form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    Created {
        model: ModelId,
    },
    /// A run created from a checkpoint, or a checkpoint loaded into a run.
    Loaded {
        model: ModelId,
        path: CheckpointPath,
    },
    ForwardBackward {
        outputs: Vec<DatumOutput>,
        metrics: Vec<(String, f64)>,
    },
    OptimStep {
        metrics: Vec<(String, f64)>,
    },
    Saved {
        path: CheckpointPath,
        size_bytes: u64,
    },
    Snapshot {
        sampler: SamplerId,
    },
    Unloaded {
        model: ModelId,
    },
    LossKept {
        loss: LossId,
    },
    Sampled {
        output: SampleOutput,
        targets: Option<TargetLayout>,
    },
}

/// Ids, keys and table entries of one promise.
const FIXED: usize = 600;

#[derive(Clone, Debug)]
pub enum State {
    Pending,
    Done(Arc<Answer>),
    Failed(Error),
    /// Done, but the result had to make room.
    Expired,
}

impl State {
    /// The one legal way out of `Pending`; false when the promise was settled before.
    pub fn settle(&mut self, result: Result<Answer, Error>) -> bool {
        if !matches!(self, Self::Pending) {
            return false;
        }
        *self = match result {
            Ok(answer) => Self::Done(Arc::new(answer)),
            Err(e) => Self::Failed(e),
        };
        true
    }

    /// Estimated bytes of what is kept of a settled promise; 0 while it is pending.
    pub fn size_bytes(&self) -> usize {
        match self {
            Self::Done(answer) => FIXED + answer.size_bytes(),
            Self::Failed(e) => FIXED + e.message.len(),
            Self::Expired => FIXED,
            Self::Pending => 0,
        }
    }
}

impl Answer {
    /// Estimated bytes of the result.
    pub fn size_bytes(&self) -> usize {
        match self {
            Self::ForwardBackward { outputs, .. } => outputs.iter().map(|o| 64 + 4 * o.logprobs.len()).sum(),
            Self::Sampled { output, .. } => sample_bytes(output),
            _ => 0,
        }
    }
}

fn sample_bytes(output: &SampleOutput) -> usize {
    let topk = |rows: &Vec<TopK>| rows.iter().map(|r| 24 + 8 * r.len()).sum::<usize>();
    let sequences: usize = output
        .sequences
        .iter()
        .map(|s| {
            120 + 4 * (s.tokens.len() + s.logprobs.len())
                + 8 * s.weight_versions.len()
                + s.topk.as_ref().map_or(0, topk)
        })
        .sum();
    sequences
        + output.prompt_logprobs.as_ref().map_or(0, |p| 4 * p.len())
        + output.topk_prompt_logprobs.as_ref().map_or(0, topk)
        + output.prompt_alt_tokens.as_ref().map_or(0, topk)
        + output.target_prompt_logprobs.as_ref().map_or(0, |r| r.iter().map(|r| 24 + 4 * r.len()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settled_promise_does_not_change() {
        let mut s = State::Pending;
        assert!(s.settle(Ok(Answer::OptimStep { metrics: vec![] })));
        assert!(!s.settle(Err(Error::server("late"))));
        assert!(matches!(s, State::Done(_)));
    }

    #[test]
    fn size_counts_the_numbers() {
        let out = DatumOutput { logprobs: vec![0.0; 1000], k: 1, two_dimensional: false };
        let mut s = State::Pending;
        s.settle(Ok(Answer::ForwardBackward { outputs: vec![out.clone(), out], metrics: vec![] }));
        assert_eq!(s.size_bytes(), 600 + 2 * (64 + 4000));
    }
}
