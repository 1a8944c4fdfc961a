//! Operators that split, slice, select or shuffle channels.

use super::constants::{allows_zero, shape_per_image};
use super::layers::in_order;
use super::{DimOrder, ImportResult, Importer, LayerOutput, Value};
use crate::proto::Node;
use crate::tensor::{Constant, Elements};
use stratus_graph::ops::{ChannelShuffle, ChannelSlice, Concat};

/// The maximum number of runs of channels that a node may select, each of which becomes a layer.
const MAX_CHANNEL_RUNS: usize = 64;

impl<'a> Importer<'a> {
    /// Imports a split of channels as one layer for each part with a reader.
    pub(super) fn split(&mut self, node: &'a Node<'a>) -> ImportResult<Vec<Value>> {
        let input = self.layer_input(node, 0)?;
        let axis = node.attribute("axis").map_or(0, |axis| axis.int);
        let channels = self.channels(input, axis)?;
        let count = node.outputs.len();
        let sizes = match self.int_list(node, "split", 1)? {
            Some(_) if node.attribute("num_outputs").is_some() => {
                return Err("`split` and `num_outputs` are mutually exclusive".into());
            }
            Some(sizes) => sizes.into_iter().map(|size| usize::try_from(size).ok()).collect(),
            None => equal_parts(node, channels, count),
        };
        let sizes: Option<Vec<usize>> = sizes;
        let sizes = sizes.filter(|sizes| {
            let sum = sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
            sizes.len() == count && sum == Some(channels)
        });
        let sizes =
            sizes.ok_or_else(|| format!("cannot split {channels} channels into these {count} parts"))?;
        let name = self.names.for_node(node);
        let (mut first, mut values) = (0, Vec::new());
        for (part, (&channels, output)) in sizes.iter().zip(&node.outputs).enumerate() {
            let readers = self.uses.get(output).copied().unwrap_or(0);
            let mut value = Value::Unknown;
            if readers > 0 && !output.is_empty() {
                let name = self.names.with_suffix(&name, &part.to_string());
                let slice = self.push_as(name, ChannelSlice { first, channels }, &[input], vec![])?;
                value =
                    Value::LayerOutput(LayerOutput { single_use: readers == 1, order: input.order, ..slice });
            }
            values.push(value);
            first += channels;
        }
        Ok(values)
    }

    /// Imports a slice of channels, of which those in between may be left out. Axes that are not sliced may
    /// be listed too.
    pub(super) fn slice(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let input = self.layer_input(node, 0)?;
        let [starts, ends, axes, steps] = [("starts", 1), ("ends", 2), ("axes", 3), ("steps", 4)]
            .map(|(name, position)| self.int_list(node, name, position));
        let (starts, ends) = (starts?.ok_or("missing `starts`")?, ends?.ok_or("missing `ends`")?);
        let axes = axes?.unwrap_or_else(|| (0..starts.len() as i64).collect());
        let steps = steps?.unwrap_or_else(|| vec![1; starts.len()]);
        if starts.len() != axes.len() || ends.len() != axes.len() || steps.len() != axes.len() {
            return Err("`starts`, `ends`, `axes` and `steps` differ in length".into());
        }
        let mut chosen = None;
        for (at, &axis) in axes.iter().enumerate() {
            let is_whole = steps[at] == 1 && starts[at] == 0 && self.reaches_end(input, axis, ends[at]);
            if is_whole {
                continue;
            }
            if chosen.is_some() || axes.iter().filter(|other| **other == axis).count() > 1 {
                return Err(format!("unsupported `axes` {axes:?}: only channels can be sliced").into());
            }
            chosen = Some((self.channels(input, axis)?, starts[at], ends[at], steps[at]));
        }
        let Some((channels, start, end, step)) = chosen else { return Ok(self.alias(node, input)) };
        if step < 1 {
            return Err(format!("unsupported step {step}, expected 1 or more").into());
        }
        let position = |index: i64| {
            let index = if index < 0 { index.saturating_add(channels as i64) } else { index };
            index.clamp(0, channels as i64) as usize
        };
        let step = usize::try_from(step).unwrap_or(usize::MAX);
        self.select(node, input, (position(start)..position(end)).step_by(step).collect())
    }

