//! Keys and values of a sequence at every layer, in stretches that sequences can share.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::Device;

use crate::kernels::{Kernels, KvSpan, Mat, upload};
use crate::model::config::DecoderConfig;
use crate::model::layer::Context;

/// A stretch of consecutive tokens: for each layer, keys and values (capacity, G·H).
pub struct Stretch {
    layers: Vec<(Mat, Mat)>,
    capacity: usize,
    /// Tokens it will ever hold: growing stops there.
    most: usize,
    len: usize,
}

impl Stretch {
    /// Room for `capacity` tokens at first, `most` in the end.
    pub fn new(config: &DecoderConfig, capacity: usize, most: usize, device: &Device) -> Self {
        let blank = || upload(vec![0.0; capacity * config.kv_size()], [capacity, config.kv_size()], device);
        Self { layers: (0..config.num_layers).map(|_| (blank(), blank())).collect(), capacity, most, len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets what lies behind the first `len` tokens, as when a pass has to be repeated.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Writes rows of k and v behind what is there. The caller advances once all layers are written.
    fn write(&mut self, kernels: &dyn Kernels, layer: usize, k: &Mat, v: &Mat, rows: Range<usize>) {
        let at = self.len;
        if at + rows.len() > self.capacity {
            self.grow(kernels, at + rows.len());
        }
        let (kc, vc) = &mut self.layers[layer];
        kc.inplace(|c| kernels.write_rows(c, at, k, rows.clone()));
        vc.inplace(|c| kernels.write_rows(c, at, v, rows));
    }

    fn grow(&mut self, kernels: &dyn Kernels, needed: usize) {
        self.capacity = needed.max((2 * self.capacity).min(self.most));
        for (k, v) in &mut self.layers {
            for m in [k, v] {
                let shape = [self.capacity, m.dims()[1]];
                let bigger = upload(vec![0.0; shape[0] * shape[1]], shape, &m.device());
                m.inplace(|old| kernels.write_rows(bigger, 0, &old, 0..self.len));
            }
        }
    }

    fn advance(&mut self, n: usize) {
        self.len += n;
    }

    fn span(&self, layer: usize, len: usize) -> KvSpan<'_> {
        let (k, v) = &self.layers[layer];
        KvSpan { k, v, len }
    }
}

/// A sequence's cache: its prompt, shared by all samples of a request, and what it generated itself.
pub struct KvCache {
    pub prompt: Arc<Stretch>,
    pub own: Stretch,
}

impl KvCache {
    /// Tokens of prompt and continuation.
    pub fn len(&self) -> usize {
        self.prompt.len + self.own.len
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the token written last attends to at a layer; that token counts already.
    fn spans(&self, layer: usize) -> Vec<KvSpan<'_>> {
        vec![self.prompt.span(layer, self.prompt.len), self.own.span(layer, self.own.len + 1)]
    }
}

impl Context<'_> {
    /// Runs whole prompts at once: → normalised hidden states (T, D), and each prompt's stretch.
    pub fn prefill(&self, device: &Device) -> (Mat, Vec<Stretch>) {
        let new = |rows: Range<usize>| Stretch::new(&self.weights.config, rows.len(), rows.len(), device);
        let mut stretches: Vec<Stretch> = self.batch.seqs().into_iter().map(new).collect();
        let h = self.extend(&mut stretches.iter_mut().collect::<Vec<_>>());
        (h, stretches)
    }

    /// Runs the next tokens of prompts, those of sequence i going behind what `stretches[i]` holds: → normalised hidden
    /// states (T, D).
    pub fn extend(&self, stretches: &mut [&mut Stretch]) -> Mat {
        let seqs = self.batch.seqs();
        let attend = |c: &Self, layer: usize, x: &Mat| {
            let qkv = c.qkv(x, layer);
            for (s, rows) in stretches.iter_mut().zip(&seqs) {
                s.write(c.kernels, layer, &qkv.k, &qkv.v, rows.clone());
            }
            let spans: Vec<KvSpan> =
                stretches.iter().zip(&seqs).map(|(s, rows)| s.span(layer, s.len + rows.len())).collect();
            c.kernels.attention_extended(&qkv.q, c.heads(), &seqs, &spans)
        };
        let h = self.hidden(attend, &mut || {});
        stretches.iter_mut().zip(&seqs).for_each(|(s, rows)| s.advance(rows.len()));
        h
    }

    /// Runs one token of each sequence, row i belonging to `caches[i]`: → normalised hidden states (T, D).
    pub fn decode(&self, caches: &mut [&mut KvCache]) -> Mat {
        let attend = |c: &Self, layer: usize, x: &Mat| {
            let qkv = c.qkv(x, layer);
            for (i, cache) in caches.iter_mut().enumerate() {
                cache.own.write(c.kernels, layer, &qkv.k, &qkv.v, i..i + 1);
            }
            let spans: Vec<Vec<KvSpan>> = caches.iter().map(|cache| cache.spans(layer)).collect();
            c.kernels.attention_cached(&qkv.q, c.heads(), &spans)
        };
        let h = self.hidden(attend, &mut || {});
        caches.iter_mut().for_each(|c| c.own.advance(1));
        h
    }
}
