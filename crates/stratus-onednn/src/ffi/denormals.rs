//! The library's kernels treat denormal numbers as zero (flush-to-zero and denormals-are-zero).
//!
//! A processor takes a hundred times as long for numbers below 1e-38, which change no training. They do
//! occur: in AlexNet's first iterations in f32 the library's weight gradients took up to ten times as long as
//! otherwise, and no longer once denormals were zero (docs/benchmarks/kernels.md). Rust code relies on the
//! ordinary rules: they hold everywhere but in the library.
//!
//! A thread inherits the rules of the one that starts it. So the library's threads have the library's rules,
//! and native kernels on them run inside [`ordinarily`].

/// MXCSR bits: denormal results and operands are zero.
#[cfg(target_arch = "x86_64")]
const AS_ZERO: u32 = 0x8040;

/// MXCSR as Rust starts threads: every exception masked, rounding to nearest, denormals kept.
#[cfg(target_arch = "x86_64")]
const ORDINARY: u32 = 0x1f80;

#[cfg(target_arch = "x86_64")]
fn read() -> u32 {
    let mut control = 0u32;
    // SAFETY: stores the register into the variable. (The intrinsics for it are deprecated in favour of
    // assembly.)
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut control, options(nostack, preserves_flags)) };
    control
}

#[cfg(target_arch = "x86_64")]
fn write(control: u32) {
    // SAFETY: a value that was read, or one of the constants above, with all exceptions masked. The functions
    // below restore the ordinary rules before any Rust arithmetic.
    unsafe {
        std::arch::asm!(
            "ldmxcsr [{}]",
            in(reg) &raw const control,
            options(nostack, preserves_flags, readonly)
        );
    }
}

/// Calls the library with denormals as zero, on the calling thread and those that the library starts.
#[inline(never)]
pub fn as_zero<R>(call: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        let before = read();
        write(before | AS_ZERO);
        let result = call();
        write(before);
        result
    }
    #[cfg(not(target_arch = "x86_64"))]
    call()
}

/// Calls native code on a thread of the library's by the ordinary rules. Afterwards the library's hold again,
/// unless the thread is the caller's.
#[inline(never)]
pub fn ordinarily<R>(is_callers: bool, call: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        write(ORDINARY);
        let result = call();
        write(if is_callers { ORDINARY } else { ORDINARY | AS_ZERO });
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

    /// Whether half of the smallest normal number is zero.
    fn vanishes() -> bool {
        black_box(f32::MIN_POSITIVE) * black_box(0.5) == 0.0
    }

    #[test]
    fn rules_hold_inside_and_not_outside() {
        assert!(!vanishes());
        assert!(as_zero(vanishes));
        assert!(!vanishes());
        as_zero(|| {
            assert!(std::thread::spawn(vanishes).join().unwrap_or(false), "threads inherit the rules");
            assert!(!ordinarily(false, vanishes));
            assert!(vanishes());
            assert!(!ordinarily(true, vanishes));
            assert!(!vanishes());
        });
        assert!(!vanishes());
    }
}