    /// Returns whether a slice up to `end` includes the last index of an axis.
    fn reaches_end(&self, input: LayerOutput, axis: i64, end: i64) -> bool {
        let mut shape = self.layer_shape(input.id).0.clone();
        if input.order == DimOrder::ChannelsLast {
            shape.rotate_left(1);
        }
        let rank = shape.len() as i64 + 1;
        let axis = if axis < 0 { axis.saturating_add(rank) } else { axis };
        match usize::try_from(axis) {
            // The batch is open, so only an end that every batch size reaches counts.
            Ok(0) => end >= i64::from(i32::MAX),
            Ok(axis) => shape.get(axis - 1).is_some_and(|&extent| end >= extent as i64),
            Err(_) => false,
        }
    }

    /// Imports a `Gather` of channels, by a constant list of them.
    pub(super) fn gather(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let input = self.layer_input(node, 0)?;
        let axis = node.attribute("axis").map_or(0, |axis| axis.int);
        let channels = self.channels(input, axis)?;
        let indices = match self.constant(node, 1)? {
            Some(Constant { shape, elements: Elements::Ints(indices) }) if shape.len() == 1 => indices,
            _ => return Err("its indices must be a list, which keeps the dimension of the channels".into()),
        };
        let position = |index: i64| {
            let index = if index < 0 { index.checked_add(channels as i64)? } else { index };
            usize::try_from(index).ok().filter(|&index| index < channels)
        };
        let chosen: Option<Vec<usize>> = indices.into_iter().map(position).collect();
        self.select(node, input, chosen.ok_or("an index is beyond the channels")?)
    }

    /// Adds the layers that select channels in an order: a slice of each run of neighbours, concatenated.
    fn select(&mut self, node: &'a Node<'a>, input: LayerOutput, chosen: Vec<usize>) -> ImportResult<Value> {
        let [channels, ..] = self.image_shape(input)?;
        if chosen.is_empty() {
            return Err("it selects no channels".into());
        }
        if chosen.iter().copied().eq(0..channels) {
            return Ok(self.alias(node, input));
        }
        let mut runs: Vec<ChannelSlice> = Vec::new();
        for channel in chosen {
            match runs.last_mut() {
                Some(run) if run.first + run.channels == channel => run.channels += 1,
                _ => runs.push(ChannelSlice { first: channel, channels: 1 }),
            }
        }
        if runs.len() > MAX_CHANNEL_RUNS {
            return Err(format!(
                "it selects {} runs of channels, at most {MAX_CHANNEL_RUNS} are supported",
                runs.len()
            )
            .into());
        }
        if let [run] = runs[..] {
            let value = self.push(node, run, &[input], vec![])?;
            return Ok(in_order(value, input.order));
        }
        let name = self.names.for_node(node);
        let mut slices = Vec::new();
        for (part, run) in runs.into_iter().enumerate() {
            let name = self.names.with_suffix(&name, &part.to_string());
            slices.push(self.push_as(name, run, &[input], vec![])?);
        }
        let joined = self.push_as(name, Concat, &slices, vec![])?;
        Ok(self.as_output_of(node, joined, input))
    }

    /// The number of channels of an image, if `axis` is the channels.
    fn channels(&self, input: LayerOutput, axis: i64) -> ImportResult<usize> {
        let [channels, ..] = self.image_shape(input)?;
        let allowed: [i64; 2] = if input.order == DimOrder::ChannelsLast { [3, -1] } else { [1, -3] };
        if !allowed.contains(&axis) {
            return Err(format!("unsupported `axis` {axis}, expected the channels").into());
        }
        Ok(channels)
    }

