//! Bilinear resizing.

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::native::resize::Resize;
use crate::native::rows::MapGeometry;
use stratus_engine::ops::{ResizeBackward, ResizeForward};
use stratus_engine::{DType, Value};

/// The types of both maps, which may differ.
fn types(operands: &StepOperands) -> Result<[DType; 2], String> {
    match operands.values[..] {
        [Value { dtype: from, .. }, Value { dtype: to, .. }] => Ok([from, to]),
        _ => Err("expected two maps as operands".to_owned()),
    }
}

/// The geometries of the maps at two positions.
fn geometries(operands: &StepOperands, positions: [usize; 2]) -> Result<[MapGeometry; 2], String> {
    Ok([operands.common_geometry(positions[0])?, operands.common_geometry(positions[1])?])
}

fn step(resize: Resize, [from, to]: [DType; 2]) -> Result<NativeStep, String> {
    Ok(typed!(from, A => typed!(to, B => native_step(resize.scratch_bytes(), move |o| {
        resize.run::<A, B>(o.elements(0), o.elements(1), o.elements(2));
    }))))
}

impl CpuOp for ResizeForward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let [x, y] = geometries(operands, [0, 1])?;
        step(Resize::forward(&self.interpolation, x, y, cpu), types(operands)?)
    }
}

impl CpuOp for ResizeBackward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let [dy, dx] = geometries(operands, [0, 1])?;
        step(Resize::backward(&self.interpolation, dx, dy, cpu), types(operands)?)
    }
}
