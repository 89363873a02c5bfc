//! Logprobs, gradients and greedy paths of five architectures against the reference values in `tests/golden`.
//!
//! `TINDERBOX_TEST_DEVICE` (flex, wgpu, …) points the same tests at another device.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::{DType, Device};
use safetensors::SafeTensors;
use tinderbox::command::LoraConfig;
use tinderbox::config::device::DeviceChoice;
use tinderbox::kernels::{self, Pass, RopeTable, download, upload};
use tinderbox::model::batch::Batch;
use tinderbox::model::config::DecoderConfig;
use tinderbox::model::decoder::Budget;
use tinderbox::model::grads::Grads;
use tinderbox::model::head::PassTargets;
use tinderbox::model::import::Import;
use tinderbox::model::kv_cache::{KvCache, Stretch};
use tinderbox::model::layer::Context;
use tinderbox::model::params::{Param, Site};
use tinderbox::model::rope;
use tinderbox::model::weights::{Adapter, BaseWeights};

const ARCHS: [&str; 5] = ["llama", "qwen2", "qwen3", "qwen3_untied", "llama_rope"];
const DATUMS: usize = 3;
/// Everything kept; and nothing kept, so that layers and logits are computed again.
const BUDGETS: [Budget; 2] =
    [Budget { activations: usize::MAX, logits: usize::MAX }, Budget { activations: 0, logits: 0 }];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

struct Expected(HashMap<String, Vec<f32>>);

impl Expected {
    fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let values = |t: safetensors::tensor::TensorView| -> Vec<f32> {
            let words = t.data().chunks_exact(4).map(|b| <[u8; 4]>::try_from(b).unwrap());
            match t.dtype() {
                safetensors::Dtype::I32 => words.map(|b| i32::from_le_bytes(b) as f32).collect(),
                _ => words.map(f32::from_le_bytes).collect(),
            }
        };
        Self(file.tensors().into_iter().map(|(name, t)| (name, values(t))).collect())
    }

    fn get(&self, name: &str) -> &[f32] {
        self.0.get(name).unwrap_or_else(|| panic!("no {name} in the golden file"))
    }

    fn ids(&self, name: &str) -> Vec<u32> {
        self.get(name).iter().map(|x| *x as u32).collect()
    }
}

struct Case {
    arch: &'static str,
    device: Device,
    weights: BaseWeights,
    rope: RopeTable,
    expected: Expected,
    tokens: Vec<Vec<u32>>,
    targets: PassTargets,
    /// −weight: the derivative of the cross-entropy sum with respect to each logprob.
    d_logprobs: Vec<f32>,
}

impl Case {
    fn load(arch: &'static str) -> Self {
        let dir = golden(arch);
        #[expect(clippy::disallowed_methods, reason = "a test's own switch")]
        let name = std::env::var("TINDERBOX_TEST_DEVICE").unwrap_or_else(|_| "flex".into());
        let device = tinderbox::device::open(&name.parse::<DeviceChoice>().unwrap()).unwrap();
        let config = Arc::new(DecoderConfig::from_dir(&dir).unwrap());
        let import = Import::open(&dir, &config).unwrap();
        let weights = BaseWeights::load(config.clone(), &import, DType::F32, &device).unwrap();
        let expected = Expected::read(&dir.join("expected.safetensors"));
        let all = |what: &str| (0..DATUMS).map(|i| expected.ids(&format!("datum.{i}.{what}"))).collect::<Vec<_>>();
        let (tokens, ids) = (all("tokens"), all("targets").concat());
        let offsets = (0..=ids.len()).collect();
        let weight = |i: usize| expected.get(&format!("datum.{i}.weights")).iter().map(|w| -w).collect::<Vec<_>>();
        let d_logprobs = (0..DATUMS).flat_map(weight).collect();
        let rope = rope::table(&config, 64, &device);
        Self { arch, device, weights, rope, expected, tokens, targets: PassTargets { offsets, ids }, d_logprobs }
    }

