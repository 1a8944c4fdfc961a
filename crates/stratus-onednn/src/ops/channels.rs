//! Channel shuffle and slices.

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::channels::{ChannelGather, ChannelRun};
use crate::native::elementwise::CpuContext;
use stratus_engine::ops::{ScatterChannels, SelectChannels};

/// The step that gathers the channels of its first operand into its second. `run` selects the range of each
/// group, given the channels per group.
fn gather(
    operands: &StepOperands,
    cpu: &CpuContext,
    [selected, groups]: [usize; 2],
    run: impl Fn(usize, usize) -> ChannelRun,
) -> Result<NativeStep, String> {
    let maps = [operands.geometry(0)?, operands.geometry(1)?];
    let channels_per_group = selected / groups.max(1);
    let runs = (0..groups).map(|group| run(group, channels_per_group)).collect();
    let channels = ChannelGather::new(maps, runs, cpu.team.clone());
    Ok(typed!(operands.one_type(&[0, 1])?, E => native_step(0, move |o| {
        channels.run::<E>(o.elements(0), o.elements(1));
    })))
}

impl CpuOp for SelectChannels {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let (selected, first, groups) = (operands.geometry(1)?.channels, self.first, self.groups);
        gather(operands, cpu, [selected, groups], |group, channels| ChannelRun {
            from: [first + group * channels, 1],
            to: [group, groups],
            channels,
        })
    }
}

impl CpuOp for ScatterChannels {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let (selected, first, groups) = (operands.geometry(0)?.channels, self.first, self.groups);
        gather(operands, cpu, [selected, groups], |group, channels| ChannelRun {
            from: [group, groups],
            to: [first + group * channels, 1],
            channels,
        })
    }
}
