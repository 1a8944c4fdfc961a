//! Concatenation of channels, and the slice of the gradient for each input.

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::concat::{ChannelRange, Concat};
use crate::native::elementwise::CpuContext;
use stratus_engine::ops::{ConcatBackward, ConcatForward};

impl CpuOp for ConcatForward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let inputs = operands.values.len() - 1;
        let mut at = 0;
        let mut pieces = Vec::new();
        for position in 0..inputs {
            let from = operands.geometry(position)?;
            pieces.push(ChannelRange { from, first: 0, at, channels: from.channels });
            at += from.channels;
        }
        let concat = Concat { pieces, to: operands.geometry(inputs)?, team: cpu.team.clone() };
        Ok(typed!(operands.one_type(&(0..=inputs).collect::<Vec<_>>())?, E => native_step(0, move |o| {
            let y = o.elements::<E>(inputs);
            let sources = std::array::from_fn(|position| &*o.elements::<E>(position));
            concat.run(&sources, y);
        })))
    }
}

impl CpuOp for ConcatBackward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let (from, to) = (operands.geometry(0)?, operands.geometry(1)?);
        let pieces = vec![ChannelRange { from, first: self.first, at: 0, channels: to.channels }];
        let concat = Concat { pieces, to, team: cpu.team.clone() };
        Ok(typed!(operands.one_type(&[0, 1])?, E => native_step(0, move |o| {
            let y = o.elements::<E>(1);
            let sources = std::array::from_fn(|position| &*o.elements::<E>(position));
            concat.run(&sources, y);
        })))
    }
}
