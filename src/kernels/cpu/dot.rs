//! Matrix product for few rows, straight from row-major weights: `y[m, n] = Σ_k x[m, k] · w[n, k]`.
//!
//! Nothing is packed: each weight is read once from memory, which is what bounds decoding. Every output is one vector
//! accumulator over `k` in order and one final sum, so it does not depend on the rows beside it or on the tile.

use rayon::prelude::*;

use super::simd::{Bf16, Lanes, Slice, Stored, simd_dispatch};

/// Weight rows per task.
const ROWS_PER_TASK: usize = 64;
/// Values of x kept in cache at a time.
const X_BLOCK: usize = 1 << 15;
/// Work below which one thread is quicker than several, in multiply-adds.
const PARALLEL_FROM: usize = 1 << 16;

/// One weight matrix (n, k) and where its product goes: `y` is (m, n).
pub struct Product<'a> {
    pub w: Slice<'a>,
    pub bias: Option<&'a [f32]>,
    pub y: &'a mut [f32],
}

/// All products share `x` (m, k); their weights are read in one parallel sweep.
pub fn dot_products(x: &[f32], m: usize, k: usize, products: Vec<Product>) {
    assert_eq!(x.len(), m * k, "x is (m, k)");
    if m == 0 {
        return;
    }
    let mut tasks = Vec::new();
    let mut work = 0;
    for p in products {
        let n = p.w.count() / k.max(1);
        assert_eq!(p.y.len(), m * n, "y is (m, n)");
        work += m * n * k;
        let y = Out(p.y.as_mut_ptr());
        for first in (0..n).step_by(ROWS_PER_TASK) {
            tasks.push(Task { w: p.w, bias: p.bias, y, n, first, count: ROWS_PER_TASK.min(n - first) });
        }
    }
    if work < PARALLEL_FROM || rayon::current_num_threads() == 1 {
        tasks.iter().for_each(|t| t.run(x, m, k));
    } else {
        tasks.par_iter().for_each(|t| t.run(x, m, k));
    }
}

#[derive(Clone, Copy)]
struct Out(*mut f32);
// SAFETY: tasks write disjoint columns of `y`.
unsafe impl Send for Out {}
// SAFETY: as above.
unsafe impl Sync for Out {}

struct Task<'a> {
    w: Slice<'a>,
    bias: Option<&'a [f32]>,
    y: Out,
    n: usize,
    first: usize,
    count: usize,
}

impl Task<'_> {
    fn run(&self, x: &[f32], m: usize, k: usize) {
        let part = self.first * k..(self.first + self.count) * k;
        // SAFETY: column `first` of the first row lies inside `y`.
        let y = unsafe { self.y.0.add(self.first) };
        match self.w {
            Slice::F32(w) => tile_rows_f32(x, m, k, &w[part], self.count, y, self.n),
            Slice::Bf16(w) => tile_rows_bf16(x, m, k, &w[part], self.count, y, self.n),
        }
        if let Some(bias) = self.bias {
            for i in 0..m {
                for j in 0..self.count {
                    // SAFETY: inside `y`, and no other task has these columns.
                    unsafe { *y.add(i * self.n + j) += bias[self.first + j] };
                }
            }
        }
    }
}

simd_dispatch! {
    /// `y[i, j] = x[i] · w[j]` for `m` rows of x and `count` rows of w; `y` has `ldy` values per row.
    fn tile_rows_f32(x: &[f32], m: usize, k: usize, w: &[f32], count: usize, y: *mut f32, ldy: usize) => rows_f32
}
simd_dispatch! {
    /// The same for weights stored as bf16.
    fn tile_rows_bf16(x: &[f32], m: usize, k: usize, w: &[Bf16], count: usize, y: *mut f32, ldy: usize) => rows_bf16
}

#[inline(always)]
unsafe fn rows_f32<V: Lanes>(x: &[f32], m: usize, k: usize, w: &[f32], count: usize, y: *mut f32, ldy: usize) {
    unsafe { tile_rows::<V, f32>(x, m, k, w, count, y, ldy) }
}

#[inline(always)]
unsafe fn rows_bf16<V: Lanes>(x: &[f32], m: usize, k: usize, w: &[Bf16], count: usize, y: *mut f32, ldy: usize) {
    unsafe { tile_rows::<V, Bf16>(x, m, k, w, count, y, ldy) }
}

