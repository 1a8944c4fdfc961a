//! Max-pooling that is not fused.

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::native::pool::max::MaxPool;
use crate::native::rows::MapGeometry;
use stratus_engine::ops::{MaxPoolBackward, MaxPoolForward};
use stratus_graph::ops::MaxPool2d;

impl CpuOp for MaxPoolForward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let (x, y) = (operands.common_geometry(0)?, operands.common_geometry(1)?);
        let pool = max_pool(cpu, &self.pool, x, y).with_relu_mask(self.mask_relu);
        Ok(typed!(operands.one_type(&[0, 1])?, E => {
            native_step(0, move |o| pool.forward::<E>(o.elements(0), o.elements(1), o.take(2)))
        }))
    }
}

impl CpuOp for MaxPoolBackward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let (dx, dy) = (operands.common_geometry(2)?, operands.common_geometry(0)?);
        let pool = max_pool(cpu, &self.pool, dx, dy);
        Ok(typed!(operands.one_type(&[0, 2])?, E => {
            native_step(0, move |o| pool.backward::<E>(o.elements(0), o.take(1), o.elements(2)))
        }))
    }
}

pub(super) fn max_pool(
    cpu: &CpuContext,
    pool: &MaxPool2d,
    input: MapGeometry,
    output: MapGeometry,
) -> MaxPool {
    MaxPool::new(pool, input, output, cpu.level, cpu.team.clone())
}
