//! Batch statistics over several parts of a batch.

use super::batch_norm::batch_norm;
use super::native::native_step;
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::native::norm::batch::finish_sums;
use stratus_engine::ops::{BatchNormStatisticsFromSums, BatchNormSums, ChannelOffsets, FusedActivation};

impl CpuOp for BatchNormSums {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let dtypes = operands.norm_types(&[])?;
        let parts = ChannelOffsets { x: self.offset, y: self.offset };
        let maps = operands.norm_maps(0, &self.norm, parts)?;
        let norm = batch_norm(cpu, maps, &self.norm, FusedActivation::Identity, None, dtypes)?;
        Ok(native_step(norm.scratch_bytes(), move |o| norm.sums(o.take(0), o.elements(1), o.take(2))))
    }
}

impl CpuOp for BatchNormStatisticsFromSums {
    fn build(&self, _operands: &StepOperands, _cpu: &CpuContext) -> Result<NativeStep, String> {
        let (norm, count) = (self.norm, self.count as f64);
        Ok(native_step(0, move |o| {
            let running = [o.elements(1), o.elements(2)];
            finish_sums(
                o.elements(0),
                count,
                [norm.epsilon, norm.momentum],
                running,
                [o.elements(3), o.elements(4)],
            );
        }))
    }
}
