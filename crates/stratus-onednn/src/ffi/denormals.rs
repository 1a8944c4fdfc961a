//! Treats denormal numbers as zero in oneDNN's kernels (flush-to-zero and denormals-are-zero).
//!
//! A CPU computes with numbers below 1e-38 a hundred times more slowly, and they do not affect training. They
//! do occur: in AlexNet's first iterations in f32, oneDNN's weight gradients took up to ten times as long
//! until denormals were zero (docs/benchmarks/kernels.md). Rust code relies on the default floating-point
//! mode, which therefore applies everywhere except in oneDNN.
//!
//! A thread inherits the mode of the thread that starts it. Therefore oneDNN's threads have oneDNN's mode,
//! and native kernels on them run inside [`with_default_fp_mode`].

/// MXCSR bits: denormal results and operands are zero.
#[cfg(target_arch = "x86_64")]
const FTZ_DAZ_BITS: u32 = 0x8040;

/// MXCSR of new Rust threads: every exception masked, rounding to nearest, denormals kept.
#[cfg(target_arch = "x86_64")]
const DEFAULT_MXCSR: u32 = 0x1f80;

#[cfg(target_arch = "x86_64")]
fn read() -> u32 {
    let mut control = 0u32;
    // SAFETY: stores the register into the variable. (The intrinsics are deprecated in favour of assembly.)
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut control, options(nostack, preserves_flags)) };
    control
}

#[cfg(target_arch = "x86_64")]
fn write(control: u32) {
    // SAFETY: a value that was read, or one of the constants above, with all exceptions masked. The functions
    // below restore the default mode before any Rust arithmetic.
    unsafe {
        std::arch::asm!(
            "ldmxcsr [{}]",
            in(reg) &raw const control,
            options(nostack, preserves_flags, readonly)
        );
    }
}

/// Calls oneDNN with denormals as zero, on the calling thread and on those that oneDNN starts.
#[inline(never)]
pub fn with_flush_to_zero<R>(call: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        let before = read();
        write(before | FTZ_DAZ_BITS);
        let result = call();
        write(before);
        result
    }
    #[cfg(not(target_arch = "x86_64"))]
    call()
}

/// Runs native code on one of oneDNN's threads in the default mode. Restores oneDNN's mode afterwards, unless
/// the thread is the caller's.
#[inline(never)]
pub fn with_default_fp_mode<R>(is_callers: bool, call: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        write(DEFAULT_MXCSR);
        let result = call();
        write(if is_callers { DEFAULT_MXCSR } else { DEFAULT_MXCSR | FTZ_DAZ_BITS });
        result
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = is_callers;
        call()
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use std::hint::black_box;

    /// Returns whether half of the smallest normal number is zero.
    fn vanishes() -> bool {
        black_box(f32::MIN_POSITIVE) * black_box(0.5) == 0.0
    }

    #[test]
    fn denormals_are_flushed_only_inside_onednn() {
        assert!(!vanishes());
        assert!(with_flush_to_zero(vanishes));
        assert!(!vanishes());
        with_flush_to_zero(|| {
            assert!(std::thread::spawn(vanishes).join().unwrap_or(false), "threads inherit the mode");
            assert!(!with_default_fp_mode(false, vanishes));
            assert!(vanishes());
            assert!(!with_default_fp_mode(true, vanishes));
            assert!(!vanishes());
        });
        assert!(!vanishes());
    }
}
