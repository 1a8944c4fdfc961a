//! Channel shuffle and slices.

use super::concat::channels_last;
use super::convert::check_types;
use super::{BuildResult, GpuOp, KernelBuilder, Operand, int, long};
use crate::processor::{Argument, Implementation, Source};
use stratus_engine::ops::{KernelSpec, ScatterChannels, SelectChannels};

/// The launch of a kernel that copies `taken` of `channels` channels.
fn copy(
    name: &'static str,
    operands: &[Operand],
    [channels, first, taken, groups]: [usize; 4],
    builder: &KernelBuilder<'_>,
) -> Result<Implementation, String> {
    check_types(operands)?;
    let dtype = operands[0].dtype();
    if operands[1].dtype() != dtype {
        return Err(format!("cannot convert {dtype} to {}", operands[1].dtype()));
    }
    let items = operands[1].elements();
    let arguments = vec![
        Argument::Operand(0),
        Argument::Operand(1),
        long(items),
        int(channels)?,
        int(first)?,
        int(taken)?,
        int(groups)?,
    ];
    let launch = builder.grid_stride(&Source::new("channels", dtype, 1), name, items, arguments)?;
    Ok(Implementation::native(name, vec![launch], 0))
}

impl GpuOp for SelectChannels {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let ([_, channels, ..], [_, taken, ..]) =
            (channels_last(&operands[0])?, channels_last(&operands[1])?);
        copy(self.name(), operands, [channels, self.first, taken, self.groups], builder)
    }
}

impl GpuOp for ScatterChannels {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let ([_, taken, ..], [_, channels, ..]) =
            (channels_last(&operands[0])?, channels_last(&operands[1])?);
        copy(self.name(), operands, [channels, self.first, taken, self.groups], builder)
    }
}
