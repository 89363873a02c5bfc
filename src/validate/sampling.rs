//! From a sample request to the engine's (protocol §7.13, §8.3).

use tinderbox_client::types::sampling::{SampleRequest as WireRequest, SamplingParams as WireParams};
use tinderbox_client::types::tensor_data::TensorData;

use crate::command::{Csr, PromptTargets, SampleRequest, SampleSource, SamplingParams, TargetLayout};
use crate::engine::handle::ModelInfo;
use crate::error::{Error, Result};

use super::expansion::Padding;
use super::stop::stop;
use super::tokens;

/// Alternatives per position that a request may ask for.
const MAX_TOPK: usize = 1024;

/// Cells of one request's result, each a token with its logprob: 256 MB.
const MAX_CELLS: usize = 1 << 25;

/// Cells of `target_prompt_logprobs` that nothing was sent for: with their results 24 MB.
const MAX_PADDING: usize = 1 << 21;

/// A checked request, and the layout its `target_prompt_logprobs` must be answered in.
#[derive(Debug)]
pub struct Checked {
    pub request: SampleRequest,
    pub targets: Option<TargetLayout>,
}

/// What fields are called in errors: here by the Tinker API, elsewhere by an API whose requests become those of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    pub num_samples: &'static str,
    pub max_tokens: &'static str,
    pub temperature: &'static str,
    pub top_p: &'static str,
    pub top_k: &'static str,
    pub stop: &'static str,
    pub topk_prompt_logprobs: &'static str,
    pub topk_sample_logprobs: &'static str,
}

impl Names {
    pub const TINKER: Self = Self {
        num_samples: "num_samples",
        max_tokens: "sampling_params.max_tokens",
        temperature: "sampling_params.temperature",
        top_p: "sampling_params.top_p",
        top_k: "sampling_params.top_k",
        stop: "sampling_params.stop",
        topk_prompt_logprobs: "topk_prompt_logprobs",
        topk_sample_logprobs: "topk_sample_logprobs",
    };
}

/// `seed` is used where the user gave none.
pub fn sample(
    wire: WireRequest,
    source: SampleSource,
    model: &ModelInfo,
    max_samples: usize,
    seed: u64,
    names: &Names,
) -> Result<Checked> {
    let prompt = tokens::sequence(&wire.prompt, "prompt", model)?;
    let params = params(&wire.sampling_params, prompt.len(), model, seed, names)?;
    let num_samples = count(names.num_samples, wire.num_samples, 1, max_samples)?;
    let top_limit = MAX_TOPK.min(model.vocab_size);
    let (prompt_targets, targets) = match &wire.target_prompt_logprobs {
        None => (None, None),
        Some(t) => {
            let (ids, layout) = prompt_targets(t, prompt.len(), model)?;
            (Some(ids), Some(layout))
        }
    };
    let topk = |name, k| count(name, k, 0, top_limit);
    let request = SampleRequest {
        base: model.name.clone(),
        source,
        num_samples,
        params,
        prompt_logprobs: wire.prompt_logprobs,
        prompt_logprobs_last_n: last_n(&wire, prompt.len())?,
        topk_prompt_logprobs: topk(names.topk_prompt_logprobs, wire.topk_prompt_logprobs)?,
        topk_sample_logprobs: topk(names.topk_sample_logprobs, wire.topk_sample_logprobs)?,
        prompt_targets,
        prompt_alt_tokens_k: topk("prompt_alt_tokens_k", wire.prompt_alt_tokens_k)?,
        prompt,
    };
    bounded(&request, targets.as_ref(), names)?;
    Ok(Checked { request, targets })
}

/// The result must not be larger than 2^25 cells, whatever the work would be.
fn bounded(r: &SampleRequest, targets: Option<&TargetLayout>, names: &Names) -> Result<()> {
    let sampled = r.num_samples.saturating_mul(r.params.max_tokens).saturating_mul(1 + r.topk_sample_logprobs);
    if sampled > MAX_CELLS {
        return Err(Error::user(format!(
            "{} {} × {} {} × (1 + {} {}) is {sampled}; the limit of one request is {MAX_CELLS}",
            names.num_samples,
            r.num_samples,
            names.max_tokens,
            r.params.max_tokens,
            names.topk_sample_logprobs,
            r.topk_sample_logprobs
        )));
    }
    let length = r.prompt.len();
    let per_token = 1 + r.topk_prompt_logprobs + r.prompt_alt_tokens_k;
    let scored = length.saturating_mul(per_token) + targets.map_or(0, |t| t.rows * t.k);
    if scored > MAX_CELLS {
        return Err(Error::user(format!(
            "{length} prompt tokens × (1 + {} {} + prompt_alt_tokens_k {}) and the elements of target_prompt_logprobs are \
             {scored} together; the limit of one request is {MAX_CELLS}",
            names.topk_prompt_logprobs, r.topk_prompt_logprobs, r.prompt_alt_tokens_k
        )));
    }
    Ok(())
}

