//! Average pooling.

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::native::pool::average::AvgPool;
use stratus_engine::ops::{AvgPoolBackward, AvgPoolForward};

impl CpuOp for AvgPoolForward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let (x, y) = (operands.common_geometry(0)?, operands.common_geometry(1)?);
        let pool = AvgPool::new(&self.pooling, x, y, cpu);
        Ok(typed!(operands.one_type(&[0, 1])?, E => {
            native_step(0, move |o| pool.forward::<E>(o.elements(0), o.elements(1)))
        }))
    }
}

impl CpuOp for AvgPoolBackward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let (dx, dy) = (operands.common_geometry(1)?, operands.common_geometry(0)?);
        let pool = AvgPool::new(&self.pooling, dx, dy, cpu);
        Ok(typed!(operands.one_type(&[0, 1])?, E => {
            native_step(0, move |o| pool.backward::<E>(o.elements(0), o.elements(1)))
        }))
    }
}
