//! What the engine is asked to do and what it answers: checked, plain values without wire or tensor types.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{ModelId, OwnerId, RequestId, SamplerId, SessionId};
use crate::loss::custom::Program;

/// One training example, already checked: every vector has the length of `tokens`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Datum {
    /// Model input (T,), every id below the vocabulary's size.
    pub tokens: Vec<u32>,
    /// Target ids, row-major (T, K).
    pub targets: Vec<u32>,
    /// Targets per position.
    pub k: usize,
    /// True when the client's targets were (T, K), so that outputs take that shape even for K = 1.
    pub two_dimensional: bool,
    pub inputs: LossInputs,
}

/// The further loss inputs of one datum. `weights` is (T, K), the others (T,).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LossInputs {
    pub weights: Option<Vec<f32>>,
    /// Sampler's logprobs q.
    pub logprobs: Option<Vec<f32>>,
    pub advantages: Option<Vec<f32>>,
    pub sequence_ratio_mask: Option<Vec<f32>>,
    /// What a custom loss reads beside its logprobs, in the order it takes them.
    pub named: Vec<NamedInput>,
}

/// A tensor that a custom loss reads, of any shape of its rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamedInput {
    pub shape: Vec<usize>,
    pub numbers: Numbers,
}

/// Row-major values of one of the two dtypes that the wire has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Numbers {
    F32(Vec<f32>),
    I64(Vec<i64>),
}

/// A loss and its configuration, defaults filled in (protocol §14.2).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Loss {
    CrossEntropy,
    ImportanceSampling,
    Ppo {
        clip_low: f64,
        clip_high: f64,
    },
    Cispo {
        clip_low: f64,
        clip_high: f64,
    },
    Dro {
        beta: f64,
    },
    Gspo {
        clip_low: f64,
        clip_high: f64,
    },
    /// Our documented reading of an unpublished loss: see `loss/stable_reinforce.rs`.
    StableReinforce {
        kl_coeff: f64,
    },
    /// Uploaded by its user (protocol ch. 15).
    Custom(Arc<Program>),
}

/// AdamW's settings for one step (protocol §14.4).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamParams {
    pub learning_rate: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    /// Limit of the global gradient norm; 0 = no clipping.
    pub grad_clip_norm: f64,
}

impl Default for AdamParams {
    fn default() -> Self {
        Self { learning_rate: 1e-4, beta1: 0.9, beta2: 0.95, eps: 1e-12, weight_decay: 0.0, grad_clip_norm: 0.0 }
    }
}

/// Which matrices carry an adapter and how it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoraConfig {
    pub rank: usize,
    /// Drawn by the caller when the user gave none, so that a run can be repeated.
    pub seed: u64,
    pub train_attn: bool,
    pub train_mlp: bool,
    pub train_unembed: bool,
}

/// What is trained: an adapter, or every weight in a private copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunKind {
    Lora(LoraConfig),
    Full,
}

/// Weights and, for `optimizer`, moments and step count of a training checkpoint directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restore {
    pub dir: PathBuf,
    pub optimizer: bool,
}

/// When generation ends (protocol §8.3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stop {
    /// No `stop` given: the model's own end-of-sequence ids.
    Eos,
    /// `stop: []`: nothing but `max_tokens`.
    Never,
    /// Any of these ids, or EOS.
    Tokens(Vec<u32>),
    /// The decoded text contains any of these, or EOS.
    Strings(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    pub max_tokens: usize,
    /// Drawn by the caller when the user gave none.
    pub seed: u64,
    pub stop: Stop,
    /// 0 = greedy.
    pub temperature: f32,
    /// 0 = off.
    pub top_k: usize,
    pub top_p: f32,
}

/// Whose weights a sample comes from. `base` is the served name of the base model.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SampleSource {
    Base,
    /// What the engine keeps for this sampler: a snapshot, or its run's in-flight weights.
    Snapshot(SamplerId),
    /// A saved checkpoint's directory.
    Checkpoint(PathBuf),
}

/// Layout in which `prompt_targets` were given: the answer takes the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetLayout {
    pub rows: usize,
    pub k: usize,
    pub sparse: Option<Csr>,
}

/// The pattern of a CSR matrix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Csr {
    /// Row pointers, length rows + 1.
    pub crow: Vec<i64>,
    pub col: Vec<i64>,
}

