//! The tempered distribution softmax(logits / T): logprobs and draws, in one fixed order of summation.

use super::exp::exp_nonpositive;
use crate::error::{Error, Result};

/// Logits per partial sum; the draw skips whole blocks.
const BLOCK: usize = 512;
const LANES: usize = 16;

/// softmax(logits / T) over one row of logits, (V,), kept as partial sums.
///
/// The probability of a token is mass / total, with mass = exp((logit − max) / T) in f32, summed in f64 by blocks.
#[derive(Clone, Debug)]
pub struct Tempered<'a> {
    logits: &'a [f32],
    max: f32,
    inverse_temperature: f32,
    /// Running total at the end of each block; the last is the total.
    totals: Vec<f64>,
}

impl<'a> Tempered<'a> {
    /// Temperature 0 (greedy) gives the distribution at 1.
    ///
    /// # Errors
    /// A user error when the logits hold NaN or +∞, or nothing above −∞.
    pub fn new(logits: &'a [f32], temperature: f32) -> Result<Self> {
        assert!(temperature >= 0.0, "temperature {temperature} is negative or NaN");
        // Held finite, so that 0 · (1/T) stays 0 for the smallest T.
        let inverse_temperature = if temperature == 0.0 { 1.0 } else { temperature.recip().min(f32::MAX) };
        let mut row = Self { logits, max: max_of(logits), inverse_temperature, totals: Vec::new() };
        if !row.max.is_finite() {
            return Err(row.diverged());
        }
        let mut total = 0.0;
        row.totals.reserve_exact(logits.len().div_ceil(BLOCK));
        for block in logits.chunks(BLOCK) {
            total += row.block_mass(block);
            row.totals.push(total);
        }
        if total.is_nan() { Err(row.diverged()) } else { Ok(row) }
    }

    pub fn logits(&self) -> &'a [f32] {
        self.logits
    }

    /// log-softmax(logits / T) at `token`.
    pub fn logprob(&self, token: u32) -> f32 {
        let below_max = f64::from(self.logits[token as usize]) - f64::from(self.max);
        (below_max * f64::from(self.inverse_temperature) - self.total().ln()) as f32
    }

    /// The token with the largest logit, the lowest id among equals.
    pub fn most_likely(&self) -> u32 {
        self.logits.iter().position(|&x| x == self.max).expect("the maximum is one of the logits") as u32
    }

    /// The token at which the running sum of masses, in the order of ids, passes `u` · total, for `u` in [0, 1).
    pub fn draw(&self, u: f64) -> u32 {
        let target = u * self.total();
        let block = self.totals.partition_point(|&reached| reached <= target);
        let start = block * BLOCK;
        let mut reached = if block == 0 { 0.0 } else { self.totals[block - 1] };
        let mut last = start;
        for (i, &x) in self.logits[start..].iter().take(BLOCK).enumerate() {
            let mass = f64::from(self.mass_of(x));
            reached += mass;
            if mass > 0.0 {
                last = start + i;
            }
            if reached > target {
                break;
            }
        }
        // One by one the block can sum to a last bit less than by lanes: its last token then takes the draw.
        last as u32
    }

    /// Unnormalised probability of `token`; 1 for the most likely.
    pub fn mass(&self, token: u32) -> f64 {
        f64::from(self.mass_of(self.logits[token as usize]))
    }

    /// Masses of the tokens from `start` on, as many as `out` holds.
    pub fn masses(&self, start: usize, out: &mut [f32]) {
        for (mass, &x) in out.iter_mut().zip(&self.logits[start..]) {
            *mass = self.mass_of(x);
        }
    }

    /// Sum of all masses.
    pub fn total(&self) -> f64 {
        *self.totals.last().expect("a vocabulary is not empty")
    }

    /// (logit − max) / T, at most 0.
    #[inline(always)]
    pub fn scaled(&self, logit: f32) -> f32 {
        (logit - self.max) * self.inverse_temperature
    }

    #[inline(always)]
    fn mass_of(&self, logit: f32) -> f32 {
        exp_nonpositive(self.scaled(logit))
    }

    fn block_mass(&self, block: &[f32]) -> f64 {
        let (chunks, rest) = block.as_chunks::<LANES>();
        let mut lanes = [0.0f64; LANES];
        for chunk in chunks {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane += f64::from(self.mass_of(x));
            }
        }
        lanes.iter().sum::<f64>() + rest.iter().map(|&x| f64::from(self.mass_of(x))).sum::<f64>()
    }

    fn diverged(&self) -> Error {
        match self.logits.iter().position(|x| x.is_nan() || *x == f32::INFINITY) {
            Some(i) => {
                Error::user(format!("the logit of token {i} is {}: the model's weights have diverged", self.logits[i]))
            }
            None => Error::user("no token has a logit above -inf: the model's weights have diverged"),
        }
    }
}

