//! Matrix product of f32 with packed operands, whose every output row is the same whatever rows stand beside it.
//!
//! The classic scheme: both operands are packed into panels, a register tile of `MR × NR` outputs is accumulated over
//! a block of `KC` inner indices, and blocks are added in order. `KC` is a constant and padding is with zeros, so an
//! output's order of summation depends on the inner size alone: never on the number of rows, on tiles or on threads.

use std::cell::RefCell;

use rayon::prelude::*;

use super::pack::{View, pack};
use super::simd::{Isa, Lanes, Stored, isa, simd_dispatch};

/// Inner indices per block.
const KC: usize = 512;
/// Columns per packed block of B, a multiple of every `NR`.
const NC: usize = 4096;
/// Values of packing space a thread keeps from one product to the next.
const KEPT: usize = 1 << 23;
/// Work below which one thread is quicker than several, in multiply-adds.
const PARALLEL_FROM: usize = 1 << 18;

/// Sizes and flags of one product: `c[m, n] = alpha · a[m, k] · b[k, n]`, added to `c` when `accumulate`.
#[derive(Clone, Copy)]
pub struct Gemm {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub alpha: f32,
    pub accumulate: bool,
    /// Whether rayon's threads may share the work.
    pub parallel: bool,
}

impl Gemm {
    pub fn new(m: usize, n: usize, k: usize) -> Self {
        Self { m, n, k, alpha: 1.0, accumulate: false, parallel: true }
    }

    pub fn alpha(mut self, alpha: f32) -> Self {
        self.alpha = alpha;
        self
    }

    pub fn accumulate(mut self) -> Self {
        self.accumulate = true;
        self
    }

    pub fn serial(mut self) -> Self {
        self.parallel = false;
        self
    }

    /// Runs the product into `c`, row-major with `ldc` values from row to row.
    pub fn run<T: Stored>(self, a: View, b: View<T>, c: &mut [f32], ldc: usize) {
        let n = self.n;
        self.run_many(a, vec![RightSide { b, n, c, ldc }]);
    }

    /// Several products with one left operand, which is packed once; each one's own `n` counts.
    pub fn run_many<T: Stored>(self, a: View, mut products: Vec<RightSide<T>>) {
        let Self { m, k, .. } = self;
        a.check(m, k);
        for j in &mut products {
            j.b.check(k, j.n);
            assert!(m * j.n == 0 || (j.ldc >= j.n && (m - 1) * j.ldc + j.n <= j.c.len()), "gemm output too small");
            if k == 0 && !self.accumulate {
                j.c.chunks_mut(j.ldc.max(1)).take(m).for_each(|row| row[..j.n].fill(0.0));
            }
        }
        let widest = products.iter().map(|j| j.n).max().unwrap_or(0);
        if m * widest == 0 {
            return;
        }
        let parallel = self.parallel && m * widest * k >= PARALLEL_FROM && rayon::current_num_threads() > 1;
        let shape = Shape::of(isa());
        // Taken out of the cell for the duration: a stolen task may enter here on the same thread.
        let mut space = PACKED.take();
        for k0 in (0..k).step_by(KC) {
            let block = Block {
                shape,
                m,
                kc: KC.min(k - k0),
                alpha: self.alpha,
                accumulate: self.accumulate || k0 > 0,
                parallel,
            };
            block.pack_left(&a, k0, &mut space.0);
            for j in &mut products {
                for j0 in (0..j.n).step_by(NC) {
                    let nc = NC.min(j.n - j0);
                    block.pack_right(&j.b, k0, j0, nc, &mut space.1);
                    block.compute(&space, nc, &mut j.c[j0..], j.ldc);
                }
            }
        }
        for buf in [&mut space.0, &mut space.1] {
            if buf.len() > KEPT {
                *buf = Vec::new();
            }
        }
        PACKED.set(space);
    }
}

/// One right operand (k, n) and its output.
pub struct RightSide<'a, 'c, T = f32> {
    pub b: View<'a, T>,
    pub n: usize,
    pub c: &'c mut [f32],
    pub ldc: usize,
}

/// Register tile of an instruction set.
#[derive(Clone, Copy)]
struct Shape {
    mr: usize,
    nr: usize,
    /// Rows of A that one task takes, a multiple of `mr`.
    mc: usize,
}

impl Shape {
    fn of(isa: Isa) -> Self {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Self { mr: 14, nr: 32, mc: 14 * 12 },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Self { mr: 6, nr: 16, mc: 6 * 16 },
            Isa::Portable => Self { mr: 4, nr: 16, mc: 4 * 16 },
        }
    }
}

