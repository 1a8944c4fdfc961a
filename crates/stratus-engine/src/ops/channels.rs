//! Reordering and selecting channels.

use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_shape, image_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;
use stratus_graph::ops::{ChannelShuffle, ChannelSlice};

/// `x -> y`: the channels of `x` starting at `first`, interleaved over `groups` groups (channel shuffle); `y`
/// determines their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SelectChannels {
    /// The first selected channel.
    pub first: usize,
    /// The number of interleaved groups; 1 keeps the order.
    pub groups: usize,
}

/// `dy -> dx`: scatters the channels to the positions at which [`SelectChannels`] read them; the others are
/// 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ScatterChannels {
    /// The first selected channel.
    pub first: usize,
    /// The number of interleaved groups.
    pub groups: usize,
}

impl SelectChannels {
    /// The channel of `x` that becomes channel `channel` of the `channels` of `y`.
    #[must_use]
    pub fn source(&self, channel: usize, channels: usize) -> usize {
        let groups = self.groups.max(1);
        self.first + channel % groups * (channels / groups) + channel / groups
    }
}

impl ScatterChannels {
    /// The channel of `dy`, of `channels`, that becomes channel `channel` of `dx`; `None` if it was not
    /// selected.
    #[must_use]
    pub fn source(&self, channel: usize, channels: usize) -> Option<usize> {
        let taken = channel.checked_sub(self.first).filter(|&taken| taken < channels)?;
        let each = (channels / self.groups.max(1)).max(1);
        Some(taken % each * self.groups + taken / each)
    }
}

pub(super) fn lower_shuffle(
    op: &ChannelShuffle,
    node: &Node,
    lowering: &mut Lowering,
) -> Result<(), EngineError> {
    lower(SelectChannels { first: 0, groups: op.groups }, node, lowering)
}

pub(super) fn lower_slice(
    op: &ChannelSlice,
    node: &Node,
    lowering: &mut Lowering,
) -> Result<(), EngineError> {
    lower(SelectChannels { first: op.first, groups: 1 }, node, lowering)
}

fn lower(kernel: SelectChannels, node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    let (x, y) = (lowering.input(node, 0), lowering.output(node));
    lowering.push(node, kernel, vec![x], vec![], vec![y]);
    Ok(())
}

/// Checks a map and a selection of its channels.
fn expect_selection(map: &Value, selection: &Value, first: usize, groups: usize) -> Result<(), String> {
    let ([n, available, h, w], [_, channels, ..]) = (image_shape(map)?, image_shape(selection)?);
    if groups == 0 || !channels.is_multiple_of(groups) || first + channels > available {
        return Err(format!(
            "`{}` has {available} channels; channels {first}..{} in {groups} groups are out of range",
            map.name,
            first + channels
        ));
    }
    expect_shape(selection, &[n, channels, h, w])
}

impl KernelSpec for SelectChannels {
    fn name(&self) -> &'static str {
        "select_channels"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        expect_selection(operands[0], operands[1], self.first, self.groups)
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, _operands: &[&Value]) -> u64 {
        0
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let (x, y) = (step.inputs[0], step.outputs[0]);
        let Some(dy) = backward.gradient(y) else { return Ok(()) };
        if backward.requires_grad(x) {
            let kernel = ScatterChannels { first: self.first, groups: self.groups };
            backward.add_gradient(x, |backward, dx| {
                backward.push(step, kernel, Phase::BackwardData, vec![dy], vec![], vec![dx]);
            });
        }
        Ok(())
    }
}

impl KernelSpec for ScatterChannels {
    fn name(&self) -> &'static str {
        "place_channels"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        expect_selection(operands[1], operands[0], self.first, self.groups)
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, _operands: &[&Value]) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `torch.nn.ChannelShuffle(2)` of six channels, and back.
    #[test]
    fn shuffle_interleaves_groups_and_scatter_inverts_it() {
        let (first, groups) = (0, 2);
        let order: Vec<usize> = (0..6).map(|c| SelectChannels { first, groups }.source(c, 6)).collect();
        assert_eq!(order, [0, 3, 1, 4, 2, 5]);
        for (first, groups) in [(0, 2), (0, 3), (5, 1), (2, 6)] {
            let (select, scatter) = (SelectChannels { first, groups }, ScatterChannels { first, groups });
            for channel in 0..6 {
                assert_eq!(scatter.source(select.source(channel, 6), 6), Some(channel), "{select:?}");
            }
            assert_eq!(scatter.source(first + 6, 6), None);
            assert_eq!(first.checked_sub(1).and_then(|channel| scatter.source(channel, 6)), None);
        }
    }
}