/// The largest value, −∞ for none; NaN is passed over.
pub fn max_of(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, x);
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |m, &x| larger(m, x))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// V = 3000 logits over a wide range, in no order.
    fn row() -> Vec<f32> {
        (0..3000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 16) as f32 / 65536.0 * 30.0 - 15.0).collect()
    }

    #[test]
    fn logprobs_equal_a_plain_f64_log_softmax() {
        let logits = row();
        for t in [0.3, 1.0, 2.5] {
            let d = Tempered::new(&logits, t).unwrap();
            let scaled: Vec<f64> = logits.iter().map(|&x| f64::from(x) / f64::from(t)).collect();
            let top = scaled.iter().fold(f64::MIN, |a, &b| a.max(b));
            let log_total = scaled.iter().map(|x| (x - top).exp()).sum::<f64>().ln() + top;
            for i in [0usize, 1, 511, 512, 1500, 2999] {
                let want = scaled[i] - log_total;
                assert!((f64::from(d.logprob(i as u32)) - want).abs() < 4e-6 * want.abs().max(1.0), "T {t}, token {i}");
            }
        }
    }

    #[test]
    fn draws_invert_the_cumulative_sum() {
        let logits = row();
        let d = Tempered::new(&logits, 1.0).unwrap();
        let mut before = 0.0;
        for token in 0..3000 {
            let mass = d.mass(token);
            let middle = (before + 0.5 * mass) / d.total();
            if mass / d.total() > 1e-12 {
                assert_eq!(d.draw(middle), token);
            }
            before += mass;
        }
        assert_eq!(d.draw(0.0), 0);
        assert_eq!(d.draw(1.0 - f64::EPSILON / 2.0), 2999);
    }

    #[test]
    fn tokens_of_no_mass_are_never_drawn() {
        let mut logits = vec![f32::NEG_INFINITY; 2000];
        logits[700] = 1.0;
        logits[701] = -500.0;
        let d = Tempered::new(&logits, 1.0).unwrap();
        for u in [0.0, 0.5, 1.0 - f64::EPSILON / 2.0] {
            assert_eq!(d.draw(u), 700);
        }
        assert_eq!(d.logprob(700), 0.0);
        assert_eq!(d.logprob(0), f32::NEG_INFINITY);
    }

    #[test]
    fn the_smallest_temperature_is_greedy() {
        let logits = [1.0, 2.0, 2.0 - 1e-6];
        let d = Tempered::new(&logits, f32::from_bits(1)).unwrap();
        assert_eq!((d.draw(0.999), d.logprob(1)), (1, 0.0));
    }

    #[test]
    fn the_maximum_passes_over_nan() {
        let mut values = vec![-2.0; 40];
        values[3] = f32::NAN;
        values[39] = -1.0;
        assert_eq!(max_of(&values), -1.0);
        assert_eq!(max_of(&[]), f32::NEG_INFINITY);
    }
}