/// One block of inner indices.
struct Block {
    shape: Shape,
    m: usize,
    kc: usize,
    alpha: f32,
    accumulate: bool,
    parallel: bool,
}

thread_local! {
    /// Packing space, kept so that its pages are not cleared again for each product.
    static PACKED: RefCell<(Vec<f32>, Vec<f32>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Room for `len` values at the front of a buffer that only grows.
fn room(buf: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buf.len() < len {
        buf.resize(len, 0.0);
    }
    &mut buf[..len]
}

impl Block {
    fn panels(&self, space: &mut [f32], width: usize, pack: impl Fn(usize, &mut [f32]) + Sync) {
        let size = width * self.kc;
        if self.parallel {
            space.par_chunks_mut(size).with_min_len(4).enumerate().for_each(|(i, p)| pack(i, p));
        } else {
            space.chunks_mut(size).enumerate().for_each(|(i, p)| pack(i, p));
        }
    }

    fn pack_left(&self, a: &View, k0: usize, space: &mut Vec<f32>) {
        let mr = self.shape.mr;
        let space = room(space, self.m.div_ceil(mr) * mr * self.kc);
        self.panels(space, mr, |i, p| pack(p, a, i * mr, mr.min(self.m - i * mr), mr, k0, self.kc, false));
    }

    fn pack_right<T: Stored>(&self, b: &View<T>, k0: usize, j0: usize, nc: usize, space: &mut Vec<f32>) {
        let nr = self.shape.nr;
        let space = room(space, nc.div_ceil(nr) * nr * self.kc);
        self.panels(space, nr, |j, p| pack(p, b, j0 + j * nr, nr.min(nc - j * nr), nr, k0, self.kc, true));
    }

    fn compute(&self, (pa, pb): &(Vec<f32>, Vec<f32>), nc: usize, c: &mut [f32], ldc: usize) {
        let Shape { mr, nr, mc } = self.shape;
        let c_rows = Out(c.as_mut_ptr());
        let tile = |ic: usize, jr: usize| {
            let c_rows = &c_rows;
            for ir in (ic..(ic + mc).min(self.m)).step_by(mr) {
                let (rows, cols) = (mr.min(self.m - ir), nr.min(nc - jr));
                let ap = &pa[ir * self.kc..][..mr * self.kc];
                let bp = &pb[jr * self.kc..][..nr * self.kc];
                // SAFETY: tiles are disjoint and lie inside `c`, whose size `run_many` checked.
                let ct = unsafe { c_rows.0.add(ir * ldc + jr) };
                micro(ap, bp, self.kc, ct, ldc, rows, cols, self.alpha, self.accumulate);
            }
        };
        let (row_blocks, col_panels) = (self.m.div_ceil(mc), nc.div_ceil(nr));
        let each = |t: usize| tile(t / col_panels * mc, t % col_panels * nr);
        if self.parallel {
            (0..row_blocks * col_panels).into_par_iter().with_min_len(4).for_each(each);
        } else {
            (0..row_blocks * col_panels).for_each(each);
        }
    }
}

struct Out(*mut f32);
// SAFETY: tasks write disjoint tiles.
unsafe impl Sync for Out {}

simd_dispatch! {
    /// One register tile: `c[rows, cols] (+)= alpha · ap · bp`.
    fn micro(
        ap: &[f32], bp: &[f32], kc: usize, c: *mut f32, ldc: usize, rows: usize, cols: usize, alpha: f32, accumulate: bool,
    ) => micro_any
}

#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "see `micro`")]
unsafe fn micro_any<V: Lanes>(
    ap: &[f32],
    bp: &[f32],
    kc: usize,
    c: *mut f32,
    ldc: usize,
    rows: usize,
    cols: usize,
    alpha: f32,
    accumulate: bool,
) {
    unsafe {
        match (V::N, isa() == Isa::Portable) {
            (16, _) => tile::<V, 14, 2>(ap, bp, kc, c, ldc, rows, cols, alpha, accumulate),
            (_, false) => tile::<V, 6, 2>(ap, bp, kc, c, ldc, rows, cols, alpha, accumulate),
            (_, true) => tile::<V, 4, 2>(ap, bp, kc, c, ldc, rows, cols, alpha, accumulate),
        }
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "see `micro`")]
unsafe fn tile<V: Lanes, const MR: usize, const NV: usize>(
    ap: &[f32],
    bp: &[f32],
    kc: usize,
    c: *mut f32,
    ldc: usize,
    rows: usize,
    cols: usize,
    alpha: f32,
    accumulate: bool,
) {
    unsafe {
        let mut acc = [[V::splat(0.0); NV]; MR];
        let (mut a, mut b) = (ap.as_ptr(), bp.as_ptr());
        for _ in 0..kc {
            let mut bv = [V::splat(0.0); NV];
            for (j, v) in bv.iter_mut().enumerate() {
                *v = V::load(b.add(j * V::N));
            }
            for (i, row) in acc.iter_mut().enumerate() {
                let av = V::splat(*a.add(i));
                for (x, v) in row.iter_mut().zip(bv) {
                    *x = av.mul_add(v, *x);
                }
            }
            a = a.add(MR);
            b = b.add(NV * V::N);
        }
        let alpha_v = V::splat(alpha);
        if rows == MR && cols == NV * V::N {
            for (i, row) in acc.iter().enumerate() {
                for (j, x) in row.iter().enumerate() {
                    let p = c.add(i * ldc + j * V::N);
                    let old = if accumulate { V::load(p) } else { V::splat(0.0) };
                    x.mul_add(alpha_v, old).store(p);
                }
            }
            return;
        }
        // At an edge the tile's rows go through a padded copy, so that the same operations make the same bits.
        let mut edge = [0f32; 64];
        for (i, row) in acc.iter().enumerate().take(rows) {
            let p = c.add(i * ldc);
            if accumulate {
                std::ptr::copy_nonoverlapping(p, edge.as_mut_ptr(), cols);
            }
            for (j, x) in row.iter().enumerate() {
                let at = edge.as_mut_ptr().add(j * V::N);
                let old = if accumulate { V::load(at) } else { V::splat(0.0) };
                x.mul_add(alpha_v, old).store(at);
            }
            std::ptr::copy_nonoverlapping(edge.as_ptr(), p, cols);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(n: usize, seed: u64) -> Vec<f32> {
        let mut s = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        (0..n)
            .map(|_| {
                s ^= s << 13;
                s ^= s >> 7;
                s ^= s << 17;
                (s >> 40) as f32 / (1u64 << 24) as f32 - 0.5
            })
            .collect()
    }

    #[test]
    fn equals_the_plain_sum_in_all_layouts() {
        for (m, n, k) in [(1, 1, 1), (3, 5, 7), (15, 33, 600), (29, 70, 1030)] {
            let (a, b) = (matrix(m * k, 1), matrix(k * n, 2));
            let at: Vec<f32> = (0..k * m).map(|i| a[i % m * k + i / m]).collect();
            let bt: Vec<f32> = (0..n * k).map(|i| b[i % k * n + i / k]).collect();
            let want: Vec<f64> = (0..m * n)
                .map(|i| (0..k).map(|p| f64::from(a[i / n * k + p]) * f64::from(b[p * n + i % n])).sum())
                .collect();
            for (av, bv) in [
                (View::rows(&a, k), View::rows(&b, n)),
                (View::transposed(&at, m), View::rows(&b, n)),
                (View::rows(&a, k), View::transposed(&bt, k)),
            ] {
                let mut c = vec![1.0; m * n];
                Gemm::new(m, n, k).alpha(2.0).accumulate().run(av, bv, &mut c, n);
                for (x, w) in c.iter().zip(&want) {
                    assert!((f64::from(*x) - (2.0 * w + 1.0)).abs() < 1e-4, "{m}x{n}x{k}: {x} vs {w}");
                }
            }
        }
    }

    #[test]
    fn a_row_is_the_same_alone_and_among_others() {
        let (m, n, k) = (515, 96, 777);
        let (a, b) = (matrix(m * k, 3), matrix(n * k, 4));
        let mut all = vec![0.0; m * n];
        Gemm::new(m, n, k).run(View::rows(&a, k), View::transposed(&b, k), &mut all, n);
        for (first, count) in [(0, 1), (7, 1), (13, 2), (100, 29), (1, 514)] {
            let mut some = vec![0.0; count * n];
            let rows = &a[first * k..(first + count) * k];
            Gemm::new(count, n, k).serial().run(View::rows(rows, k), View::transposed(&b, k), &mut some, n);
            assert_eq!(some, all[first * n..(first + count) * n], "rows {first}+{count}");
        }
    }
}
