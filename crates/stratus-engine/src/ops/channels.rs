//! Channels in another order, or some of them.

use super::{KernelSpec, Tiling, expect_counts, expect_shape, image_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;
use stratus_graph::ops::{ChannelShuffle, ChannelSlice};

/// `x -> y`: as many channels as `y` has, from the channel `first` of `x` on, of `groups` in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SelectChannels {
    /// The first channel that is taken.
    pub first: usize,
    /// How many groups of the channels that are taken come in turn; 1 leaves their order.
    pub groups: usize,
}

/// `dy -> dx`: puts the channels where [`SelectChannels`] took them from; the others are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PlaceChannels {
    /// The first channel that was taken.
    pub first: usize,
    /// Groups that came in turn.
    pub groups: usize,
}

impl SelectChannels {
    /// The channel of `x` that channel `channel` of the `channels` of `y` is.
    #[must_use]
    pub fn source(&self, channel: usize, channels: usize) -> usize {
        let groups = self.groups.max(1);
        self.first + channel % groups * (channels / groups) + channel / groups
    }
}

impl PlaceChannels {
    /// The channel of the `channels` of `dy` that channel `channel` of `dx` is; none where it was not taken.
    #[must_use]
    pub fn source(&self, channel: usize, channels: usize) -> Option<usize> {
        let taken = channel.checked_sub(self.first).filter(|&taken| taken < channels)?;
        let each = (channels / self.groups.max(1)).max(1);
        Some(taken % each * self.groups + taken / each)
    }
}

pub(super) fn lower_shuffle(op: &ChannelShuffle, node: &Node, to: &mut Lowering) -> Result<(), EngineError> {
    lower(SelectChannels { first: 0, groups: op.groups }, node, to)
}

pub(super) fn lower_slice(op: &ChannelSlice, node: &Node, to: &mut Lowering) -> Result<(), EngineError> {
    lower(SelectChannels { first: op.first, groups: 1 }, node, to)
}

fn lower(kernel: SelectChannels, node: &Node, to: &mut Lowering) -> Result<(), EngineError> {
    let (x, y) = (to.input(node, 0), to.output(node));
    to.push(node, kernel, vec![x], vec![], vec![y]);
    Ok(())
}

/// Checks a map and one of some of its channels, from `first` on.
fn expect_some(all: &Value, some: &Value, first: usize, groups: usize) -> Result<(), String> {
    let ([n, of, h, w], [_, channels, ..]) = (image_shape(all)?, image_shape(some)?);
    if groups == 0 || !channels.is_multiple_of(groups) || first + channels > of {
        return Err(format!(
            "`{}` has {of} channels, it takes {channels} from channel {first} on in {groups} groups",
            all.name
        ));
    }
    expect_shape(some, &[n, channels, h, w])
}

impl KernelSpec for SelectChannels {
    fn name(&self) -> &'static str {
        "select_channels"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        expect_some(operands[0], operands[1], self.first, self.groups)
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, _operands: &[&Value]) -> u64 {
        0
    }

    fn differentiate(&self, step: &Step, to: &mut Differentiator) -> Result<(), EngineError> {
        let (x, y) = (step.inputs[0], step.outputs[0]);
        let Some(dy) = to.gradient(y) else { return Ok(()) };
        if to.wants_gradient(x) {
            let kernel = PlaceChannels { first: self.first, groups: self.groups };
            to.add_gradient(x, |to, dx| {
                to.push(step, kernel, Phase::BackwardData, vec![dy], vec![], vec![dx]);
            });
        }
        Ok(())
    }
}

impl KernelSpec for PlaceChannels {
    fn name(&self) -> &'static str {
        "place_channels"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        expect_some(operands[1], operands[0], self.first, self.groups)
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
    fn groups_come_in_turn() {
        let (first, groups) = (0, 2);
        let order: Vec<usize> = (0..6).map(|c| SelectChannels { first, groups }.source(c, 6)).collect();
        assert_eq!(order, [0, 3, 1, 4, 2, 5]);
        for (first, groups) in [(0, 2), (0, 3), (5, 1), (2, 6)] {
            let (select, place) = (SelectChannels { first, groups }, PlaceChannels { first, groups });
            for channel in 0..6 {
                assert_eq!(place.source(select.source(channel, 6), 6), Some(channel), "{select:?}");
            }
            assert_eq!(place.source(first + 6, 6), None);
            assert_eq!(first.checked_sub(1).and_then(|channel| place.source(channel, 6)), None);
        }
    }
}