fn params(wire: &WireParams, prompt_len: usize, model: &ModelInfo, seed: u64, names: &Names) -> Result<SamplingParams> {
    let bad =
        |name: &str, value: f64, wanted: &str| Err(Error::user(format!("{name} is {value}; it must be {wanted}")));
    if !wire.temperature.is_finite() || wire.temperature < 0.0 {
        return bad(names.temperature, wire.temperature, "a finite number ≥ 0 (0 = greedy)");
    }
    if !(wire.top_p > 0.0 && wire.top_p <= 1.0) {
        return bad(names.top_p, wire.top_p, "above 0 and at most 1");
    }
    if wire.top_k < -1 {
        return bad(names.top_k, wire.top_k as f64, "-1 or 0 (off), or the number of candidates");
    }
    Ok(SamplingParams {
        max_tokens: max_tokens(wire.max_tokens, prompt_len, model, names.max_tokens)?,
        seed: wire.seed.unwrap_or(seed),
        stop: stop(wire.stop.as_ref(), model, names.stop)?,
        temperature: positive_f32(wire.temperature),
        top_k: wire.top_k.max(0) as usize,
        top_p: positive_f32(wire.top_p),
    })
}

/// 0, or the nearest float that is neither 0 nor infinite: both mean something else.
fn positive_f32(x: f64) -> f32 {
    if x == 0.0 { 0.0 } else { (x as f32).clamp(f32::from_bits(1), f32::MAX) }
}

/// Prompt and sample must fit into the context. One token more than that is fine for `max_tokens=1`, which scores a
/// prompt: nothing is computed at the position of the last sampled token.
fn max_tokens(wanted: Option<i64>, prompt_len: usize, model: &ModelInfo, name: &str) -> Result<usize> {
    let context = model.max_context_length;
    if prompt_len > context {
        return Err(Error::user(format!(
            "the prompt has {prompt_len} tokens; the context length of {} is {context}",
            model.name
        )));
    }
    let Some(wanted) = wanted else { return Ok((context - prompt_len).max(1)) };
    let n = count(name, wanted, 1, usize::MAX)?;
    if n > 1 && prompt_len.saturating_add(n) > context {
        return Err(Error::user(format!(
            "the prompt has {prompt_len} tokens and max_tokens is {n}: together more than the context length {context} \
             of {}",
            model.name
        )));
    }
    Ok(n)
}

fn last_n(wire: &WireRequest, prompt_len: usize) -> Result<Option<usize>> {
    let Some(n) = wire.prompt_logprobs_last_n else { return Ok(None) };
    if !wire.prompt_logprobs {
        return Err(Error::user("prompt_logprobs_last_n needs prompt_logprobs=true"));
    }
    if prompt_len == 1 {
        return Err(Error::user(format!(
            "prompt_logprobs_last_n is {n}, but a prompt of one token has no logprobs: nothing precedes it"
        )));
    }
    count("prompt_logprobs_last_n", n, 1, prompt_len - 1).map(Some)
}

fn count(name: &str, value: i64, min: usize, max: usize) -> Result<usize> {
    let n = usize::try_from(value).ok().filter(|n| (min..=max).contains(n));
    n.ok_or_else(|| match max {
        usize::MAX => Error::user(format!("{name} is {value}; it must be at least {min}")),
        _ => Error::user(format!("{name} is {value}; it must lie between {min} and {max}")),
    })
}

