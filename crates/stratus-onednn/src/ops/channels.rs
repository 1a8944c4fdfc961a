//! Channels in another order, or some of them.

use super::native::{native_step, typed};
use super::{NativeStep, OnCpu, StepOperands};
use crate::native::channels::{Channels, Run};
use crate::native::elementwise::CpuContext;
use stratus_engine::ops::{PlaceChannels, SelectChannels};

/// The step that gathers the channels of its first operand that belong in its second. `run` says which each
/// group has, of as many channels.
fn gather(
    operands: &StepOperands,
    cpu: &CpuContext,
    [taken, groups]: [usize; 2],
    run: impl Fn(usize, usize) -> Run,
) -> Result<NativeStep, String> {
    let maps = [operands.geometry(0)?, operands.geometry(1)?];
    let each = taken / groups.max(1);
    let runs = (0..groups).map(|group| run(group, each)).collect();
    let channels = Channels::new(maps, runs, cpu.team.clone());
    Ok(typed!(operands.one_type(&[0, 1])?, E => native_step(0, move |o| {
        channels.run::<E>(o.elements(0), o.elements(1));
    })))
}

impl OnCpu for SelectChannels {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let (taken, first, groups) = (operands.geometry(1)?.channels, self.first, self.groups);
        gather(operands, cpu, [taken, groups], |group, channels| Run {
            from: [first + group * channels, 1],
            to: [group, groups],
            channels,
        })
    }
}

impl OnCpu for PlaceChannels {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let (taken, first, groups) = (operands.geometry(0)?.channels, self.first, self.groups);
        gather(operands, cpu, [taken, groups], |group, channels| Run {
            from: [group, groups],
            to: [first + group * channels, 1],
            channels,
        })
    }
}