/// Target ids whose prompt logprobs are wanted: row i belongs to prompt position i + 1; `None` = nothing asked.
pub type PromptTargets = Vec<Vec<Option<u32>>>;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleRequest {
    pub base: String,
    pub source: SampleSource,
    pub prompt: Vec<u32>,
    pub num_samples: usize,
    pub params: SamplingParams,
    pub prompt_logprobs: bool,
    /// Score only the last n prompt tokens.
    pub prompt_logprobs_last_n: Option<usize>,
    pub topk_prompt_logprobs: usize,
    pub topk_sample_logprobs: usize,
    pub prompt_targets: Option<PromptTargets>,
    pub prompt_alt_tokens_k: usize,
}

/// Where and how a run's weights are written. Every directory is new and becomes visible only when complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Save {
    /// Weights, optimiser state, step count: everything `Restore` needs.
    Training { dir: PathBuf },
    /// Weights only, in PEFT layout (adapter) or Transformers layout (full).
    Sampler { dir: PathBuf },
    /// As `Sampler`, each file age-encrypted when recipients are given.
    External { dir: PathBuf, recipients: Vec<String> },
    /// A snapshot kept by the engine under this sampler's id.
    Snapshot { sampler: SamplerId },
    /// These weights become those of all in-flight samplers of the run, this one among them, between two tokens.
    Inflight { sampler: SamplerId },
}

/// A command on a run takes effect in `seq_id` order; creation is number 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RunCommand {
    Create {
        base: String,
        kind: RunKind,
        restore: Option<Restore>,
    },
    /// As `Create`, from the state file of a run that was there before this process; its number is the last one that the
    /// state holds.
    Revive {
        base: String,
        kind: RunKind,
        state: PathBuf,
    },
    ForwardBackward {
        data: Vec<Datum>,
        loss: Loss,
        forward_only: bool,
    },
    OptimStep(AdamParams),
    Save(Save),
    Load(Restore),
    Unload,
    /// Weights and moments become those of the run's last state on disk; pending gradients are dropped.
    RollBack,
    /// What a refused step did: the accumulated gradient is dropped.
    DropGradient,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Command {
    Run { owner: OwnerId, model: ModelId, seq: u64, command: RunCommand },
    Sample { origin: Origin, request: SampleRequest },
}

/// Who asked for a sample: slots are shared among owners, and a session's end or a cancelled promise frees them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Origin {
    pub owner: OwnerId,
    pub session: SessionId,
    pub promise: RequestId,
}

/// Why a run's next step is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The request whose numbers were not finite.
    pub seq_id: u64,
    /// The first datum of it that is to blame.
    pub datum: usize,
    pub reason: String,
}

/// One float32 array per datum, with the trailing shape `[]` or `[K]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DatumOutput {
    pub logprobs: Vec<f32>,
    pub k: usize,
    pub two_dimensional: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    Stop,
    Length,
}

/// A token of a running sample, told as soon as it is drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenEvent {
    /// Which of the request's samples it belongs to.
    pub sample: usize,
    pub token: u32,
    pub logprob: f32,
    /// The best alternatives, when `topk_sample_logprobs` asked for them.
    pub topk: Option<TopK>,
    /// Set with the sample's last token.
    pub stop_reason: Option<StopReason>,
}

/// k (token, logprob) pairs, best first.
pub type TopK = Vec<(u32, f32)>;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sequence {
    pub tokens: Vec<u32>,
    pub logprobs: Vec<f32>,
    pub stop_reason: StopReason,
    /// One row per generated token, when asked for.
    pub topk: Option<Vec<TopK>>,
    /// For each token the `seq_id` of the save whose weights it was drawn from; 0 for base models and checkpoints.
    pub weight_versions: Vec<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SampleOutput {
    pub sequences: Vec<Sequence>,
    /// One entry per prompt token; `NaN` where not computed.
    pub prompt_logprobs: Option<Vec<f32>>,
    /// One row per prompt token; empty where not computed.
    pub topk_prompt_logprobs: Option<Vec<TopK>>,
    /// Same shape as the request's targets; 0.0 where nothing was asked.
    pub target_prompt_logprobs: Option<Vec<Vec<f32>>>,
    /// Row i: k tokens drawn from the distribution at prompt position i + 1, with their logprobs.
    pub prompt_alt_tokens: Option<Vec<TopK>>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Created,
    ForwardBackward {
        outputs: Vec<DatumOutput>,
        metrics: Vec<(String, f64)>,
    },
    OptimStep {
        metrics: Vec<(String, f64)>,
    },
    /// Bytes on disk; 0 for a snapshot.
    Saved {
        size_bytes: u64,
    },
    Loaded,
    Unloaded,
    /// To the state before this number.
    RolledBack {
        next: u64,
    },
    Sampled(SampleOutput),
}
