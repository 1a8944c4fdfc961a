//! The choice of units: those of the least importance for what they cost, in multiply-adds or in time.

use super::cost::LayerCost;
use super::{ChannelGroup, GroupTensor, PruneError, Scores, Selection, channel_groups};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use stratus_graph::{Graph, NodeId, TensorId};

/// The multiply-adds, or the time, to remove, and what remains of each group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// The share of the network's cost to remove, at least 0 and at most 1.
    pub share: f64,
    /// The channels of a group that remain in a tensor are a multiple of this number, or all. At least 1.
    pub granularity: usize,
    /// The minimum number of channels that remain of a group in a tensor, unless it has fewer.
    pub min_channels: usize,
}

impl Target {
    /// The channels of a block of the kernels' layouts.
    pub const DEFAULT_GRANULARITY: usize = 16;

    /// A share to remove, in multiples of [`Target::DEFAULT_GRANULARITY`].
    #[must_use]
    pub fn new(share: f64) -> Self {
        Self { share, granularity: Self::DEFAULT_GRANULARITY, min_channels: 1 }
    }

    fn check(&self) -> Result<(), PruneError> {
        let invalid = |key, value: String, need| Err(PruneError::InvalidTarget { key, value, need });
        if !(0.0..=1.0).contains(&self.share) {
            return invalid("share", self.share.to_string(), "must be from 0 to 1");
        }
        if self.granularity == 0 {
            return invalid("granularity", "0".to_owned(), "must be at least 1");
        }
        Ok(())
    }
}

/// Chooses the units to remove, of all groups at once, until the share of multiply-adds is reached. The
/// result is a function of the arguments: units of equal importance are removed from the last to the first,
/// and of equal steps that of the first group is taken.
///
/// A step removes the least important units of a group until its remaining channels are a multiple of the
/// granularity again. The step with the least importance per multiply-add is taken, with the multiply-adds
/// that the network has left at this point. The importance is divided by the share of the group that would
/// remain, because the last units of a layer cannot replace each other, which sums of scores ignore: without
/// it the layers with the most multiply-adds would lose nearly all channels.
///
/// # Errors
/// If the share cannot be reached: the error has the largest possible share. If the scores are not those of
/// the network's units, or the target is not valid.
pub fn choose(graph: &Graph, scores: &Scores, target: &Target) -> Result<Selection, PruneError> {
    choose_by_cost(graph, scores, target, &BTreeMap::new())
}

/// [`choose`] with a cost per multiply-add for each layer by its name, such as a measured time; 1 for layers
/// without an entry. Shares are those of the sum of these costs.
///
/// # Errors
/// As there, and if a cost is negative or not finite.
pub fn choose_by_cost(
    graph: &Graph,
    scores: &Scores,
    target: &Target,
    costs: &BTreeMap<String, f64>,
) -> Result<Selection, PruneError> {
    target.check()?;
    if let Some(cost) = costs.values().find(|cost| !cost.is_finite() || **cost < 0.0) {
        let value = cost.to_string();
        return Err(PruneError::InvalidTarget { key: "cost", value, need: "must be finite, at least 0" });
    }
    let groups = channel_groups(graph)?;
    check_scores(graph, &groups, scores)?;
    let mut search = Search::new(graph, &groups, scores, target, costs);
    let total = search.total();
    let wanted = total * target.share;
    check_reachable(&search, total, target)?;
    let mut removed = 0.0;
    let mut steps: BinaryHeap<Reverse<RemovalStep>> =
        (0..groups.len()).filter_map(|group| search.next_step(group)).map(Reverse).collect();
    while removed < wanted {
        let Some(Reverse(step)) = steps.pop() else { break };
        let group = step.group;
        // A neighbouring group has shrunk since, so that this step saves less.
        if search.groups[group].is_stale {
            steps.extend(search.next_step(group).map(Reverse));
            continue;
        }
        removed += search.take(&step);
        steps.extend(search.next_step(group).map(Reverse));
    }
    Ok(search.selection())
}

/// Checks that there is a finite, non-negative score for every unit.
fn check_scores(graph: &Graph, groups: &[ChannelGroup], scores: &Scores) -> Result<(), PruneError> {
    let mismatch = |problem: &str| {
        Err(PruneError::Mismatch { network: graph.name.clone(), problem: problem.to_owned() })
    };
    let sizes = groups.iter().map(|group| group.units.len());
    if !sizes.eq(scores.0.iter().map(Vec::len)) {
        return mismatch("the scores are those of the units of another network");
    }
    if !scores.0.iter().flatten().all(|score| score.is_finite() && *score >= 0.0) {
        return mismatch("the score of a unit is negative or not finite");
    }
    Ok(())
}