    /// Imports the `Reshape` of channels to two dimensions and back, which starts and ends a channel shuffle.
    pub(super) fn shuffle_reshape(&mut self, node: &'a Node<'a>) -> ImportResult<Option<Value>> {
        let Value::LayerOutput(input) = *self.value(node, 0)? else { return Ok(None) };
        let Ok([channels, height, width]) = self.layer_shape(input.id).as_image() else { return Ok(None) };
        let grouped_shape = |groups: usize| vec![groups, channels / groups.max(1), height, width];
        let image = vec![channels, height, width];
        let current = match input.order {
            DimOrder::Grouped(groups) => grouped_shape(groups),
            DimOrder::GroupsTransposed(groups) => {
                let [groups, each, ..] = grouped_shape(groups)[..] else { return Ok(None) };
                vec![each, groups, height, width]
            }
            DimOrder::ChannelsFirst if input.pad.is_none() && node.operator == "Reshape" => image.clone(),
            _ => return Ok(None),
        };
        let target = match node.operator {
            "Reshape" => {
                let dims = self.dims(node, 1)?;
                let zeros = allows_zero(node) && dims.contains(&super::Dim::Known(0));
                if zeros { None } else { shape_per_image(&dims, &current, self.batch) }
            }
            _ => None,
        };
        match (input.order, target) {
            (DimOrder::ChannelsFirst, Some(target))
                if target.len() == 4
                    && target[0] > 0
                    && channels.is_multiple_of(target[0])
                    && target == grouped_shape(target[0]) =>
            {
                Ok(Some(self.alias(node, LayerOutput { order: DimOrder::Grouped(target[0]), ..input })))
            }
            (DimOrder::ChannelsFirst, _) => Ok(None),
            (DimOrder::Grouped(_), Some(target)) if target == image => {
                Ok(Some(self.alias(node, LayerOutput { order: DimOrder::ChannelsFirst, ..input })))
            }
            (DimOrder::GroupsTransposed(groups), Some(target)) if target == image => {
                let plain = LayerOutput { order: DimOrder::ChannelsFirst, ..input };
                self.push(node, ChannelShuffle { groups }, &[plain], vec![]).map(Some)
            }
            _ => Err("grouped channels are supported only in a channel shuffle".into()),
        }
    }

    /// Imports the `Transpose` of groups and their channels, which is the middle of a channel shuffle.
    pub(super) fn shuffle_transpose(&mut self, node: &'a Node<'a>) -> ImportResult<Option<Value>> {
        let Value::LayerOutput(input) = *self.value(node, 0)? else { return Ok(None) };
        let order = match input.order {
            DimOrder::Grouped(groups) => DimOrder::GroupsTransposed(groups),
            DimOrder::GroupsTransposed(groups) => DimOrder::Grouped(groups),
            _ => return Ok(None),
        };
        let perm: &[i64] = node.attribute("perm").map_or(&[], |perm| &perm.ints);
        if perm != [0, 2, 1, 3, 4] {
            return Err(format!("unsupported `perm` {perm:?} of grouped channels, expected a shuffle").into());
        }
        Ok(Some(self.alias(node, LayerOutput { order, ..input })))
    }
}

/// The sizes of equal parts. With `num_outputs`, the last part may be smaller.
fn equal_parts(node: &Node<'_>, channels: usize, count: usize) -> Option<Vec<usize>> {
    let part = match node.attribute("num_outputs") {
        Some(number) if usize::try_from(number.int).ok() != Some(count) => return None,
        Some(_) => channels.div_ceil(count.max(1)),
        None => Some(channels / count.max(1)).filter(|part| part * count == channels)?,
    };
    let before = part * count.checked_sub(1)?;
    let last = channels.checked_sub(before).filter(|&last| last > 0)?;
    Some((1..count).map(|_| part).chain([last]).collect())
}
