//! What is created, and with which optimiser settings it is stepped.

use tinderbox_client::types::json_text::JsonText;
use tinderbox_client::types::training::{
    AdamParams as WireAdam, CreateModelRequest, LoraConfig as WireLora, OptimizerConfig,
};

use crate::command::{AdamParams, LoraConfig, RunKind};
use crate::error::{Error, Result};

/// Names a base model with every weight trained.
pub const FULL_SUFFIX: &str = ":full";

/// A base model's served name and whether `:full` was asked for.
pub fn base_name(name: &str) -> (&str, bool) {
    match name.strip_suffix(FULL_SUFFIX) {
        Some(base) => (base, true),
        None => (name, false),
    }
}

/// What `create_model` is to train; `seed` is used where the user gave none.
pub fn kind(request: &CreateModelRequest, max_rank: usize, seed: u64) -> Result<RunKind> {
    optimizer(&request.optimizer_config)?;
    let (base, full) = base_name(&request.base_model);
    match &request.lora_config {
        Some(lora) if !full => Ok(RunKind::Lora(lora_config(lora, base, max_rank, seed)?)),
        _ => Ok(RunKind::Full),
    }
}

/// AdamW is the one optimiser there is.
pub fn optimizer(config: &OptimizerConfig) -> Result<()> {
    if config.kind == "adamw" {
        return Ok(());
    }
    Err(Error::user(format!(
        "optimizer_config: type {:?} is not offered here; use {{\"type\": \"adamw\"}}",
        config.kind
    )))
}

/// One step's settings, each in its range, which is what float32 can say: the step is computed in it.
pub fn adam(params: Option<&WireAdam>, other: Option<&JsonText>) -> Result<AdamParams> {
    if other.is_some() {
        return Err(Error::user("optimizer_params are for other optimisers; runs here use adamw: send adam_params"));
    }
    let p = params.ok_or_else(|| Error::user("adam_params are missing"))?;
    let at_least_zero = |name, x: f64| range(name, x, x.is_finite() && x >= 0.0, "a finite number ≥ 0");
    let finite = |x: f64| (x as f32).is_finite();
    let single =
        |name, x: f64| range(name, x, x >= 0.0 && finite(x), "a number ≥ 0 and at most 3.4e38, float32's largest");
    let beta = |name, x: f64| range(name, x, (0.0..1.0).contains(&x), "0 ≤ beta < 1");
    // A weight without gradients divides 0 by it.
    let eps_wanted = "at least 1.4e-45, float32's smallest number above 0, and at most 3.4e38, its largest";
    let decay = p.learning_rate * p.weight_decay;
    let (learning_rate, weight_decay) =
        (single("learning_rate", p.learning_rate)?, single("weight_decay", p.weight_decay)?);
    range("learning_rate × weight_decay", decay, finite(decay), "at most 3.4e38, float32's largest number")?;
    Ok(AdamParams {
        learning_rate,
        beta1: beta("beta1", p.beta1)?,
        beta2: beta("beta2", p.beta2)?,
        eps: range("eps", p.eps, p.eps as f32 > 0.0 && finite(p.eps), eps_wanted)?,
        weight_decay,
        grad_clip_norm: at_least_zero("grad_clip_norm", p.grad_clip_norm)?,
    })
}

fn lora_config(lora: &WireLora, base: &str, max_rank: usize, seed: u64) -> Result<LoraConfig> {
    let rank = usize::try_from(lora.rank).ok().filter(|r| *r >= 1).ok_or_else(|| {
        Error::user(format!(
            "lora_config.rank is {}; it must be at least 1. To train every weight instead of an adapter, use \
             base_model=\"{base}{FULL_SUFFIX}\"",
            lora.rank
        ))
    })?;
    if rank > max_rank {
        return Err(Error::user(format!("lora_config.rank is {rank}; the limit of this server is {max_rank}")));
    }
    if !(lora.train_attn || lora.train_mlp || lora.train_unembed) {
        return Err(Error::user("lora_config: one of train_attn, train_mlp and train_unembed must be true"));
    }
    Ok(LoraConfig {
        rank,
        seed: lora.seed.unwrap_or(seed),
        train_attn: lora.train_attn,
        train_mlp: lora.train_mlp,
        train_unembed: lora.train_unembed,
    })
}