/// Checks that the share can be reached.
fn check_reachable(search: &Search<'_>, total: f64, target: &Target) -> Result<(), PruneError> {
    let removable = total - search.min_cost();
    let granularity = target.granularity;
    if target.share > 0.0 && removable <= 0.0 {
        return Err(PruneError::NothingToPrune { granularity });
    }
    if removable < total * target.share {
        let largest = removable / total;
        return Err(PruneError::Unreachable { share: target.share, largest, granularity });
    }
    Ok(())
}

/// The removal of the least important units of a group.
#[derive(Clone, Copy, Debug)]
struct RemovalStep {
    /// The importance of its units per cost that it saves, divided by the share of the group that remains.
    penalty: f64,
    group: usize,
    /// The number of units that remain after it.
    remaining: usize,
}

impl Ord for RemovalStep {
    fn cmp(&self, other: &Self) -> Ordering {
        self.penalty.total_cmp(&other.penalty).then(self.group.cmp(&other.group))
    }
}

impl PartialOrd for RemovalStep {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for RemovalStep {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for RemovalStep {}

/// A layer with a weight.
#[derive(Debug)]
struct Layer {
    cost: LayerCost,
    /// The cost of a multiply-add.
    rate: f64,
    input: TensorId,
    output: TensorId,
    /// The groups that it reads and produces.
    groups: Vec<usize>,
}

/// The state of a group.
#[derive(Debug)]
struct GroupState {
    /// The units, the most important one first.
    order: Vec<usize>,
    remaining: usize,
    /// The number of remaining units is a multiple of it, or all.
    multiple: usize,
    /// The minimum number of remaining units.
    min_remaining: usize,
    /// The layers that read or produce it, as positions in [`Search::layers`].
    layers: Vec<usize>,
    /// True if the cost of a layer changed since the group's next step was computed.
    is_stale: bool,
}

impl GroupState {
    /// The next smaller number of units.
    fn next_remaining(&self) -> Option<usize> {
        let next = (self.remaining - 1) / self.multiple * self.multiple;
        (next >= self.min_remaining).then_some(next)
    }
}

/// The state of the search.
struct Search<'a> {
    tensors: Vec<&'a [GroupTensor]>,
    scores: &'a Scores,
    groups: Vec<GroupState>,
    layers: Vec<Layer>,
    /// The remaining channels of each tensor.
    channels: Vec<usize>,
}

impl<'a> Search<'a> {
    fn new(
        graph: &Graph,
        groups: &'a [ChannelGroup],
        scores: &'a Scores,
        target: &Target,
        costs: &BTreeMap<String, f64>,
    ) -> Self {
        let mut layers = Vec::new();
        let mut positions = vec![usize::MAX; graph.nodes.len()];
        for (node, position) in graph.nodes.iter().zip(&mut positions) {
            if let (Some(cost), Some(&input)) = (LayerCost::of(graph, node), node.inputs.first()) {
                *position = layers.len();
                let rate = costs.get(&node.name).copied().unwrap_or(1.0);
                layers.push(Layer { cost, rate, input, output: node.output, groups: Vec::new() });
            }
        }
        let mut states = Vec::with_capacity(groups.len());
        for (position, (group, scores)) in groups.iter().zip(&scores.0).enumerate() {
            let ids: BTreeSet<NodeId> = group.producers.iter().chain(&group.readers).copied().collect();
            let of_group = ids.iter().map(|id| positions[id.0]).filter(|layer| *layer < layers.len());
            let of_group: Vec<usize> = of_group.collect();
            of_group.iter().for_each(|&layer| layers[layer].groups.push(position));
            states.push(group_state(group, scores, of_group, target));
        }
        let channels = graph.tensors.iter().map(|shape| shape.0.first().copied().unwrap_or(0)).collect();
        let tensors = groups.iter().map(|group| &group.tensors[..]).collect();
        Self { tensors, scores, groups: states, layers, channels }
    }

    /// The cost of these layers. Sums of multiply-adds are exact up to 2^53.
    fn cost(&self, layers: impl Iterator<Item = usize>, channels: &[usize]) -> f64 {
        let costs = layers.map(|layer| {
            let Layer { cost, rate, input, output, .. } = &self.layers[layer];
            cost.multiply_adds(channels[input.0], channels[output.0]) as f64 * rate
        });
        costs.sum()
    }

    /// The cost of the whole network.
    fn total(&self) -> f64 {
        self.cost(0..self.layers.len(), &self.channels)
    }

