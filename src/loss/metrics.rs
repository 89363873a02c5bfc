//! The metrics of a forward-backward request: `loss:sum` always, policy metrics when the loss has a sampler.

use std::sync::Arc;

use super::DatumLoss;
use super::policy::{Term, Token};

/// How far the policy has moved from the sampler on one datum, over its tokens with weight ≠ 0 and advantage ≠ 0.
/// A datum without such tokens reports a policy that has not moved: ratio 1, KL 0, nothing clipped. All finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyMetrics {
    /// Mean of the importance ratio.
    pub ratio_mean: f64,
    pub ratio_max: f64,
    /// Mean of exp(d) − 1 − d, d = lp − q: the k3 estimate of KL(sampler ‖ policy) in nats per token.
    pub kl: f64,
    /// Share of tokens that the clip limits changed; `None` for losses that do not clip.
    pub clip_fraction: Option<f64>,
}

/// The metrics of one request. `mean` and `max` are over datums, because a client that cut its batch into chunks
/// combines them weighted by the number of datums in each chunk (protocol §11.5).
pub fn combine(datums: &[DatumLoss]) -> Vec<(String, f64)> {
    let mut out = vec![("loss:sum".to_owned(), datums.iter().map(|d| d.value).sum())];
    out.extend(custom(datums));
    let policy: Vec<&PolicyMetrics> = datums.iter().filter_map(|d| d.metrics.as_ref()).collect();
    if policy.is_empty() {
        return out;
    }
    let mean = |f: &dyn Fn(&PolicyMetrics) -> f64| policy.iter().map(|m| f(m)).sum::<f64>() / policy.len() as f64;
    out.push(("ratio:mean".to_owned(), mean(&|m| m.ratio_mean)));
    out.push(("ratio:max".to_owned(), policy.iter().map(|m| m.ratio_max).fold(0.0, f64::max)));
    out.push(("kl:mean".to_owned(), mean(&|m| m.kl)));
    if policy.iter().any(|m| m.clip_fraction.is_some()) {
        out.push(("clip_fraction:mean".to_owned(), mean(&|m| m.clip_fraction.unwrap_or(0.0))));
    }
    out
}

/// What custom losses report, in their order: sums and, of a name that ends in `:mean`, means over datums.
fn custom(datums: &[DatumLoss]) -> Vec<(String, f64)> {
    let Some(first) = datums.first() else { return Vec::new() };
    let combined = |(i, (name, _)): (usize, &(Arc<str>, f64))| {
        let sum: f64 = datums.iter().filter_map(|d| d.custom.get(i)).map(|(_, x)| x).sum();
        (name.to_string(), if name.ends_with(":mean") { sum / datums.len() as f64 } else { sum })
    };
    first.custom.iter().enumerate().map(combined).collect()
}

/// Sums over the tokens of one datum, on the way to its `PolicyMetrics`.
#[derive(Default)]
pub struct Tally {
    tokens: usize,
    ratio_sum: f64,
    ratio_max: f64,
    kl_sum: f64,
    clipped: usize,
    clips: bool,
}

impl Tally {
    /// `clips` is the loss's property, not the data's: chunks of one request must report the same metrics.
    pub fn new(clips: bool) -> Self {
        Self { clips, ..Self::default() }
    }

    pub fn add(&mut self, token: &Token, term: &Term) {
        // A clipped loss stays finite where its ratio does not: report the largest f32 instead.
        let finite = |x: f64| x.min(f64::from(f32::MAX));
        let ratio = finite(term.ratio);
        self.tokens += 1;
        self.ratio_sum += ratio;
        self.ratio_max = self.ratio_max.max(ratio);
        self.kl_sum += finite(token.ratio() - 1.0 - token.log_ratio());
        self.clipped += usize::from(term.clipped);
    }

    pub fn finish(self) -> PolicyMetrics {
        let n = self.tokens.max(1) as f64;
        let moved = self.tokens > 0;
        PolicyMetrics {
            ratio_mean: if moved { self.ratio_sum / n } else { 1.0 },
            ratio_max: if moved { self.ratio_max } else { 1.0 },
            kl: self.kl_sum / n,
            clip_fraction: self.clips.then_some(self.clipped as f64 / n),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::evaluate;
    use super::super::fixtures::{close, policy_datum};
    use super::*;
    use crate::command::Loss;

    fn metric(metrics: &[(String, f64)], name: &str) -> f64 {
        metrics.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no {name} in {metrics:?}")).1
    }

    #[test]
    fn means_are_over_datums_and_the_loss_is_a_sum() {
        let ppo = Loss::Ppo { clip_low: 0.5, clip_high: 1.5 };
        let two = f32::ln(2.0);
        // ratios 2 (clipped for A > 0) and 1; then a datum of one token with ratio 1
        let a = evaluate(&ppo, &policy_datum(&[-1.0, -1.0], &[1.0, 1.0]), &[-1.0 + two, -1.0]).unwrap();
        let b = evaluate(&ppo, &policy_datum(&[-1.0], &[1.0]), &[-1.0]).unwrap();
        let m = combine(&[a, b]);
        close(metric(&m, "loss:sum"), -1.5 - 1.0 - 1.0);
        close(metric(&m, "ratio:mean"), (1.5 + 1.0) / 2.0);
        close(metric(&m, "ratio:max"), 2.0);
        close(metric(&m, "clip_fraction:mean"), (0.5 + 0.0) / 2.0);
        close(metric(&m, "kl:mean"), (2.0 - 1.0 - 2f64.ln()) / 2.0 / 2.0);
    }

    #[test]
    fn a_datum_without_advantages_reports_the_same_metrics() {
        let ppo = Loss::Ppo { clip_low: 0.8, clip_high: 1.2 };
        let out = evaluate(&ppo, &policy_datum(&[-1.0], &[0.0]), &[-9.0]).unwrap();
        let want = PolicyMetrics { ratio_mean: 1.0, ratio_max: 1.0, kl: 0.0, clip_fraction: Some(0.0) };
        assert_eq!(out.metrics, Some(want));
    }

    #[test]
    fn every_name_has_one_colon_and_a_reduction_that_clients_know() {
        let datum = policy_datum(&[-1.0], &[1.0]);
        for loss in [Loss::Ppo { clip_low: 0.8, clip_high: 1.2 }, Loss::ImportanceSampling, Loss::Dro { beta: 0.1 }] {
            for (name, value) in combine(&[evaluate(&loss, &datum, &[-1.5]).unwrap()]) {
                let parts: Vec<&str> = name.split(':').collect();
                assert!(parts.len() == 2 && ["sum", "mean", "max"].contains(&parts[1]), "{name}");
                assert!(value.is_finite(), "{name}");
            }
        }
        assert_eq!(combine(&[]), [("loss:sum".to_owned(), 0.0)]);
    }

    #[test]
    fn metrics_stay_finite_where_a_clipped_loss_meets_an_overflowing_ratio() {
        let out = evaluate(
            &Loss::Ppo { clip_low: 0.8, clip_high: 1.2 },
            &policy_datum(&[-2000.0, -1.0], &[1.0, -1.0]),
            &[-1.0, f32::NEG_INFINITY],
        )
        .unwrap();
        close(out.value, -1.2 + 0.8);
        assert!(combine(&[out]).iter().all(|(_, v)| v.is_finite()));
    }
}
