//! The loop that policy losses share: tokens with logprob, sampler's logprob, advantage and weight; summed terms out.

use super::DatumLoss;
use super::metrics::Tally;
use crate::command::Datum;
use crate::error::{Error, Result};

/// One token as a policy loss sees it.
#[derive(Clone, Copy, Debug)]
pub struct Token {
    /// The trained policy's logprob lp.
    pub logprob: f64,
    /// The sampler's logprob q.
    pub sampler: f64,
    pub advantage: f64,
}

impl Token {
    /// lp − q.
    pub fn log_ratio(&self) -> f64 {
        self.logprob - self.sampler
    }

    /// The importance ratio exp(lp − q).
    pub fn ratio(&self) -> f64 {
        self.log_ratio().exp()
    }
}

/// What one token adds to the loss, before its weight.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    pub value: f64,
    /// d value / d logprob.
    pub derivative: f64,
    /// The ratio that the loss used, before clipping.
    pub ratio: f64,
    /// Whether a clip limit changed the term.
    pub clipped: bool,
}

/// The policy inputs of one datum, each (T,).
pub struct Policy<'a> {
    loss: &'static str,
    logprobs: &'a [f32],
    samplers: &'a [f32],
    advantages: &'a [f32],
    weights: Option<&'a [f32]>,
    clips: bool,
}

impl<'a> Policy<'a> {
    /// # Errors
    /// A user error when the datum lacks `logprobs` or `advantages`, or has several targets per position.
    pub fn of(loss: &'static str, datum: &'a Datum, logprobs: &'a [f32]) -> Result<Self> {
        if datum.k != 1 {
            return Err(Error::user(format!("{loss} takes one target per position, not {}", datum.k)));
        }
        Ok(Self {
            loss,
            logprobs,
            samplers: required(loss, "logprobs", datum.inputs.logprobs.as_deref())?,
            advantages: required(loss, "advantages", datum.inputs.advantages.as_deref())?,
            weights: datum.inputs.weights.as_deref(),
            clips: false,
        })
    }

    /// For losses with clip limits: the metrics report the share of tokens that met one.
    pub fn with_clip_fraction(self) -> Self {
        Self { clips: true, ..self }
    }

    /// The sum of `term` over the tokens with weight ≠ 0 and advantage ≠ 0; the others contribute exactly nothing.
    pub fn sum(&self, term: impl Fn(&Token) -> Term) -> Result<DatumLoss> {
        self.sum_where(|t| t.advantage != 0.0, term)
    }

    /// The sum of `term` over the tokens with weight ≠ 0 that `counts` admits. Metrics cover those with advantage ≠ 0.
    pub fn sum_where(&self, counts: impl Fn(&Token) -> bool, term: impl Fn(&Token) -> Term) -> Result<DatumLoss> {
        let mut value = 0.0;
        let mut d_logprobs = vec![0.0; self.logprobs.len()];
        let mut tally = Tally::new(self.clips);
        for (i, d_logprob) in d_logprobs.iter_mut().enumerate() {
            let weight = self.weights.map_or(1.0, |w| f64::from(w[i]));
            let token = self.token(i);
            if weight == 0.0 || !counts(&token) {
                continue;
            }
            let term = term(&token);
            value += weight * term.value;
            *d_logprob = (weight * term.derivative) as f32;
            if !(weight * term.value).is_finite() || !d_logprob.is_finite() {
                return Err(self.not_finite(i, weight * term.value, *d_logprob));
            }
            if token.advantage != 0.0 {
                tally.add(&token, &term);
            }
        }
        Ok(DatumLoss { value, d_logprobs, metrics: Some(tally.finish()), custom: Vec::new() })
    }

    /// Mean of lp − q over the positions whose `mask`, (T,), is not 0; `None` when there are none.
    pub fn mean_log_ratio(&self, mask: &[f32]) -> Option<f64> {
        let masked: Vec<f64> = (0..mask.len()).filter(|&i| mask[i] != 0.0).map(|i| self.token(i).log_ratio()).collect();
        (!masked.is_empty()).then(|| masked.iter().sum::<f64>() / masked.len() as f64)
    }

    fn token(&self, i: usize) -> Token {
        Token {
            logprob: f64::from(self.logprobs[i]),
            sampler: f64::from(self.samplers[i]),
            advantage: f64::from(self.advantages[i]),
        }
    }

    fn not_finite(&self, i: usize, value: f64, derivative: f32) -> Error {
        Error::user(format!(
            "{}: the loss is not finite at position {i}: value {value}, derivative {derivative} \
             (logprob {}, sampler's logprob {}, advantage {})",
            self.loss, self.logprobs[i], self.samplers[i], self.advantages[i]
        ))
    }
}

/// A loss input that `loss` cannot do without.
pub fn required<'a>(loss: &str, field: &str, input: Option<&'a [f32]>) -> Result<&'a [f32]> {
    input.ok_or_else(|| Error::user(format!("{loss} needs the loss input {field}")))
}

/// `ratio` held within `[low, high]`; NaN stays NaN, so that it is noticed.
pub fn clip(ratio: f64, low: f64, high: f64) -> f64 {
    if ratio < low {
        low
    } else if ratio > high {
        high
    } else {
        ratio
    }
}

/// −min(r·A, clip(r)·A) for a ratio with dr/dlp = r: what ppo and gspo share. A tie counts as unclipped.
pub fn pessimistic(ratio: f64, advantage: f64, low: f64, high: f64) -> Term {
    let (free, held) = (ratio * advantage, clip(ratio, low, high) * advantage);
    if free <= held {
        Term { value: -free, derivative: -free, ratio, clipped: false }
    } else {
        Term { value: -held, derivative: 0.0, ratio, clipped: true }
    }
}