    /// The cost if as much as possible was removed.
    fn min_cost(&self) -> f64 {
        let mut channels = self.channels.clone();
        for (group, tensors) in self.groups.iter().zip(&self.tensors) {
            let mut last = GroupState { order: Vec::new(), layers: Vec::new(), ..*group };
            while let Some(next) = last.next_remaining() {
                last.remaining = next;
            }
            for tensor in *tensors {
                channels[tensor.tensor.0] -= (group.remaining - last.remaining) * tensor.channels_per_unit;
            }
        }
        self.cost(0..self.layers.len(), &channels)
    }

    /// Removes units of a group from the counts of channels; returns the cost that it saves.
    fn shrink(&mut self, group: usize, units: usize) -> f64 {
        let layers = || self.groups[group].layers.iter().copied();
        let before = self.cost(layers(), &self.channels);
        for tensor in self.tensors[group] {
            self.channels[tensor.tensor.0] -= units * tensor.channels_per_unit;
        }
        let layers = || self.groups[group].layers.iter().copied();
        before - self.cost(layers(), &self.channels)
    }

    /// The next step of a group, with its penalty at present.
    fn next_step(&mut self, group: usize) -> Option<RemovalStep> {
        let state = &mut self.groups[group];
        state.is_stale = false;
        let remaining = state.next_remaining()?;
        let units = &state.order[remaining..state.remaining];
        let importance: f64 = units.iter().map(|&unit| self.scores.0[group][unit]).sum();
        let count = units.len();
        let saved = self.shrink(group, count);
        for tensor in self.tensors[group] {
            self.channels[tensor.tensor.0] += count * tensor.channels_per_unit;
        }
        let share = remaining as f64 / self.scores.0[group].len() as f64;
        // Steps that save nothing come last.
        let penalty = if saved > 0.0 { importance / share / saved } else { f64::MAX };
        Some(RemovalStep { penalty, group, remaining })
    }

    /// Takes a step; returns the cost that it saves.
    fn take(&mut self, step: &RemovalStep) -> f64 {
        let saved = self.shrink(step.group, self.groups[step.group].remaining - step.remaining);
        self.groups[step.group].remaining = step.remaining;
        for &layer in &self.groups[step.group].layers.clone() {
            for &group in &self.layers[layer].groups {
                self.groups[group].is_stale = true;
            }
        }
        saved
    }

    fn selection(self) -> Selection {
        let removed = self.groups.into_iter().enumerate().filter_map(|(position, group)| {
            let units: BTreeSet<usize> = group.order.into_iter().skip(group.remaining).collect();
            (!units.is_empty()).then_some((position, units))
        });
        Selection { removed: removed.collect() }
    }
}

fn group_state(group: &ChannelGroup, scores: &[f64], layers: Vec<usize>, target: &Target) -> GroupState {
    let mut order: Vec<usize> = (0..group.units.len()).collect();
    // Stable: of equal scores the first is more important.
    order.sort_by(|&one, &other| scores[other].total_cmp(&scores[one]));
    let sizes = || group.tensors.iter().map(|tensor| tensor.channels_per_unit);
    let common = sizes().fold(target.granularity, greatest_common_divisor);
    let multiple = target.granularity / common.max(1);
    let min_channels_per_unit = sizes().min().unwrap_or(1).max(1);
    let min_remaining = target.min_channels.div_ceil(min_channels_per_unit).max(multiple);
    GroupState { remaining: order.len(), order, multiple, min_remaining, layers, is_stale: false }
}

fn greatest_common_divisor(one: usize, other: usize) -> usize {
    if other == 0 { one } else { greatest_common_divisor(other, one % other) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(units: usize, multiple: usize, min_remaining: usize) -> GroupState {
        let order = (0..units).collect();
        GroupState { order, remaining: units, multiple, min_remaining, layers: Vec::new(), is_stale: false }
    }

    #[test]
    fn remaining_units_are_multiples_above_the_minimum() {
        let counts = |units, multiple, min_remaining| {
            let mut state = state(units, multiple, min_remaining);
            let mut counts = Vec::new();
            while let Some(next) = state.next_remaining() {
                counts.push(next);
                state.remaining = next;
            }
            counts
        };
        assert_eq!(counts(40, 16, 16), [32, 16]);
        assert_eq!(counts(16, 16, 16), [0; 0]);
        assert_eq!(counts(13, 16, 16), [0; 0]);
        assert_eq!(counts(3, 1, 1), [2, 1]);
        assert_eq!(counts(1, 1, 1), [0; 0]);
        assert_eq!(counts(64, 16, 40), [48]);
    }

    #[test]
    fn steps_are_ordered_by_penalty_then_by_group() {
        let step = |penalty, group| RemovalStep { penalty, group, remaining: 1 };
        assert!(step(0.5, 3) < step(0.7, 1));
        assert!(step(0.5, 1) < step(0.5, 3));
    }
}
