//! Max-pooling that is not fused.

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::native::pool::max::MaxPool;
use stratus_engine::ops::{MaxPoolBackward, MaxPoolForward};

impl CpuOp for MaxPoolForward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let (x, y) = (operands.common_geometry(0)?, operands.common_geometry(1)?);
        let pool = MaxPool::new(&self.pool, x, y, cpu).with_relu_mask(self.mask_relu);
        Ok(typed!(operands.one_type(&[0, 1])?, E => {
            native_step(0, move |o| pool.forward::<E>(o.elements(0), o.elements(1), o.take(2)))
        }))
    }
}

impl CpuOp for MaxPoolBackward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let (dx, dy) = (operands.common_geometry(2)?, operands.common_geometry(0)?);
        let pool = MaxPool::new(&self.pool, dx, dy, cpu);
        Ok(typed!(operands.one_type(&[0, 2])?, E => {
            native_step(0, move |o| pool.backward::<E>(o.elements(0), o.take(1), o.elements(2)))
        }))
    }
}
