//! ReLU with a trained slope below 0.

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::native::prelu::{
    gradient_scratch_bytes, prelu, prelu_backward, prelu_gradient, prelu_scratch_bytes,
};
use crate::native::simd::Bf16;
use stratus_engine::DType;
use stratus_engine::ops::{PreluBackward, PreluForward, PreluGradient};

/// Evaluates a step for the types `$a` of `x` and `$b` of the other maps, at these positions. Outputs of
/// linear layers have the master precision.
macro_rules! mixed {
    ($operands:ident, $others:expr, $a:ident, $b:ident => $step:expr) => {
        match ($operands.dtype(0), $operands.one_type($others)?) {
            (Some(DType::F32), DType::Bf16) => {
                type $a = f32;
                type $b = Bf16;
                $step
            }
            (Some(x), other) if x == other => typed!(other, E => {
                type $a = E;
                type $b = E;
                $step
            }),
            (x, other) => return Err(format!("no kernel for operands of types {x:?} and {other}")),
        }
    };
}

impl CpuOp for PreluForward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 2])?;
        let (map, cpu) = (operands.geometry(0)?, cpu.clone());
        let scratch = prelu_scratch_bytes(&map);
        Ok(mixed!(operands, &[2], A, B => native_step(scratch, move |o| {
            let (x, slopes, y) = (o.elements(0), o.elements(1), o.elements(2));
            prelu::<A, B>(&cpu, &map, x, slopes, y, o.elements(3));
        })))
    }
}

impl CpuOp for PreluBackward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 1, 3])?;
        let (map, cpu) = (operands.geometry(0)?, cpu.clone());
        let scratch = prelu_scratch_bytes(&map);
        Ok(mixed!(operands, &[1, 3], A, B => native_step(scratch, move |o| {
            let (maps, slopes) = ((&*o.elements(0), &*o.elements(1)), o.elements(2));
            prelu_backward::<A, B>(&cpu, &map, maps, slopes, o.elements(3), o.elements(4));
        })))
    }
}

impl CpuOp for PreluGradient {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 1])?;
        let (map, cpu) = (operands.geometry(0)?, cpu.clone());
        let scratch = gradient_scratch_bytes(&cpu, &map);
        Ok(mixed!(operands, &[1], A, B => native_step(scratch, move |o| {
            let maps = (&*o.elements(0), &*o.elements(1));
            prelu_gradient::<A, B>(&cpu, &map, maps, o.elements(2), o.take(3));
        })))
    }
}
