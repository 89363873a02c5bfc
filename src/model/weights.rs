//! Parameter sets on a device: the base model's weights, and a LoRA adapter's matrices.

use std::sync::Arc;

use burn::tensor::{DType, Device};
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::command::LoraConfig;
use crate::error::Result;
use crate::kernels::{LoraRows, Mat, Weight, upload};
use crate::model::config::DecoderConfig;
use crate::model::import::Import;
use crate::model::params::{LayerParam, Param, Proj, Site};

/// LoRA's alpha, whatever the rank (protocol §14.5).
pub const LORA_ALPHA: f32 = 32.0;

/// Every weight of a decoder. Cloning shares the values; an update of one clone leaves the other as it was.
#[derive(Clone)]
pub struct BaseWeights {
    pub config: Arc<DecoderConfig>,
    /// In the order of [`Param::all`].
    mats: Vec<Mat>,
    index: Arc<Index>,
}

/// Where each parameter lies in the canonical order.
struct Index {
    per_layer: usize,
    slot: [Option<usize>; 14],
    total: usize,
}

impl Index {
    fn new(c: &DecoderConfig) -> Self {
        let mut slot = [None; 14];
        let mut per_layer = 0;
        for p in LayerParam::all(c) {
            slot[p as usize] = Some(per_layer);
            per_layer += 1;
        }
        Self { per_layer, slot, total: Param::all(c).len() }
    }

    fn of(&self, c: &DecoderConfig, p: Param) -> Option<usize> {
        let norm = 1 + c.num_layers * self.per_layer;
        match p {
            Param::Embed => Some(0),
            Param::Layer(layer, p) => Some(1 + layer * self.per_layer + self.slot[p as usize]?),
            Param::FinalNorm => Some(norm),
            Param::Head => (norm + 1 < self.total).then_some(norm + 1),
        }
    }
}

impl BaseWeights {
    /// Reads and uploads every parameter. Matrices are kept in `dtype`, vectors in f32.
    pub fn load(config: Arc<DecoderConfig>, import: &Import, dtype: DType, device: &Device) -> Result<Self> {
        let read = |p: Param| {
            let (rows, cols) = p.shape(&config);
            let mat = upload(import.read(p)?, [rows, cols], device);
            Ok(if p.is_vector() || dtype == DType::F32 { mat } else { mat.cast(dtype) })
        };
        let mats = Param::all(&config).into_iter().map(read).collect::<Result<Vec<_>>>()?;
        Ok(Self::new(config, mats))
    }

    /// `mats` in the order of [`Param::all`].
    pub fn new(config: Arc<DecoderConfig>, mats: Vec<Mat>) -> Self {
        let index = Arc::new(Index::new(&config));
        assert_eq!(mats.len(), index.total, "one matrix per parameter");
        Self { config, mats, index }
    }

    /// A copy to train: f32, whatever the base is kept in.
    pub fn trainable(&self) -> Self {
        let wide = |m: &Mat| if m.dtype() == DType::F32 { m.clone() } else { m.clone().cast(DType::F32) };
        Self { mats: self.mats.iter().map(wide).collect(), ..self.clone() }
    }

    /// Position in the canonical order; `None` where the decoder has no such parameter.
    pub fn position(&self, p: Param) -> Option<usize> {
        self.index.of(&self.config, p)
    }

    pub fn get(&self, p: Param) -> Option<&Mat> {
        self.position(p).map(|i| &self.mats[i])
    }

    /// A parameter that every decoder has.
    pub fn expect(&self, p: Param) -> &Mat {
        self.get(p).expect("every decoder has this parameter")
    }

    /// The output head's matrix (V, D): the embedding where they are tied.
    pub fn head(&self) -> &Mat {
        self.get(Param::Head).unwrap_or_else(|| self.expect(Param::Embed))
    }

    /// Position of the matrix the head uses.
    pub fn head_position(&self) -> usize {
        self.position(Param::Head).unwrap_or(0)
    }

    pub fn layer(&self, layer: usize, p: LayerParam) -> Option<&Mat> {
        self.get(Param::Layer(layer, p))
    }

    pub fn projection(&self, layer: usize, p: Proj) -> Weight<'_> {
        Weight {
            w: self.expect(Param::Layer(layer, p.param())),
            bias: p.bias(&self.config).map(|b| self.expect(Param::Layer(layer, b))),
        }
    }

    pub fn mats(&self) -> &[Mat] {
        &self.mats
    }

    pub fn mats_mut(&mut self) -> &mut Vec<Mat> {
        &mut self.mats
    }
}

/// A LoRA adapter: matrices A (R, in) and B (out, R) for each chosen site, in canonical order A, B, A, B, …
#[derive(Clone)]
pub struct Adapter {
    pub config: LoraConfig,
    pub sites: Arc<Vec<Site>>,
    /// By site index: position of the site's A among `mats`.
    at: Arc<Vec<Option<usize>>>,
    mats: Vec<Mat>,
}

impl Adapter {
    /// A as PEFT draws it, uniform in ±1/√in, from the configuration's seed; B zero.
    pub fn init(config: LoraConfig, decoder: &DecoderConfig, device: &Device) -> Self {
        let sites = Site::chosen(decoder, config.train_attn, config.train_mlp, config.train_unembed);
        let mut mats = Vec::with_capacity(2 * sites.len());
        for site in &sites {
            let (inputs, outputs) = site.sizes(decoder);
            mats.push(upload(Self::initial_a(&config, *site, decoder), [config.rank, inputs], device));
            mats.push(upload(vec![0.0; outputs * config.rank], [outputs, config.rank], device));
        }
        Self::new(config, decoder, mats)
    }

    /// A site's A (rank, in) as it starts.
    pub fn initial_a(config: &LoraConfig, site: Site, decoder: &DecoderConfig) -> Vec<f32> {
        let (inputs, _) = site.sizes(decoder);
        // A stream per site, so that a site starts alike whatever else is trained.
        let mut rng = ChaCha12Rng::seed_from_u64(config.seed);
        rng.set_stream(site.index(decoder) as u64);
        let bound = 1.0 / (inputs as f32).sqrt();
        let mut uniform = || ((rng.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0) * bound;
        (0..config.rank * inputs).map(|_| uniform()).collect()
    }

    /// `mats`: A and B of each chosen site in canonical order.
    pub fn new(config: LoraConfig, decoder: &DecoderConfig, mats: Vec<Mat>) -> Self {
        let sites = Site::chosen(decoder, config.train_attn, config.train_mlp, config.train_unembed);
        assert_eq!(mats.len(), 2 * sites.len(), "two matrices per site");
        let mut at = vec![None; Site::count(decoder)];
        for (i, site) in sites.iter().enumerate() {
            at[site.index(decoder)] = Some(2 * i);
        }
        Self { config, sites: Arc::new(sites), at: Arc::new(at), mats }
    }

    pub fn scale(&self) -> f32 {
        LORA_ALPHA / self.config.rank as f32
    }

    /// Position of a site's A among [`Self::mats`]; its B follows.
    pub fn position(&self, site: usize) -> Option<usize> {
        self.at[site]
    }

    /// The adapter's matrices at a site, for these rows of a pass.
    pub fn rows(&self, site: usize, rows: std::ops::Range<usize>) -> Option<LoraRows<'_>> {
        let i = self.at[site]?;
        Some(LoraRows { rows, a: &self.mats[i], b: &self.mats[i + 1], scale: self.scale() })
    }

    pub fn mats(&self) -> &[Mat] {
        &self.mats
    }

    pub fn mats_mut(&mut self) -> &mut Vec<Mat> {
        &mut self.mats
    }
}