    fn adapter(&self) -> Adapter {
        let rank = self.expected.get("lora.rank")[0] as usize;
        let c = &self.weights.config;
        let both = |site: Site| {
            let ((inputs, outputs), m) = (site.sizes(c), site.module());
            let side = |s: &str, shape| {
                upload(self.expected.get(&format!("lora.{m}.lora_{s}.weight")).to_vec(), shape, &self.device)
            };
            [side("A", [rank, inputs]), side("B", [outputs, rank])]
        };
        let mats = Site::chosen(c, true, true, true).into_iter().flat_map(both).collect();
        let config = LoraConfig { rank, seed: 0, train_attn: true, train_mlp: true, train_unembed: true };
        Adapter::new(config, c, mats)
    }

    fn context<'a>(&'a self, pass: Pass, batch: &'a Batch<'a>) -> Context<'a> {
        let kernels = kernels::for_device(&self.device);
        Context { kernels, weights: &self.weights, rope: &self.rope, pass, batch }
    }

    fn check_logprobs(&self, got: &[f32], kind: &str) {
        let want: Vec<f32> =
            (0..DATUMS).flat_map(|i| self.expected.get(&format!("datum.{i}.logprobs.{kind}")).to_vec()).collect();
        close(got, &want, 2e-5, &format!("{} logprobs.{kind}", self.arch));
    }

    /// Forward and backward; gradients by position.
    fn gradients(&self, adapter: Option<&Adapter>, budget: Budget) -> Vec<Vec<f32>> {
        let batch = Batch::pack(vec![(adapter, self.tokens.clone())]);
        let context = self.context(Pass::Train, &batch);
        let mats = adapter.map_or(self.weights.mats(), |a| a.mats());
        let mut grads = vec![Grads::new(mats.len())];
        let forward = context.forward_all(&self.targets, budget, &mut || {});
        self.check_logprobs(&forward.logprobs, if adapter.is_some() { "lora" } else { "base" });
        let full = adapter.is_none();
        context.backward_all(&self.targets, forward, &self.d_logprobs, &mut grads, full, &mut || {});
        grads[0].mats().iter().map(|g| download(g.clone().expect("every matrix has a gradient"))).collect()
    }
}

fn close(got: &[f32], want: &[f32], tolerance: f32, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: count");
    let worst =
        got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0.0, |m: f32, d| if d > m || d.is_nan() { d } else { m });
    assert!(worst <= tolerance, "{what}: off by {worst:e}, tolerance {tolerance:e}");
}

/// Per tensor: max |Δ| ≤ 1e-5 + 1e-4 · max |g|.
fn close_gradient(got: &[f32], want: &[f32], what: &str) {
    let largest = want.iter().fold(0f32, |m, g| m.max(g.abs()));
    assert!(largest > 1e-4, "{what}: the check is void, the gradient is zero");
    close(got, want, 1e-5 + 1e-4 * largest, what);
}

#[test]
fn lora_gradients() {
    for arch in ARCHS {
        let case = Case::load(arch);
        let adapter = case.adapter();
        for budget in BUDGETS {
            let got = case.gradients(Some(&adapter), budget);
            for (i, site) in Site::chosen(&case.weights.config, true, true, true).iter().enumerate() {
                for (side, got) in ["A", "B"].iter().zip(&got[2 * i..2 * i + 2]) {
                    let name = format!("lora_grad.{}.lora_{side}.weight", site.module());
                    close_gradient(got, case.expected.get(&name), &format!("{arch} {name}"));
                }
            }
        }
    }
}

#[test]
fn full_gradients() {
    for arch in ARCHS {
        let case = Case::load(arch);
        for budget in BUDGETS {
            let got = case.gradients(None, budget);
            for (param, got) in Param::all(&case.weights.config).into_iter().zip(got) {
                let name = format!("grad.{}", param.hf_name());
                close_gradient(&got, case.expected.get(&name), &format!("{arch} {name}"));
            }
        }
    }
}

