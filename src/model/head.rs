//! The output head: from hidden states to target logprobs and back, with logits for a limited number of rows at a time.

use std::ops::Range;

use crate::kernels::{LoraRows, Mat, Targets, Weight};
use crate::model::batch::{Batch, local_left, local_right, same_rows};
use crate::model::grads::Grads;
use crate::model::layer::Context;
use crate::model::params::Site;

/// Logits computed at a time, in values. A constant of the model's vocabulary alone, so that cuts never depend on what
/// else is in a pass.
const CHUNK_VALUES: usize = 1 << 25;

/// Targets of a pass: row i has `ids[offsets[i]..offsets[i + 1]]`.
pub struct PassTargets {
    pub offsets: Vec<usize>,
    pub ids: Vec<u32>,
}

impl PassTargets {
    fn rows(&self, rows: &Range<usize>) -> (Vec<usize>, Range<usize>) {
        let flat = self.offsets[rows.start]..self.offsets[rows.end];
        (self.offsets[rows.start..=rows.end].iter().map(|o| o - flat.start).collect(), flat)
    }
}

/// What the backward pass needs of the forward one.
pub struct HeadTape {
    chunks: Vec<Chunk>,
}

struct Chunk {
    rows: Range<usize>,
    /// Stretches of single sequences that make up the chunk, cut at places relative to their sequence.
    pieces: Vec<Range<usize>>,
    lse: Vec<f64>,
    /// Kept when the memory budget allows; else computed again.
    logits: Option<Mat>,
}

/// Cuts sequences into pieces of at most `limit` rows, and joins consecutive pieces up to that size.
fn cut(seqs: &[Range<usize>], limit: usize) -> Vec<Vec<Range<usize>>> {
    let mut chunks: Vec<Vec<Range<usize>>> = Vec::new();
    let mut filled = limit;
    for s in seqs {
        for start in (s.start..s.end).step_by(limit) {
            let piece = start..(start + limit).min(s.end);
            if filled + piece.len() > limit {
                chunks.push(Vec::new());
                filled = 0;
            }
            filled += piece.len();
            chunks.last_mut().expect("just pushed").push(piece);
        }
    }
    chunks
}

fn narrow(x: &Mat, rows: &Range<usize>) -> Mat {
    x.clone().narrow(0, rows.start, rows.len())
}

/// The head's adapters, their rows counted from a chunk's first row, with the group of each.
fn parts<'a>(batch: &Batch<'a>, site: usize, rows: &Range<usize>) -> (Vec<LoraRows<'a>>, Vec<usize>) {
    let (all, owners) = batch.lora(site);
    let inside = |(mut p, owner): (LoraRows<'a>, usize)| {
        let (start, end) = (p.rows.start.max(rows.start), p.rows.end.min(rows.end));
        p.rows = start.wrapping_sub(rows.start)..end.wrapping_sub(rows.start);
        (start < end).then_some((p, owner))
    };
    all.into_iter().zip(owners).filter_map(inside).unzip()
}

