//! Scalar functions that vectorise, and reductions with a fixed order.

/// eˣ to about one unit in the last place, in arithmetic that compiles to vector code. Clamped to finite results.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Cody–Waite reduction by ln 2 in two parts, then a degree-6 polynomial (Cephes' coefficients). The clamp is
    // written so that NaN passes through.
    let x = if x < -87.336_54 { -87.336_54 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let n = (x * std::f32::consts::LOG2_E + 12_582_912.0) - 12_582_912.0;
    let r = x - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let p = 1.987_569_1e-4f32;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 5e-1;
    let y = p * r * r + r + 1.0;
    // NaN reaches `y` through `r`; the exponent then only has to be some number.
    y * f32::from_bits((((n as i32) + 127) << 23) as u32)
}

/// Logistic function.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

const LANES: usize = 16;

/// Folds with `LANES` partial results over whole blocks, then the rest, then the partial results in order.
#[inline(always)]
fn fold(a: &[f32], start: f32, f: impl Fn(f32, f32) -> f32, join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut acc = [start; LANES];
    let blocks = a.chunks_exact(LANES);
    let mut rest = start;
    for x in blocks.remainder() {
        rest = f(rest, *x);
    }
    for block in blocks {
        for i in 0..LANES {
            acc[i] = f(acc[i], block[i]);
        }
    }
    acc.into_iter().fold(rest, join)
}

#[inline(always)]
pub fn max(a: &[f32]) -> f32 {
    let greater = |m: f32, x: f32| if x > m { x } else { m };
    fold(a, f32::NEG_INFINITY, greater, greater)
}

#[inline(always)]
pub fn sum(a: &[f32]) -> f32 {
    fold(a, 0.0, |s, x| s + x, |s, x| s + x)
}

/// Σ exp(x − shift).
#[inline(always)]
pub fn sum_exp(a: &[f32], shift: f32) -> f32 {
    fold(a, 0.0, |s, x| s + exp(x - shift), |s, x| s + x)
}

#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    let mut acc = [0f32; LANES];
    let whole = n / LANES * LANES;
    for i in (0..whole).step_by(LANES) {
        for l in 0..LANES {
            acc[l] += a[i + l] * b[i + l];
        }
    }
    let rest: f32 = (whole..n).map(|i| a[i] * b[i]).sum();
    acc.into_iter().fold(rest, |s, x| s + x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_everywhere_and_keeps_nan() {
        for i in -8700..8800 {
            let x = i as f32 / 100.0;
            let want = f64::from(x).exp();
            assert!((f64::from(exp(x)) / want - 1.0).abs() < 3e-7, "exp({x})");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 1e-37 && exp(f32::INFINITY).is_finite());
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn reductions_handle_every_tail() {
        for n in 0..40 {
            let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
            assert_eq!(sum(&a), (n * (n.max(1) - 1) / 2) as f32);
            assert_eq!(dot(&a, &a), a.iter().map(|x| x * x).sum::<f32>());
            assert_eq!(max(&a), a.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x)));
        }
    }
}