#[test]
fn forward_only_and_sampling_passes_agree_with_the_reference() {
    for arch in ARCHS {
        let case = Case::load(arch);
        let adapter = case.adapter();
        for (adapter, kind) in [(None, "base"), (Some(&adapter), "lora")] {
            let batch = Batch::pack(vec![(adapter, case.tokens.clone())]);
            for pass in [Pass::Train, Pass::Sample] {
                let logprobs = case.context(pass, &batch).logprobs_only(&case.targets, &mut || {});
                case.check_logprobs(&logprobs, kind);
            }
        }
    }
}

#[test]
fn greedy_decoding_through_the_cache() {
    for arch in ARCHS {
        let case = Case::load(arch);
        let prompt = case.expected.ids("greedy.prompt");
        let batch = Batch::pack(vec![(None, vec![prompt.clone()])]);
        let context = case.context(Pass::Sample, &batch);
        let (h, mut stretches) = context.prefill(&case.device);
        let own = Stretch::new(&case.weights.config, 2, 20, &case.device);
        let mut cache = KvCache { prompt: Arc::new(stretches.remove(0)), own };
        let mut logits = download(context.logits(&h.narrow(0, prompt.len() - 1, 1)));
        for (i, want) in case.expected.ids("greedy.tokens").into_iter().enumerate() {
            let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as u32;
            assert!(
                best == want || case.expected.get("greedy.margins")[i] < 1e-4,
                "{arch}: token {i} is {best}, not {want}"
            );
            let mut step = Batch::pack(vec![(None, vec![vec![want]])]);
            step.positions = vec![(prompt.len() + i) as u32];
            let context = case.context(Pass::Sample, &step);
            let h = context.decode(&mut [&mut cache]);
            logits = download(context.logits(&h));
        }
    }
}

#[test]
fn neighbours_change_no_bit() {
    for arch in ["qwen2", "qwen3"] {
        let case = Case::load(arch);
        let mine = case.adapter();
        // A neighbour whose every number is NaN, one of another size, and long sequences between mine.
        let config = LoraConfig { rank: 7, ..mine.config };
        let mut bad = Adapter::init(config, &case.weights.config, &case.device);
        for m in bad.mats_mut() {
            *m = upload(vec![f32::NAN; m.dims()[0] * m.dims()[1]], m.dims(), &case.device);
        }
        let long: Vec<u32> = (0..60).map(|i| i % 50).collect();
        let alone = run(&case, vec![(Some(&mine), case.tokens.clone())], 0);
        let beside = run(
            &case,
            vec![(Some(&bad), vec![long.clone()]), (Some(&mine), case.tokens.clone()), (None, vec![long; 3])],
            1,
        );
        assert_eq!(alone, beside, "{arch}");
        assert!(alone.0.iter().all(|x| f32::from_bits(*x).is_finite()));
    }
}

type Bits = (Vec<u32>, Vec<Vec<u32>>);

/// Logprobs and gradients of group `which`, as bits.
fn run(case: &Case, groups: Vec<(Option<&Adapter>, Vec<Vec<u32>>)>, which: usize) -> Bits {
    let batch = Batch::pack(groups);
    let mine = batch.groups[which].rows.clone();
    let mut ids = vec![3; batch.tokens.len()];
    ids[mine.clone()].copy_from_slice(&case.targets.ids);
    let mut d = vec![0.5; ids.len()];
    d[mine.clone()].copy_from_slice(&case.d_logprobs);
    let targets = PassTargets { offsets: (0..=ids.len()).collect(), ids };
    let context = case.context(Pass::Train, &batch);
    let size = |g: &tinderbox::model::batch::Group| g.adapter.map_or(0, |a| a.mats().len());
    let mut grads: Vec<Grads> = batch.groups.iter().map(|g| Grads::new(size(g))).collect();
    let forward = context.forward_all(&targets, BUDGETS[0], &mut || {});
    let logprobs = forward.logprobs[mine].iter().map(|x| x.to_bits()).collect();
    context.backward_all(&targets, forward, &d, &mut grads, false, &mut || {});
    let bits =
        |m: &Option<kernels::Mat>| download(m.clone().expect("a gradient")).into_iter().map(f32::to_bits).collect();
    (logprobs, grads[which].mats().iter().map(bits).collect())
}
