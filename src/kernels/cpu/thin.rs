//! Gradients of thin matrices: `Σ over tokens of smallᵀ · wide` where one side has few columns, as LoRA's A and B have.
//!
//! Nothing is packed: both operands are read as they lie. Each output is summed over blocks of tokens that begin anew
//! with every pair of row ranges, and blocks are added in order, so a datum's part is the same bits in any pass.

use rayon::prelude::*;

use super::simd::{Lanes, simd_dispatch};

/// Columns of the thin side up to which this is quicker than the packed product.
pub const THIN: usize = 64;
/// Tokens summed in registers before they are added to the output.
const BLOCK: usize = 256;
/// Columns of the wide side per task.
const PANEL: usize = 32;
/// Work below which one thread is quicker than several, in multiply-adds.
const PARALLEL_FROM: usize = 1 << 17;

/// Rows `small..small + len` of the thin matrix meet rows `wide..wide + len` of the wide one.
#[derive(Clone, Copy)]
pub struct Rows {
    pub small: usize,
    pub wide: usize,
    pub len: usize,
}

/// A thin (tokens, r) and a wide (tokens, n) matrix.
#[derive(Clone, Copy)]
pub struct Operands<'a> {
    pub small: &'a [f32],
    pub r: usize,
    pub wide: &'a [f32],
    pub n: usize,
}

/// `out += scale · Σ smallᵀ · wide`: (r, n), or (n, r) when `transposed`.
pub fn outer(o: Operands, pairs: &[Rows], scale: f32, out: &mut [f32], transposed: bool) {
    assert_eq!(out.len(), o.r * o.n, "output is r × n");
    for p in pairs {
        assert!((p.small + p.len) * o.r <= o.small.len() && (p.wide + p.len) * o.n <= o.wide.len(), "rows outside");
    }
    let (row, col) = if transposed { (1, o.r) } else { (o.n, 1) };
    let out = Out { data: out.as_mut_ptr(), row, col };
    let task = |panel: usize| {
        let (out, first) = (&out, panel * PANEL);
        for p in pairs {
            for at in (0..p.len).step_by(BLOCK) {
                let rows = Rows { small: p.small + at, wide: p.wide + at, len: BLOCK.min(p.len - at) };
                block(&o, rows, first, scale, out);
            }
        }
    };
    let tokens: usize = pairs.iter().map(|p| p.len).sum();
    let panels = o.n.div_ceil(PANEL);
    if tokens * o.r * o.n < PARALLEL_FROM || rayon::current_num_threads() == 1 {
        (0..panels).for_each(task);
    } else {
        (0..panels).into_par_iter().for_each(task);
    }
}

struct Out {
    data: *mut f32,
    row: usize,
    col: usize,
}
// SAFETY: tasks write disjoint columns.
unsafe impl Sync for Out {}

simd_dispatch! {
    /// One block of tokens over the columns from `first` on.
    fn block(o: &Operands, rows: Rows, first: usize, scale: f32, out: &Out) => block_any
}

#[inline(always)]
unsafe fn block_any<V: Lanes>(o: &Operands, rows: Rows, first: usize, scale: f32, out: &Out) {
    unsafe {
        let cols = PANEL.min(o.n - first);
        let mut padded = [0f32; BLOCK * PANEL];
        let mut wide = o.wide.as_ptr().add(rows.wide * o.n + first);
        let mut ld = o.n;
        if cols < PANEL {
            for t in 0..rows.len {
                std::ptr::copy_nonoverlapping(wide.add(t * ld), padded.as_mut_ptr().add(t * PANEL), cols);
            }
            (wide, ld) = (padded.as_ptr(), PANEL);
        }
        let mut i = 0;
        while i < o.r {
            let small = o.small.as_ptr().add(rows.small * o.r + i);
            let left = o.r - i;
            let at = Place { first, cols, row: i, scale };
            i += match left {
                8.. => tile::<V, 8>(small, o.r, wide, ld, rows.len, &at, out),
                4.. => tile::<V, 4>(small, o.r, wide, ld, rows.len, &at, out),
                2.. => tile::<V, 2>(small, o.r, wide, ld, rows.len, &at, out),
                _ => tile::<V, 1>(small, o.r, wide, ld, rows.len, &at, out),
            };
        }
    }
}

struct Place {
    first: usize,
    cols: usize,
    row: usize,
    scale: f32,
}

/// `R` rows of the output; gives `R`.
#[inline(always)]
unsafe fn tile<V: Lanes, const R: usize>(
    small: *const f32,
    r: usize,
    wide: *const f32,
    ld: usize,
    tokens: usize,
    at: &Place,
    out: &Out,
) -> usize {
    unsafe {
        // Two registers of 16 lanes, or four of 8.
        let mut sums = [[0f32; PANEL]; R];
        let mut half = 0;
        while half < PANEL {
            let mut acc = [[V::splat(0.0); 2]; R];
            for t in 0..tokens {
                let w = wide.add(t * ld + half);
                let (w0, w1) = (V::load(w), V::load(w.add(V::N)));
                for (i, a) in acc.iter_mut().enumerate() {
                    let s = V::splat(*small.add(t * r + i));
                    a[0] = s.mul_add(w0, a[0]);
                    a[1] = s.mul_add(w1, a[1]);
                }
            }
            for (sums, a) in sums.iter_mut().zip(acc) {
                a[0].store(sums.as_mut_ptr().add(half));
                a[1].store(sums.as_mut_ptr().add(half + V::N));
            }
            half += 2 * V::N;
        }
        for (i, sums) in sums.iter().enumerate() {
            for (j, s) in sums.iter().enumerate().take(at.cols) {
                *out.data.add((at.row + i) * out.row + (at.first + j) * out.col) += at.scale * s;
            }
        }
        R
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_the_plain_sum_both_ways_round() {
        for (r, n) in [(1, 5), (3, 40), (8, 32), (15, 67)] {
            let tokens = 300;
            let small: Vec<f32> = (0..tokens * r).map(|i| ((i * 31 % 17) as f32 - 8.0) / 8.0).collect();
            let wide: Vec<f32> = (0..tokens * n).map(|i| ((i * 29 % 23) as f32 - 11.0) / 11.0).collect();
            let pairs = [Rows { small: 0, wide: 7, len: 290 }, Rows { small: 295, wide: 2, len: 3 }];
            let o = Operands { small: &small, r, wide: &wide, n };
            let (mut a, mut b) = (vec![1.0; r * n], vec![1.0; r * n]);
            outer(o, &pairs, 0.5, &mut a, false);
            outer(o, &pairs, 0.5, &mut b, true);
            for i in 0..r {
                for j in 0..n {
                    let term = |p: &Rows| -> f64 {
                        (0..p.len)
                            .map(|t| f64::from(small[(p.small + t) * r + i]) * f64::from(wide[(p.wide + t) * n + j]))
                            .sum()
                    };
                    let want = 1.0 + 0.5 * pairs.iter().map(term).sum::<f64>();
                    assert!((f64::from(a[i * n + j]) - want).abs() < 1e-4, "{r}x{n}");
                    assert_eq!(a[i * n + j], b[j * r + i]);
                }
            }
        }
    }
}
