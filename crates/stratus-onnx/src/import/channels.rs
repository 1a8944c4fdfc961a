//! Channels that are split, sliced or shuffled.

use super::constants::per_image;
use super::layers::in_order;
use super::{ImportResult, Importer, LayerOutput, Order, Value};
use crate::proto::Node;
use stratus_graph::ops::{ChannelShuffle, ChannelSlice};

impl<'a> Importer<'a> {
    /// The parts of a map's channels, a layer for each that is read.
    pub(super) fn split(&mut self, node: &'a Node<'a>) -> ImportResult<Vec<Value>> {
        let made = self.made(node, 0)?;
        let axis = node.attribute("axis").map_or(0, |axis| axis.int);
        let channels = self.channels(made, axis)?;
        let count = node.outputs.len();
        let sizes = match self.integers(node, "split", 1)? {
            Some(_) if node.attribute("num_outputs").is_some() => {
                return Err("it has both `split` and `num_outputs`: leave one out".into());
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
            sizes.ok_or_else(|| format!("it does not divide its {channels} channels into {count} parts"))?;
        let name = self.names.of(node);
        let (mut first, mut values) = (0, Vec::new());
        for (part, (&channels, output)) in sizes.iter().zip(&node.outputs).enumerate() {
            let readers = self.uses.get(output).copied().unwrap_or(0);
            let mut value = Value::Unknown;
            if readers > 0 && !output.is_empty() {
                let name = self.names.beside(&name, &part.to_string());
                let slice = self.push_as(name, ChannelSlice { first, channels }, &[made], vec![])?;
                value = Value::LayerOutput(LayerOutput { sole: readers == 1, order: made.order, ..slice });
            }
            values.push(value);
            first += channels;
        }
        Ok(values)
    }

    /// Some of a map's channels.
    pub(super) fn slice(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let made = self.made(node, 0)?;
        let one = |name: &str, position: usize| -> ImportResult<Option<i64>> {
            match self.integers(node, name, position)?.as_deref() {
                None => Ok(None),
                Some([number]) => Ok(Some(*number)),
                Some(numbers) => {
                    Err(format!("its `{name}` are {numbers:?}; channels alone are sliced").into())
                }
            }
        };
        let axis = one("axes", 3)?.unwrap_or(0);
        let channels = self.channels(made, axis)?;
        let step = one("steps", 4)?.unwrap_or(1);
        let place = |index: i64| {
            let index = if index < 0 { index.saturating_add(channels as i64) } else { index };
            index.clamp(0, channels as i64) as usize
        };
        let (Some(start), Some(end), 1) = (one("starts", 1)?, one("ends", 2)?, step) else {
            return Err(format!("its step is {step}; channels one after the other are taken").into());
        };
        let (first, end) = (place(start), place(end));
        if [first, end] == [0, channels] {
            return Ok(self.alias(node, made));
        }
        let slice = ChannelSlice { first, channels: end.saturating_sub(first) };
        let value = self.push(node, slice, &[made], vec![])?;
        Ok(in_order(value, made.order))
    }

    /// How many channels an image has whose channels are a dimension.
    fn channels(&self, made: LayerOutput, axis: i64) -> ImportResult<usize> {
        let [channels, ..] = self.image(made)?;
        let places: [i64; 2] = if made.order == Order::ChannelsLast { [3, -1] } else { [1, -3] };
        if !places.contains(&axis) {
            return Err(format!("its axis is {axis}; channels alone are divided").into());
        }
        Ok(channels)
    }

    /// The channels of an image as two dimensions, and back: what a shuffle begins and ends with.
    pub(super) fn regrouped(&mut self, node: &'a Node<'a>) -> ImportResult<Option<Value>> {
        let Value::LayerOutput(made) = *self.value(node, 0)? else { return Ok(None) };
        let Ok([channels, height, width]) = self.shape(made.id).as_image() else { return Ok(None) };
        let of_groups = |groups: usize| vec![groups, channels / groups.max(1), height, width];
        let image = vec![channels, height, width];
        let seen = match made.order {
            Order::Grouped(groups) => of_groups(groups),
            Order::InTurn(groups) => {
                let [groups, each, ..] = of_groups(groups)[..] else { return Ok(None) };
                vec![each, groups, height, width]
            }
            Order::Plain if made.pad.is_none() && node.operator == "Reshape" => image.clone(),
            _ => return Ok(None),
        };
        let wanted = match node.operator {
            "Reshape" => {
                let extents = self.extents(node, 1)?;
                let zeros = super::moving::takes_zero(node) && extents.contains(&super::Extent::Known(0));
                if zeros { None } else { per_image(&extents, &seen, self.batch) }
            }
            _ => None,
        };
        match (made.order, wanted) {
            (Order::Plain, Some(wanted))
                if wanted.len() == 4
                    && wanted[0] > 0
                    && channels.is_multiple_of(wanted[0])
                    && wanted == of_groups(wanted[0]) =>
            {
                Ok(Some(self.alias(node, LayerOutput { order: Order::Grouped(wanted[0]), ..made })))
            }
            (Order::Plain, _) => Ok(None),
            (Order::Grouped(_), Some(wanted)) if wanted == image => {
                Ok(Some(self.alias(node, LayerOutput { order: Order::Plain, ..made })))
            }
            (Order::InTurn(groups), Some(wanted)) if wanted == image => {
                let plain = LayerOutput { order: Order::Plain, ..made };
                self.push(node, ChannelShuffle { groups }, &[plain], vec![]).map(Some)
            }
            _ => Err("it reads channels in groups: only a shuffle of channels is taken".into()),
        }
    }

    /// Groups before their channels, or channels before the groups: the middle of a shuffle.
    pub(super) fn groups_turned(&mut self, node: &'a Node<'a>) -> ImportResult<Option<Value>> {
        let Value::LayerOutput(made) = *self.value(node, 0)? else { return Ok(None) };
        let order = match made.order {
            Order::Grouped(groups) => Order::InTurn(groups),
            Order::InTurn(groups) => Order::Grouped(groups),
            _ => return Ok(None),
        };
        let perm: &[i64] = node.attribute("perm").map_or(&[], |perm| &perm.ints);
        if perm != [0, 2, 1, 3, 4] {
            return Err(format!("it reorders groups of channels to {perm:?}; a shuffle is taken").into());
        }
        Ok(Some(self.alias(node, LayerOutput { order, ..made })))
    }
}

/// Parts of one size; of a number that does not divide the channels the last is smaller.
fn equal_parts(node: &Node<'_>, channels: usize, count: usize) -> Option<Vec<usize>> {
    let each = match node.attribute("num_outputs") {
        Some(number) if usize::try_from(number.int).ok() != Some(count) => return None,
        Some(_) => channels.div_ceil(count.max(1)),
        None => Some(channels / count.max(1)).filter(|each| each * count == channels)?,
    };
    let before = each * count.checked_sub(1)?;
    let last = channels.checked_sub(before).filter(|&last| last > 0)?;
    Some((1..count).map(|_| each).chain([last]).collect())
}
