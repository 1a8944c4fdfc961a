//! A factor per sample and channel.

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::channel_scale::{
    channel_scale, channel_scale_gradient, channel_scale_mean_backward, scratch_bytes,
};
use crate::native::elementwise::CpuContext;
use stratus_engine::ops::{ChannelScale, ChannelScaleGradient, ChannelScaleMeanBackward};

impl CpuOp for ChannelScale {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 2])?;
        let (map, each, cpu) = (operands.geometry(0)?, operands.geometry(1)?, cpu.clone());
        let scratch = scratch_bytes(&cpu, &map);
        Ok(typed!(operands.one_type(&[0, 1, 2])?, E => native_step(scratch, move |o| {
            let (x, factors, y) = (o.elements(0), o.elements(1), o.elements(2));
            channel_scale::<E>(&cpu, [&map, &each], x, factors, y, o.elements(3));
        })))
    }
}

impl CpuOp for ChannelScaleGradient {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 1])?;
        let (map, each, cpu) = (operands.geometry(0)?, operands.geometry(2)?, cpu.clone());
        let scratch = scratch_bytes(&cpu, &map);
        Ok(typed!(operands.one_type(&[0, 1, 2])?, E => native_step(scratch, move |o| {
            let (x, dy, gradient) = (o.elements(0), o.elements(1), o.elements(2));
            channel_scale_gradient::<E>(&cpu, [&map, &each], x, dy, gradient, o.elements(3));
        })))
    }
}

impl CpuOp for ChannelScaleMeanBackward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 3])?;
        operands.expect_same_layout(&[1, 2])?;
        let (map, each, cpu) = (operands.geometry(0)?, operands.geometry(1)?, cpu.clone());
        let scratch = scratch_bytes(&cpu, &map);
        Ok(typed!(operands.one_type(&[0, 1, 2, 3])?, E => native_step(scratch, move |o| {
            let (dy, numbers, dx) = (o.elements(0), [&*o.elements::<E>(1), o.elements(2)], o.elements(3));
            channel_scale_mean_backward::<E>(&cpu, [&map, &each], dy, numbers, dx, o.elements(4));
        })))
    }
}
