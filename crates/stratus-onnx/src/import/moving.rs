//! What moves elements and computes nothing: shapes, orders of dimensions, padding.

use super::constants::per_image;
use super::layers::in_order;
use super::{Extent, ImportResult, Importer, LARGEST, LayerOutput, Order, Pad, Value};
use crate::proto::Node;
use stratus_base::printable;
use stratus_graph::Shape;
use stratus_graph::ops::Flatten;

impl<'a> Importer<'a> {
    /// What keeps the elements and their order: nothing, or making a vector of an image.
    pub(super) fn reshape(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        if let Some(value) = self.regrouped(node)? {
            return Ok(value);
        }
        let made = self.made(node, 0)?;
        let current = self.shape(made.id).0.clone();
        // As the file sees it.
        let mut seen = current.clone();
        if made.order == Order::ChannelsLast {
            seen.rotate_left(1);
        }
        let count: usize = seen.iter().product();
        let wanted = match node.operator {
            "Flatten" => {
                let axis = node.attribute("axis").map_or(1, |axis| axis.int);
                let first = axis == 1 || axis.saturating_add(seen.len() as i64 + 1) == 1;
                first.then(|| vec![count])
            }
            "Reshape" => {
                let extents = self.extents(node, 1)?;
                if takes_zero(node) && extents.contains(&Extent::Known(0)) {
                    return Err("its `allowzero` is 1 and its shape has a 0: it makes an empty tensor".into());
                }
                per_image(&extents, &seen, self.batch)
            }
            _ => self.squeezed(node, &seen)?,
        };
        if wanted.as_ref() == Some(&seen) {
            return Ok(self.alias(node, made));
        }
        if wanted != Some(vec![count]) {
            return Err(format!(
                "it does not make a vector of {count} features of each image of {}",
                Shape(seen)
            )
            .into());
        }
        let value = self.push(node, Flatten, &[made], vec![])?;
        let pixels: usize = current[1..].iter().product();
        let image: Option<[usize; 3]> = current.try_into().ok();
        Ok(match image.filter(|image| made.order == Order::ChannelsLast && pixels > 1 && image[0] > 1) {
            Some(image) => in_order(value, Order::Flattened(image)),
            None => value,
        })
    }

    /// The shape of an image without the extents of 1 that `Squeeze` names.
    fn squeezed(&self, node: &'a Node<'a>, seen: &[usize]) -> ImportResult<Option<Vec<usize>>> {
        let Some(axes) = self.integers(node, "axes", 1)? else {
            return Err(
                "it does not say which dimensions it leaves out, and a batch of one image would lose its own"
                    .into(),
            );
        };
        let rank = seen.len() as i64 + 1;
        let named = |axis: usize| {
            axes.iter().any(|&a| a == axis as i64 + 1 || a.saturating_add(rank) == axis as i64 + 1)
        };
        let batch = axes.iter().any(|&axis| axis == 0 || axis.saturating_add(rank) == 0);
        let kept =
            seen.iter().enumerate().filter(|&(axis, _)| !named(axis)).map(|(_, &extent)| extent).collect();
        let ones = seen.iter().enumerate().all(|(axis, &extent)| !named(axis) || extent == 1);
        Ok((ones && !batch).then_some(kept))
    }

    pub(super) fn transpose(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        if let Some(value) = self.groups_turned(node)? {
            return Ok(value);
        }
        let made = self.made(node, 0)?;
        let perm: &[i64] = node.attribute("perm").map_or(&[], |perm| &perm.ints);
        let order = match (made.order, perm) {
            (order, [0, 1] | [0, 1, 2, 3]) => Some(order),
            (Order::Plain, [0, 2, 3, 1]) => Some(Order::ChannelsLast),
            (Order::ChannelsLast, [0, 3, 1, 2]) => Some(Order::Plain),
            _ => None,
        };
        let is_image = self.shape(made.id).0.len() == 3;
        let order = order.filter(|_| is_image || perm.len() == 2);
        let order = order.ok_or_else(|| {
            format!("it reorders dimensions to {perm:?}; only channels are moved, last or back")
        })?;
        Ok(self.alias(node, LayerOutput { order, ..made }))
    }

    pub(super) fn pad(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let made = self.made(node, 0)?;
        self.image(made)?;
        let mode = node.attribute("mode").map_or(&b"constant"[..], |mode| mode.text);
        let filling = self.number(node, "value", 2)?.unwrap_or(0.0);
        let zeros = filling == 0.0;
        if mode != b"constant" || !(zeros || filling <= f32::MIN) {
            let mode = printable(&String::from_utf8_lossy(mode));
            return Err(format!("it pads with {filling} in mode {mode}; zeros are taken").into());
        }
        let pads = self.integers(node, "pads", 1)?.ok_or("it has no `pads`")?;
        let axes = self.integers(node, "axes", 3)?.unwrap_or_else(|| vec![0, 1, 2, 3]);
        if pads.len() != 2 * axes.len() || axes.len() > 4 {
            return Err("its `pads` are not two for each dimension".into());
        }
        let (begins, ends) = pads.split_at(axes.len());
        let mut sides = [[0; 2]; 4];
        for ((&axis, &begin), &end) in axes.iter().zip(begins).zip(ends) {
            let place = usize::try_from(if axis < 0 { axis.saturating_add(4) } else { axis }).ok();
            let width = |side: i64| usize::try_from(side).ok().filter(|&side| side <= LARGEST);
            match (place.filter(|&place| place < 4), width(begin), width(end)) {
                (Some(place), Some(begin), Some(end)) if sides[place] == [0; 2] => {
                    sides[place] = [begin, end];
                }
                _ => {
                    return Err(format!(
                        "its `pads` {pads:?} cut off pixels, or are not of an image's dimensions, each once"
                    )
                    .into());
                }
            }
        }
        if made.order == Order::ChannelsLast {
            sides[1..].rotate_right(1);
        }
        let [batch, channels, height, width] = sides;
        if batch != [0, 0] || channels != [0, 0] {
            return Err("it pads images or channels; height and width are padded".into());
        }
        if height == [0, 0] && width == [0, 0] {
            return Ok(self.alias(node, made));
        }
        let pad = Pad { before: [height[0], width[0]], after: [height[1], width[1]], zeros };
        Ok(self.alias(node, LayerOutput { pad: Some(pad), ..made }))
    }
}

/// Whether 0 in a `Reshape`'s shape is an extent of 0 instead of the extent there is.
pub(super) fn takes_zero(node: &Node<'_>) -> bool {
    node.attribute("allowzero").is_some_and(|allow| allow.int != 0)
}
