//! Bilinear resizing.

use super::native::{native_step, typed};
use super::{NativeStep, OnCpu, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::native::resize::Resize;
use stratus_engine::ops::{Bilinear, ResizeBackward, ResizeForward};
use stratus_engine::{DType, Value};

/// The types of both maps, which may differ.
fn types(operands: &StepOperands) -> Result<[DType; 2], String> {
    match operands.values[..] {
        [Value { dtype: from, .. }, Value { dtype: to, .. }] => Ok([from, to]),
        _ => Err("it has other operands than two maps".to_owned()),
    }
}

/// The resizing of the map at position `input` to that at position `output`.
fn resize(
    bilinear: &Bilinear,
    operands: &StepOperands,
    [input, output]: [usize; 2],
    cpu: &CpuContext,
) -> Result<Resize, String> {
    let (input, output) = (operands.common_geometry(input)?, operands.common_geometry(output)?);
    Ok(Resize::new(bilinear, input, output, cpu.level, cpu.team.clone()))
}

impl OnCpu for ResizeForward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let resize = resize(&self.bilinear, operands, [0, 1], cpu)?;
        let [from, to] = types(operands)?;
        Ok(typed!(from, A => typed!(to, B => native_step(resize.scratch_bytes(), move |o| {
            resize.forward::<A, B>(o.elements(0), o.elements(1), o.elements(2));
        }))))
    }
}

impl OnCpu for ResizeBackward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let resize = resize(&self.bilinear, operands, [1, 0], cpu)?;
        let [from, to] = types(operands)?;
        Ok(typed!(from, A => typed!(to, B => native_step(resize.scratch_bytes(), move |o| {
            resize.backward::<A, B>(o.elements(0), o.elements(1), o.elements(2));
        }))))
    }
}
