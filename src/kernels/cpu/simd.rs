//! Vector registers behind one trait, and the choice of instruction set at run time.

use std::fmt;
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

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "AVX-512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "AVX2",
            Self::Portable => "portable instructions",
        })
    }
}

/// The best set this machine has. Fixed for the life of the process, so that results are too.
pub fn isa() -> Isa {
    static ISA: OnceLock<Isa> = OnceLock::new();
    *ISA.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        {
            // All that the macros below enable: some machines have `avx512f` alone.
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("fma")
            {
                return Isa::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Isa::Avx2;
            }
        }
        Isa::Portable
    })
}

/// The upper half of an f32.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Bf16(u16);

impl Bf16 {
    #[inline(always)]
    pub fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

/// How a matrix's values lie in memory; all arithmetic is in f32.
pub trait Stored: Copy + Sync {
    fn widen(self) -> f32;
    /// # Safety
    /// As [`Lanes::load`].
    unsafe fn load<V: Lanes>(p: *const Self) -> V;
}

impl Stored for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    unsafe fn load<V: Lanes>(p: *const Self) -> V {
        unsafe { V::load(p) }
    }
}

impl Stored for Bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        Self::widen(self)
    }
    #[inline(always)]
    unsafe fn load<V: Lanes>(p: *const Self) -> V {
        unsafe { V::load_bf16(p) }
    }
}

/// A weight matrix's values.
#[derive(Clone, Copy)]
pub enum Slice<'a> {
    F32(&'a [f32]),
    Bf16(&'a [Bf16]),
}

impl Slice<'_> {
    pub fn count(&self) -> usize {
        match self {
            Self::F32(x) => x.len(),
            Self::Bf16(x) => x.len(),
        }
    }
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
    /// Unaligned load of `N` bf16 values, widened exactly.
    unsafe fn load_bf16(p: *const Bf16) -> Self;
    unsafe fn store(self, p: *mut f32);
    /// `self * b + c`.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    /// Sum of the lanes, always in the same order: halves added until one is left.
    unsafe fn sum(self) -> f32;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Bf16, Lanes};
    use std::arch::x86_64::{
        __m256, __m512, _mm_loadu_si128, _mm256_castsi256_ps, _mm256_cvtepu16_epi32, _mm256_fmadd_ps, _mm256_loadu_ps,
        _mm256_loadu_si256, _mm256_set1_ps, _mm256_slli_epi32, _mm256_storeu_ps, _mm512_castsi512_ps,
        _mm512_cvtepu16_epi32, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_slli_epi32, _mm512_storeu_ps,
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
        unsafe fn load_bf16(p: *const Bf16) -> Self {
            unsafe { _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())), 16)) }
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
        unsafe fn load_bf16(p: *const Bf16) -> Self {
            unsafe { _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())), 16)) }
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
    unsafe fn load_bf16(p: *const Bf16) -> Self {
        Self(unsafe { p.cast::<[Bf16; 8]>().read_unaligned() }.map(Bf16::widen))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { p.cast::<[f32; 8]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] * b.0[i] + c.0[i]))
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

/// Compiles a function of plain loops for every instruction set, so that LLVM vectorises it for each, and calls the
/// right one.
macro_rules! simd_loop {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,fma")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                body($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                body($($arg),*)
            }
            match $crate::kernels::cpu::simd::isa() {
                // SAFETY: `isa` reports a set only after it was detected.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::cpu::simd::Isa::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::kernels::cpu::simd::Isa::Avx2 => unsafe { avx2($($arg),*) },
                $crate::kernels::cpu::simd::Isa::Portable => body($($arg),*),
            }
        }
    };
}
pub(crate) use simd_loop;
