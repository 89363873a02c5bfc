//! Operands of the packed product: strided views, and their copies in panels.

use super::simd::Stored;

/// A read-only matrix by pointer and strides: element (i, j) is `data[i * row + j * col]`.
#[derive(Clone, Copy)]
pub struct View<'a, T = f32> {
    data: &'a [T],
    row: usize,
    col: usize,
}

impl<'a, T: Stored> View<'a, T> {
    /// Row-major with `ld` values from one row to the next.
    pub fn rows(data: &'a [T], ld: usize) -> Self {
        Self { data, row: ld, col: 1 }
    }

    /// The transpose of a row-major matrix.
    pub fn transposed(data: &'a [T], ld: usize) -> Self {
        Self { data, row: 1, col: ld }
    }

    /// Panics when the matrix is larger than its data.
    pub fn check(&self, rows: usize, cols: usize) {
        let last = (rows.max(1) - 1) * self.row + (cols.max(1) - 1) * self.col;
        assert!(rows * cols == 0 || last < self.data.len(), "gemm operand too small");
    }
}

/// Packs `used` of `width` lanes (rows of A, or columns of B) for `kc` inner indices, inner-major, padded with zeros.
#[allow(clippy::too_many_arguments, reason = "a panel's place and size")]
pub fn pack<T: Stored>(
    out: &mut [f32],
    x: &View<T>,
    first: usize,
    used: usize,
    width: usize,
    k0: usize,
    kc: usize,
    is_b: bool,
) {
    let (lane, inner) = if is_b { (x.col, x.row) } else { (x.row, x.col) };
    let base = first * lane + k0 * inner;
    if lane == 1 {
        for (k, dst) in out.chunks_exact_mut(width).enumerate() {
            let src = &x.data[base + k * inner..][..used];
            dst.iter_mut().zip(src).for_each(|(d, s)| *d = s.widen());
            dst[used..].fill(0.0);
        }
        return;
    }
    if used < width {
        out.fill(0.0);
    }
    if inner == 1 {
        // Transposing copy in small squares, so that both sides stay in cache.
        for kk in (0..kc).step_by(16) {
            let kn = 16.min(kc - kk);
            for l in 0..used {
                let src = &x.data[base + l * lane + kk..][..kn];
                for (k, v) in src.iter().enumerate() {
                    out[(kk + k) * width + l] = v.widen();
                }
            }
        }
        return;
    }
    for k in 0..kc {
        for l in 0..used {
            out[k * width + l] = x.data[base + l * lane + k * inner].widen();
        }
    }
}
