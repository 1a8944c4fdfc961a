//! ReLU with a trained slope below 0.

use super::native::{mixed, native_step};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::native::prelu::{
    gradient_scratch_bytes, prelu, prelu_backward, prelu_gradient, prelu_scratch_bytes,
};
use stratus_engine::ops::{PreluBackward, PreluForward, PreluGradient};

impl CpuOp for PreluForward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 2])?;
        let (map, cpu) = (operands.geometry(0)?, cpu.clone());
        let scratch = prelu_scratch_bytes(&map);
        Ok(mixed!(operands, [2], A, B => native_step(scratch, move |o| {
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
        Ok(mixed!(operands, [1, 3], A, B => native_step(scratch, move |o| {
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
        Ok(mixed!(operands, [1], A, B => native_step(scratch, move |o| {
            let maps = (&*o.elements(0), &*o.elements(1));
            prelu_gradient::<A, B>(&cpu, &map, maps, o.elements(2), o.take(3));
        })))
    }
}