/// Ids of shape (prompt length − 1, K), −1 and absent CSR cells meaning nothing asked.
fn prompt_targets(t: &TensorData, prompt_len: usize, model: &ModelInfo) -> Result<(PromptTargets, TargetLayout)> {
    let bad = |why: String| Error::user(format!("target_prompt_logprobs: {why}"));
    Padding::new(MAX_PADDING).admit("target_prompt_logprobs", t, model)?;
    let dense = t.to_dense(-1, MAX_CELLS).map_err(bad)?;
    let &[rows, k] = &dense.shape[..] else {
        return Err(bad(format!("shape {:?} must be [prompt length - 1, K]", dense.shape)));
    };
    if rows != prompt_len - 1 {
        return Err(bad(format!(
            "{rows} rows for a prompt of {prompt_len} tokens; row i belongs to position i + 1, so there must be {}",
            prompt_len - 1
        )));
    }
    let ids = dense.values.into_i64().map_err(bad)?;
    let cell = |(i, &id): (usize, &i64)| match id {
        -1 => Ok(None),
        _ => tokens::id(id, "target_prompt_logprobs", i, model).map(Some),
    };
    let flat: Vec<Option<u32>> = ids.iter().enumerate().map(cell).collect::<Result<_>>()?;
    let targets = (0..rows).map(|r| flat[r * k..(r + 1) * k].to_vec()).collect();
    let sparse = t.csr.as_ref().map(|c| Csr { crow: c.crow.clone(), col: c.col.clone() });
    Ok((targets, TargetLayout { rows, k, sparse }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Stop;
    use tinderbox_client::types::model_input::ModelInput;
    use tinderbox_client::types::tensor_data::CsrIndices;

    fn wire(prompt: &[i64], change: impl FnOnce(&mut WireRequest)) -> WireRequest {
        let params = WireParams { max_tokens: Some(2), ..WireParams::default() };
        let mut w = WireRequest::new("s", ModelInput::from_ints(prompt.iter().copied()), params);
        change(&mut w);
        w
    }

    fn check(prompt: &[i64], change: impl FnOnce(&mut WireRequest)) -> Result<Checked> {
        sample(wire(prompt, change), SampleSource::Base, &tokens::tiny_model(), 16, 77, &Names::TINKER)
    }

    #[test]
    fn defaults() {
        let r = check(&[1, 2], |_| {}).unwrap().request;
        assert_eq!((r.num_samples, r.params.max_tokens, r.params.seed), (1, 2, 77));
        assert_eq!((r.params.temperature, r.params.top_k, r.params.top_p), (1.0, 0, 1.0));
        assert_eq!(r.params.stop, Stop::Eos);
        assert_eq!(check(&[1], |w| w.sampling_params.seed = Some(3)).unwrap().request.params.seed, 3);
    }

    #[test]
    fn the_context_limit_counts_prompt_and_sample() {
        let with = |n: usize, max: Option<i64>| check(&vec![1; n], |w| w.sampling_params.max_tokens = max);
        assert_eq!(with(6, None).unwrap().request.params.max_tokens, 2);
        assert!(with(6, Some(2)).is_ok());
        let e = with(6, Some(3)).unwrap_err().message;
        assert!(e.contains('6') && e.contains('3') && e.contains('8'), "{e}");
        assert!(with(8, Some(1)).is_ok());
        assert!(with(9, Some(1)).unwrap_err().message.contains("context"));
    }

    #[test]
    fn values_out_of_range_are_named() {
        type Change = fn(&mut WireRequest);
        let cases: [(&str, Change); 10] = [
            ("num_samples", |w| w.num_samples = 0),
            ("num_samples", |w| w.num_samples = 17),
            ("sampling_params.max_tokens", |w| w.sampling_params.max_tokens = Some(-1)),
            ("max_tokens", |w| w.sampling_params.max_tokens = Some(0)),
            ("sampling_params.temperature", |w| w.sampling_params.temperature = -0.5),
            ("top_p", |w| w.sampling_params.top_p = 1.5),
            ("top_k", |w| w.sampling_params.top_k = -5),
            ("topk_prompt_logprobs", |w| w.topk_prompt_logprobs = -1),
            ("prompt_logprobs_last_n", |w| w.prompt_logprobs_last_n = Some(1)),
            ("prompt_logprobs_last_n", |w| (w.prompt_logprobs, w.prompt_logprobs_last_n) = (true, Some(2))),
        ];
        for (name, change) in cases {
            assert!(check(&[1, 2], change).unwrap_err().message.contains(name), "{name}");
        }
        assert!(check(&[], |_| {}).unwrap_err().message.contains("empty"));
    }

    #[test]
    fn a_temperature_that_floats_cannot_hold_stays_what_it_is() {
        let taken = |t| check(&[1], |w| w.sampling_params.temperature = t).unwrap().request.params.temperature;
        assert_eq!([0.0, -0.0, 0.5, 1e-30].map(taken), [0.0, 0.0, 0.5, 1e-30]);
        assert_eq!([1e-46, 1e-320].map(taken), [f32::from_bits(1); 2], "not greedy, whose logprobs are those of 1");
        assert_eq!(taken(1e300), f32::MAX);
        let p = check(&[1], |w| w.sampling_params.top_p = 1e-60).unwrap().request.params.top_p;
        assert_eq!(p, f32::from_bits(1));
    }

    #[test]
    fn large_results_are_refused_before_the_work() {
        let wide = ModelInfo { vocab_size: 2000, max_context_length: 1 << 20, ..tokens::tiny_model() };
        let refused = |length: usize, change: &dyn Fn(&mut WireRequest)| {
            sample(wire(&vec![1; length], |w| change(w)), SampleSource::Base, &wide, 4096, 7, &Names::TINKER)
                .map_err(|e| e.message)
        };
        let many = |topk: i64| {
            move |w: &mut WireRequest| {
                (w.num_samples, w.topk_sample_logprobs) = (4096, topk);
                w.sampling_params.max_tokens = Some(4096);
            }
        };
        assert!(refused(1, &many(1)).is_ok());
        let e = refused(1, &many(2)).unwrap_err();
        assert!(e.contains("num_samples 4096 × sampling_params.max_tokens 4096") && e.contains("33554432"), "{e}");
        let e = refused(40_000, &|w| w.topk_prompt_logprobs = 1000).unwrap_err();
        assert!(e.contains("topk_prompt_logprobs 1000"), "{e}");
        let e = refused(40_000, &|w| w.prompt_alt_tokens_k = 1000).unwrap_err();
        assert!(e.contains("prompt_alt_tokens_k 1000"), "{e}");
        let empty = |rows: i64, k: i64| {
            let mut csr = TensorData::from_i64([]).with_shape([rows, k]);
            csr.csr = Some(CsrIndices { crow: vec![0; rows as usize + 1], col: vec![] });
            csr
        };
        let e = refused(3, &|w| w.target_prompt_logprobs = Some(empty(2, 1 << 24))).unwrap_err();
        assert!(e.contains("target_prompt_logprobs") && e.contains("vocabulary"), "{e}");
        let e = refused(3001, &|w| w.target_prompt_logprobs = Some(empty(3000, 1000))).unwrap_err();
        assert!(e.contains("may be empty"), "{e}");
    }

    #[test]
    fn one_token_has_nothing_to_score() {
        let e = check(&[1], |w| (w.prompt_logprobs, w.prompt_logprobs_last_n) = (true, Some(1))).unwrap_err();
        assert!(e.message.contains("a prompt of one token"), "{e}");
    }

    #[test]
    fn targets_keep_their_layout() {
        let dense = TensorData::from_i64([3, -1, 4, 5]).with_shape([2, 2]);
        let c = check(&[1, 2, 3], |w| w.target_prompt_logprobs = Some(dense)).unwrap();
        assert_eq!(c.request.prompt_targets, Some(vec![vec![Some(3), None], vec![Some(4), Some(5)]]));
        assert_eq!(c.targets, Some(TargetLayout { rows: 2, k: 2, sparse: None }));

        let mut csr = TensorData::from_i64([7]).with_shape([2, 2]);
        csr.csr = Some(CsrIndices { crow: vec![0, 0, 1], col: vec![1] });
        let c = check(&[1, 2, 3], |w| w.target_prompt_logprobs = Some(csr)).unwrap();
        assert_eq!(c.request.prompt_targets, Some(vec![vec![None, None], vec![None, Some(7)]]));
        assert_eq!(c.targets.unwrap().sparse, Some(Csr { crow: vec![0, 0, 1], col: vec![1] }));

        let short = TensorData::from_i64([3, 4]).with_shape([1, 2]);
        assert!(check(&[1, 2, 3], |w| w.target_prompt_logprobs = Some(short)).unwrap_err().message.contains("rows"));
    }
}
