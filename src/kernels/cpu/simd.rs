//! Vector registers behind one trait, and the choice of instruction set at run time.

use std::sync::OnceLock;

/// The instruction sets the CPU kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Whatever the compilation target guarantees; eight lanes that LLVM maps to what there is.
    Portable,
}

/// The best set this machine has. Fixed for the life of the process, so that results are too.
pub fn isa() -> Isa {
    static ISA: OnceLock<Isa> = OnceLock::new();
    *ISA.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("fma") {
                return Isa::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Isa::Avx2;
            }
        }
        Isa::Portable
    })
}

/// A register of `N` f32 lanes.
///
/// # Safety
/// The methods may only be called where the instruction set of the type is available; they are inlined into
/// functions that carry the matching `target_feature`.
pub unsafe trait Lanes: Copy {
    const N: usize;
    unsafe fn splat(x: f32) -> Self;
    /// Unaligned load of `N` values.
    unsafe fn load(p: *const f32) -> Self;
    unsafe fn store(self, p: *mut f32);
    /// `self * b + c`.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    unsafe fn add(self, b: Self) -> Self;
    /// Sum of the lanes, always in the same order: halves added until one is left.
    unsafe fn sum(self) -> f32;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Lanes;
    use std::arch::x86_64::{
        __m256, __m512, _mm256_add_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_storeu_ps,
        _mm512_add_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_storeu_ps,
    };

    // SAFETY: called only inside functions compiled with avx512f.
    unsafe impl Lanes for __m512 {
        const N: usize = 16;
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            unsafe { _mm512_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            unsafe { _mm512_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            unsafe { _mm512_storeu_ps(p, self) }
        }
        #[inline(always)]
        unsafe fn mul_add(self, b: Self, c: Self) -> Self {
            unsafe { _mm512_fmadd_ps(self, b, c) }
        }
        #[inline(always)]
        unsafe fn add(self, b: Self) -> Self {
            unsafe { _mm512_add_ps(self, b) }
        }
        #[inline(always)]
        unsafe fn sum(self) -> f32 {
            let mut a = [0f32; 16];
            unsafe { self.store(a.as_mut_ptr()) };
            super::halve(&mut a)
        }
    }

    // SAFETY: called only inside functions compiled with avx2 and fma.
    unsafe impl Lanes for __m256 {
        const N: usize = 8;
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            unsafe { _mm256_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            unsafe { _mm256_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            unsafe { _mm256_storeu_ps(p, self) }
        }
        #[inline(always)]
        unsafe fn mul_add(self, b: Self, c: Self) -> Self {
            unsafe { _mm256_fmadd_ps(self, b, c) }
        }
        #[inline(always)]
        unsafe fn add(self, b: Self) -> Self {
            unsafe { _mm256_add_ps(self, b) }
        }
        #[inline(always)]
        unsafe fn sum(self) -> f32 {
            let mut a = [0f32; 8];
            unsafe { self.store(a.as_mut_ptr()) };
            super::halve(&mut a)
        }
    }
}

/// Sums a power-of-two array by adding its upper half to its lower half until one value is left.
#[inline(always)]
fn halve<const N: usize>(a: &mut [f32; N]) -> f32 {
    let mut n = N / 2;
    while n > 0 {
        for i in 0..n {
            a[i] += a[i + n];
        }
        n /= 2;
    }
    a[0]
}

/// Eight plain floats.
#[derive(Clone, Copy)]
pub struct Plain([f32; 8]);

// SAFETY: ordinary Rust, available everywhere.
unsafe impl Lanes for Plain {
    const N: usize = 8;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([x; 8])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Self(unsafe { p.cast::<[f32; 8]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { p.cast::<[f32; 8]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        let mut r = self.0;
        for i in 0..8 {
            r[i] = r[i] * b.0[i] + c.0[i];
        }
        Self(r)
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        let mut r = self.0;
        for i in 0..8 {
            r[i] += b.0[i];
        }
        Self(r)
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let mut a = self.0;
        halve(&mut a)
    }
}

/// Compiles one generic body for every instruction set and calls the right one.
///
/// `simd_dispatch!(fn name(args) => body::<V>)` makes `name`, which calls `body::<V>(args)` with the widest register
/// type this machine has.
macro_rules! simd_dispatch {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? => $body:ident) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, reason = "a kernel's operands, sizes and strides")]
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,fma")]
            #[allow(clippy::too_many_arguments, reason = "see above")]
            unsafe fn avx512($($arg: $ty),*) $(-> $ret)? {
                unsafe { $body::<std::arch::x86_64::__m512>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments, reason = "see above")]
            unsafe fn avx2($($arg: $ty),*) $(-> $ret)? {
                unsafe { $body::<std::arch::x86_64::__m256>($($arg),*) }
            }
            match $crate::kernels::cpu::simd::isa() {
                // SAFETY: `isa` reports a set only after it was detected.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::cpu::simd::Isa::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::cpu::simd::Isa::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: the portable lanes need nothing.
                $crate::kernels::cpu::simd::Isa::Portable => unsafe {
                    $body::<$crate::kernels::cpu::simd::Plain>($($arg),*)
                },
            }
        }
    };
}
pub(crate) use simd_dispatch;
