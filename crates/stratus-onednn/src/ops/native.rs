//! A native step implemented by a closure.

use stratus_engine::{Operands, StepKernel};

/// A native kernel, ready to run.
pub(crate) struct NativeStep {
    /// The scratch space in bytes, an operand after the step's own.
    pub scratch_bytes: usize,
    /// The kernel.
    pub kernel: Box<dyn StepKernel>,
}

/// A kernel from a closure.
struct Closure<F>(F);

impl<F: FnMut(&mut Operands<'_>) -> Result<(), String> + Send> StepKernel for Closure<F> {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        (self.0)(operands)
    }
}

/// A step whose kernel may fail and needs no scratch.
pub(super) fn fallible(
    run: impl FnMut(&mut Operands<'_>) -> Result<(), String> + Send + 'static,
) -> NativeStep {
    NativeStep { scratch_bytes: 0, kernel: Box::new(Closure(run)) }
}

/// A step whose kernel cannot fail.
pub(crate) fn native_step(
    scratch_bytes: usize,
    mut run: impl FnMut(&mut Operands<'_>) + Send + 'static,
) -> NativeStep {
    let run = move |operands: &mut Operands<'_>| {
        run(operands);
        Ok(())
    };
    NativeStep { scratch_bytes, ..fallible(run) }
}

/// Evaluates an expression with `$element` as the Rust type of `$dtype`, f32 or bf16; returns an error for
/// others.
macro_rules! typed {
    ($dtype:expr, $element:ident => $step:expr) => {
        match $dtype {
            stratus_engine::DType::F32 => {
                type $element = f32;
                $step
            }
            stratus_engine::DType::Bf16 => {
                type $element = crate::native::simd::Bf16;
                $step
            }
            other => return Err(format!("no kernel for {other}")),
        }
    };
}

/// [`typed!`] for the types `$a` of the first operand and `$b` of the operands `$others`, which differ only
/// after a linear layer, whose output has the master precision.
macro_rules! mixed {
    ($operands:ident, $others:expr, $a:ident, $b:ident => $step:expr) => {
        match ($operands.dtype(0), $operands.one_type(&$others)?) {
            (Some(stratus_engine::DType::F32), stratus_engine::DType::Bf16) => {
                type $a = f32;
                type $b = crate::native::simd::Bf16;
                $step
            }
            _ => $crate::ops::native::typed!($operands.one_type(&[&[0][..], &$others[..]].concat())?, E => {
                type $a = E;
                type $b = E;
                $step
            }),
        }
    };
}

pub(super) use mixed;
pub(crate) use typed;
