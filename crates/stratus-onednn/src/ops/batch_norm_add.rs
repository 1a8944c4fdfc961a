//! Batch norm followed by the sum of a residual block.

use super::batch_norm::batch_norm;
use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use stratus_engine::ops::{BatchNormAddApply, BatchNormAddReluGradients, ChannelOffsets, FusedActivation};

impl CpuOp for BatchNormAddApply {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 5, 6])?;
        let dtypes = operands.norm_types(&[5, 6])?;
        let maps = operands.norm_maps(0, &self.norm, ChannelOffsets::default())?;
        let norm = batch_norm(cpu, maps, &self.norm, FusedActivation::relu_if(self.relu), None, dtypes)?;
        Ok(native_step(norm.scratch_bytes(), move |o| {
            let maps = [&*o.take(0), o.take(5)];
            let parameters = [o.elements(1), o.elements(2), o.elements(3), o.elements(4)].map(|s| &*s);
            norm.apply(maps, parameters, o.take(6), &mut [], o.take(7));
        }))
    }
}

impl CpuOp for BatchNormAddReluGradients {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        // The map, the output and the optional addend; then the gradient of the addend.
        let [dy, ..] = operands.counts;
        let maps: Vec<usize> = [0, 1].into_iter().chain(4..=dy).collect();
        operands.expect_same_layout(&maps)?;
        let dtype = operands.one_type(&maps)?;
        let maps = operands.norm_maps(0, &self.norm, ChannelOffsets::default())?;
        let norm = batch_norm(cpu, maps, &self.norm, FusedActivation::RELU, None, [dtype; 2])?;
        Ok(typed!(dtype, E => native_step(norm.scratch_bytes(), move |o| {
            let part: &[E] = if dy > 4 { o.elements(4) } else { &[] };
            let maps = [&*o.elements::<E>(0), o.elements(1), part];
            let statistics = [o.elements(2), o.elements(3)].map(|s| &*s);
            let gradients = [o.elements(dy + 1), o.elements(dy + 2)];
            let (sums, tile, scratch) = (o.elements(dy + 3), o.tile(), o.take(dy + 4));
            norm.gradients_after_sum(maps, statistics, o.elements(dy), gradients, sums, tile, scratch);
        })))
    }
}