fn range(name: &str, x: f64, ok: bool, wanted: &str) -> Result<f64> {
    if ok { Ok(x) } else { Err(Error::user(format!("adam_params.{name} is {x}; it must be {wanted}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(base: &str, lora: Option<WireLora>) -> CreateModelRequest {
        CreateModelRequest {
            session_id: "s".into(),
            model_seq_id: 0,
            base_model: base.into(),
            user_metadata: None,
            lora_config: lora,
            optimizer_config: OptimizerConfig::default(),
        }
    }

    fn rank(rank: i64) -> Result<RunKind> {
        kind(&request("m", Some(WireLora { rank, ..WireLora::default() })), 64, 5)
    }

    #[test]
    fn an_adapter_or_every_weight() {
        let RunKind::Lora(lora) = rank(8).unwrap() else { panic!("not an adapter") };
        assert_eq!(
            (lora.rank, lora.seed, lora.train_attn, lora.train_mlp, lora.train_unembed),
            (8, 5, true, true, true)
        );
        assert_eq!(kind(&request("m:full", Some(WireLora::default())), 64, 5).unwrap(), RunKind::Full);
        assert_eq!(kind(&request("m", None), 64, 5).unwrap(), RunKind::Full);
        assert_eq!(base_name("org/m:full"), ("org/m", true));
    }

    #[test]
    fn wrong_ranks() {
        for bad in [0, -1] {
            assert!(rank(bad).unwrap_err().message.contains("base_model=\"m:full\""));
        }
        assert!(rank(65).unwrap_err().message.contains("64"));
        assert!(rank(1_000_000).is_err());
    }

    #[test]
    fn other_optimizers_are_refused() {
        let mut r = request("m", Some(WireLora::default()));
        r.optimizer_config.kind = "dimuon".into();
        let e = kind(&r, 64, 5).unwrap_err().message;
        assert!(e.contains("dimuon") && e.contains("adamw"), "{e}");
        assert!(adam(None, Some(&serde_json::from_str("{}").unwrap())).unwrap_err().message.contains("adam_params"));
    }

    #[test]
    fn adam_ranges() {
        let default = WireAdam::default();
        assert_eq!(adam(Some(&default), None).unwrap(), AdamParams::default());
        let cases = [
            ("beta1", WireAdam { beta1: 1.5, ..default.clone() }),
            ("beta1", WireAdam { beta1: 1.0, ..default.clone() }),
            ("beta2", WireAdam { beta2: -0.1, ..default.clone() }),
            ("learning_rate", WireAdam { learning_rate: -1.0, ..default.clone() }),
            ("learning_rate", WireAdam { learning_rate: f64::NAN, ..default.clone() }),
            ("eps", WireAdam { eps: -1.0, ..default.clone() }),
            ("eps is 0;", WireAdam { eps: 0.0, ..default.clone() }),
            ("1.4e-45", WireAdam { eps: 1e-50, ..default.clone() }),
            ("eps is NaN;", WireAdam { eps: f64::NAN, ..default.clone() }),
            ("3.4e38", WireAdam { eps: 1e39, ..default.clone() }),
            ("learning_rate is 1000000", WireAdam { learning_rate: 1e39, ..default.clone() }),
            ("weight_decay is 1000000", WireAdam { weight_decay: 1e39, ..default.clone() }),
            ("learning_rate × weight_decay", WireAdam { learning_rate: 1e20, weight_decay: 1e20, ..default.clone() }),
            ("weight_decay", WireAdam { weight_decay: f64::INFINITY, ..default.clone() }),
            ("grad_clip_norm", WireAdam { grad_clip_norm: -1.0, ..default.clone() }),
        ];
        for (name, params) in cases {
            assert!(adam(Some(&params), None).unwrap_err().message.contains(name), "{name}");
        }
        assert!(adam(None, None).is_err());
        let odd = WireAdam { eps: 1e-44, learning_rate: 1e18, grad_clip_norm: 1e300, ..default };
        assert!(adam(Some(&odd), None).is_ok());
    }
}