#[inline(always)]
unsafe fn tile_rows<V: Lanes, T: Stored>(
    x: &[f32],
    m: usize,
    k: usize,
    w: &[T],
    count: usize,
    y: *mut f32,
    ldy: usize,
) {
    unsafe {
        // Rows of x in blocks that stay in the second-level cache while the weights pass by.
        let block = (X_BLOCK / k.max(1)).max(4) / 4 * 4;
        let mut first = 0;
        while first < m {
            let last = (first + block).min(m);
            let mut j = 0;
            while j < count {
                let wide = j + 4 <= count;
                let wj = w.as_ptr().add(j * k);
                let mut i = first;
                while wide && i + 4 <= last {
                    tile::<V, T, 4, 4>(x.as_ptr().add(i * k), wj, k, y.add(i * ldy + j), ldy);
                    i += 4;
                }
                while i < last {
                    let (xi, yi) = (x.as_ptr().add(i * k), y.add(i * ldy + j));
                    if wide {
                        tile::<V, T, 1, 4>(xi, wj, k, yi, ldy)
                    } else {
                        tile::<V, T, 1, 1>(xi, wj, k, yi, ldy)
                    }
                    i += 1;
                }
                j += if wide { 4 } else { 1 };
            }
            first = last;
        }
    }
}

/// `MX × NW` inner products side by side.
#[inline(always)]
unsafe fn tile<V: Lanes, T: Stored, const MX: usize, const NW: usize>(
    x: *const f32,
    w: *const T,
    k: usize,
    y: *mut f32,
    ldy: usize,
) {
    unsafe {
        let mut acc = [[V::splat(0.0); NW]; MX];
        let whole = k / V::N * V::N;
        let mut p = 0;
        while p < whole {
            step::<V, T, MX, NW>(&mut acc, (x.add(p), k), (w.add(p), k));
            p += V::N;
        }
        if whole < k {
            // The tail goes through zero-padded copies, so that it takes part in the same sum.
            let (mut xt, mut wt) = ([[0f32; 16]; MX], [[0f32; 16]; NW]);
            for (i, t) in xt.iter_mut().enumerate() {
                std::ptr::copy_nonoverlapping(x.add(i * k + whole), t.as_mut_ptr(), k - whole);
            }
            for (j, t) in wt.iter_mut().enumerate() {
                for (i, t) in t.iter_mut().enumerate().take(k - whole) {
                    *t = (*w.add(j * k + whole + i)).widen();
                }
            }
            step::<V, f32, MX, NW>(&mut acc, (xt.as_ptr().cast(), 16), (wt.as_ptr().cast(), 16));
        }
        for (i, row) in acc.iter().enumerate() {
            for (j, v) in row.iter().enumerate() {
                *y.add(i * ldy + j) = v.sum();
            }
        }
    }
}

/// One register's width of all products; each operand with the distance of its rows.
#[inline(always)]
unsafe fn step<V: Lanes, T: Stored, const MX: usize, const NW: usize>(
    acc: &mut [[V; NW]; MX],
    (x, ldx): (*const f32, usize),
    (w, ldw): (*const T, usize),
) {
    unsafe {
        let mut wv = [V::splat(0.0); NW];
        for (j, v) in wv.iter_mut().enumerate() {
            *v = T::load(w.add(j * ldw));
        }
        for (i, row) in acc.iter_mut().enumerate() {
            let xv = V::load(x.add(i * ldx));
            for (a, v) in row.iter_mut().zip(wv) {
                *a = xv.mul_add(v, *a);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_the_plain_sum_and_does_not_depend_on_the_rows_beside() {
        let (m, n, k) = (9, 71, 83);
        let x: Vec<f32> = (0..m * k).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
        let w: Vec<f32> = (0..n * k).map(|i| ((i * 53 % 97) as f32 - 48.0) / 48.0).collect();
        let bias: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let run = |rows: std::ops::Range<usize>| {
            let mut y = vec![0.0; rows.len() * n];
            let p = Product { w: Slice::F32(&w), bias: Some(&bias), y: &mut y };
            dot_products(&x[rows.start * k..rows.end * k], rows.len(), k, vec![p]);
            y
        };
        let all = run(0..m);
        for (i, v) in all.iter().enumerate() {
            let (r, c) = (i / n, i % n);
            let want: f64 = (0..k).map(|p| f64::from(x[r * k + p]) * f64::from(w[c * k + p])).sum();
            assert!((f64::from(*v) - want - c as f64).abs() < 1e-4);
        }
        for r in 0..m {
            assert_eq!(run(r..r + 1), all[r * n..(r + 1) * n]);
        }
        assert_eq!(run(2..7), all[2 * n..7 * n]);
    }
}