impl Context<'_> {
    fn head_site(&self) -> usize {
        Site::Head.index(&self.weights.config)
    }

    /// Logits of `rows` of the normalised hidden states h (T, D).
    fn logits_of(&self, h: &Mat, rows: &Range<usize>) -> Mat {
        let x = narrow(h, rows);
        let weight = Weight { w: self.weights.head(), bias: None };
        let y = self.kernels.linear(self.pass, &x, &[weight]).swap_remove(0);
        let (parts, _) = parts(self.batch, self.head_site(), rows);
        self.adapted(y, &x, &parts).0
    }

    /// Logits of rows chosen one by one, for sampling: h must hold exactly these rows, in the batch's order.
    pub fn logits(&self, h: &Mat) -> Mat {
        self.logits_of(h, &(0..h.dims()[0]))
    }

    /// Logprob of each target. `keep_values`: how many logits may be kept for the backward pass.
    pub fn target_logprobs(&self, h: &Mat, targets: &PassTargets, keep_values: usize) -> (Vec<f32>, HeadTape) {
        let vocab = self.weights.config.vocab_size;
        let limit = (CHUNK_VALUES / vocab).clamp(64, 2048);
        let mut kept = 0;
        let mut logprobs = Vec::with_capacity(targets.ids.len());
        let mut chunks = Vec::new();
        for pieces in cut(&self.batch.seqs(), limit) {
            let rows = pieces[0].start..pieces[pieces.len() - 1].end;
            let logits = self.logits_of(h, &rows);
            let (offsets, flat) = targets.rows(&rows);
            let t = Targets { offsets: &offsets, ids: &targets.ids[flat] };
            let (lse, lp) = self.kernels.target_logprobs(&logits, t);
            logprobs.extend(lp);
            kept += rows.len() * vocab;
            chunks.push(Chunk { rows, pieces, lse, logits: (kept <= keep_values).then_some(logits) });
        }
        (logprobs, HeadTape { chunks })
    }

    /// From the gradient of each logprob to that of h (T, D).
    pub fn target_logprobs_grad(
        &self,
        h: &Mat,
        targets: &PassTargets,
        tape: HeadTape,
        d_logprobs: &[f32],
        grads: &mut [Grads],
        full: bool,
    ) -> Mat {
        let mut dh = Vec::with_capacity(tape.chunks.len());
        for chunk in tape.chunks {
            let (offsets, flat) = targets.rows(&chunk.rows);
            let g = &d_logprobs[flat.clone()];
            let x = narrow(h, &chunk.rows);
            if g.iter().all(|g| *g == 0.0) {
                dh.push(Mat::zeros(x.dims(), &x.device()));
                continue;
            }
            let logits = chunk.logits.unwrap_or_else(|| self.logits_of(h, &chunk.rows));
            let t = Targets { offsets: &offsets, ids: &targets.ids[flat] };
            let dy = self.kernels.target_logprobs_grad(logits, &chunk.lse, t, g);
            dh.push(self.head_backward(&x, &dy, &chunk.rows, &chunk.pieces, grads, full));
        }
        if dh.len() == 1 { dh.swap_remove(0) } else { Mat::cat(dh, 0) }
    }

    fn head_backward(
        &self,
        x: &Mat,
        dy: &Mat,
        rows: &Range<usize>,
        pieces: &[Range<usize>],
        grads: &mut [Grads],
        full: bool,
    ) -> Mat {
        let k = self.kernels;
        let mut dx = k.linear_input_grad(None, dy, self.weights.head());
        let (parts, owners) = parts(self.batch, self.head_site(), rows);
        let local = |group: &Range<usize>| -> Vec<Range<usize>> {
            let inside = |p: &&Range<usize>| group.start <= p.start && p.end <= group.end;
            pieces.iter().filter(inside).map(|p| p.start - rows.start..p.end - rows.start).collect()
        };
        if !parts.is_empty() {
            let xa = k.lora_down(x, &parts);
            let (new_dx, dxa) = k.lora_input_grad(dx, dy, &parts);
            dx = new_dx;
            for (i, owner) in owners.into_iter().enumerate() {
                let group = &self.batch.groups[owner];
                let at = group.adapter.and_then(|a| a.position(self.head_site())).expect("it has a part here");
                let (first, seqs) = (parts[i].rows.start, local(&group.rows));
                grads[owner].outer(k, at, &dxa[i], x, &local_left(&seqs, first), 1.0);
                grads[owner].outer(k, at + 1, dy, &xa[i], &local_right(&seqs, first), parts[i].scale);
            }
        }
        if full {
            for (group, grads) in self.batch.groups.iter().zip(grads.iter_mut()) {
                let seqs = local(&group.rows);
                if !seqs.is_empty() {
                    grads.outer(k, self.weights.head_position(), dy, x, &same_rows(&seqs), 1.0);
                }
            }
        }
        dx
    }
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "lists of ranges, some with one")]
    fn cuts_lie_at_places_relative_to_the_sequence() {
        assert_eq!(cut(&[0..3, 3..5, 5..6], 4), [vec![0..3], vec![3..5, 5..6]]);
        let alone = cut(&[0..10], 4);
        let beside = cut(&[0..1, 1..11], 4);
        let shifted: Vec<_> = alone.concat().iter().map(|r| r.start + 1..r.end + 1).collect();
        assert_eq!(beside.concat()[1..], shifted[..]);
    }
}
