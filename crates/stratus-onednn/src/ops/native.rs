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
pub(super) fn native_step(
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

pub(super) use typed;
