//! Operators that change shape, dimension order or padding without computing values.

use super::constants::{allows_zero, shape_per_image};
use super::layers::in_order;
use super::{Dim, DimOrder, ImportResult, Importer, LayerOutput, MAX_DIM, Pad, Value};
use crate::ops::group_norm;
use crate::proto::Node;
use stratus_base::printable;
use stratus_graph::Shape;
use stratus_graph::ops::Flatten;

impl<'a> Importer<'a> {
    /// Imports a reshape, which must keep the shape or flatten an image to a vector.
    pub(super) fn reshape(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        if let Some(value) = self.shuffle_reshape(node)? {
            return Ok(value);
        }
        if let Some(value) = group_norm::reshape(self, node)? {
            return Ok(value);
        }
        let input = self.layer_input(node, 0)?;
        let current = self.layer_shape(input.id).0.clone();
        // The shape in the dimension order of the file.
        let mut file_shape = current.clone();
        if input.order == DimOrder::ChannelsLast {
            file_shape.rotate_left(1);
        }
        let count: usize = file_shape.iter().product();
        let target = match node.operator {
            "Flatten" => {
                let axis = node.attribute("axis").map_or(1, |axis| axis.int);
                let first = axis == 1 || axis.saturating_add(file_shape.len() as i64 + 1) == 1;
                first.then(|| vec![count])
            }
            "Reshape" => {
                let dims = self.dims(node, 1)?;
                if allows_zero(node) && dims.contains(&Dim::Known(0)) {
                    return Err("an empty tensor (`allowzero` 1) is not supported".into());
                }
                shape_per_image(&dims, &file_shape, self.batch)
            }
            _ => self.squeezed(node, &file_shape)?,
        };
        if target.as_ref() == Some(&file_shape) {
            return Ok(self.alias(node, input));
        }
        if target != Some(vec![count]) {
            return Err(format!(
                "unsupported shape for images of {}, expected a vector of {count} features",
                Shape(file_shape)
            )
            .into());
        }
        let value = self.push(node, Flatten, &[input], vec![])?;
        let pixels: usize = current[1..].iter().product();
        let image: Option<[usize; 3]> = current.try_into().ok();
        Ok(match image.filter(|image| input.order == DimOrder::ChannelsLast && pixels > 1 && image[0] > 1) {
            Some(image) => in_order(value, DimOrder::FlattenedChannelsLast(image)),
            None => value,
        })
    }

    /// The shape of an image without the dimensions of 1 in the `axes` of a `Squeeze`.
    fn squeezed(&self, node: &'a Node<'a>, shape: &[usize]) -> ImportResult<Option<Vec<usize>>> {
        let Some(axes) = self.int_list(node, "axes", 1)? else {
            return Err("missing `axes`: without them, a batch of one image would lose its dimension".into());
        };
        let rank = shape.len() as i64 + 1;
        let is_squeezed = |axis: usize| {
            axes.iter().any(|&a| a == axis as i64 + 1 || a.saturating_add(rank) == axis as i64 + 1)
        };
        let batch = axes.iter().any(|&axis| axis == 0 || axis.saturating_add(rank) == 0);
        let kept =
            shape.iter().enumerate().filter(|&(axis, _)| !is_squeezed(axis)).map(|(_, &dim)| dim).collect();
        let ones = shape.iter().enumerate().all(|(axis, &dim)| !is_squeezed(axis) || dim == 1);
        Ok((ones && !batch).then_some(kept))
    }

    pub(super) fn transpose(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        if let Some(value) = self.shuffle_transpose(node)? {
            return Ok(value);
        }
        let input = self.layer_input(node, 0)?;
        let perm: &[i64] = node.attribute("perm").map_or(&[], |perm| &perm.ints);
        let order = match (input.order, perm) {
            (order, [0, 1] | [0, 1, 2, 3]) => Some(order),
            (DimOrder::ChannelsFirst, [0, 2, 3, 1]) => Some(DimOrder::ChannelsLast),
            (DimOrder::ChannelsLast, [0, 3, 1, 2]) => Some(DimOrder::ChannelsFirst),
            _ => None,
        };
        let is_image = self.layer_shape(input.id).0.len() == 3;
        let order = order.filter(|_| is_image || perm.len() == 2);
        let order = order.ok_or_else(|| {
            format!("unsupported `perm` {perm:?}: only channels can be moved to the end or back")
        })?;
        Ok(self.alias(node, LayerOutput { order, ..input }))
    }

    pub(super) fn pad(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let input = self.layer_input(node, 0)?;
        self.image_shape(input)?;
        let mode = node.attribute("mode").map_or(&b"constant"[..], |mode| mode.text);
        let fill_value = self.scalar_input(node, "value", 2)?.unwrap_or(0.0);
        let zeros = fill_value == 0.0;
        if mode != b"constant" || !(zeros || fill_value <= f32::MIN) {
            let mode = printable(&String::from_utf8_lossy(mode));
            return Err(format!("unsupported value {fill_value} in mode {mode}, expected zeros").into());
        }
        let pads = self.int_list(node, "pads", 1)?.ok_or("missing `pads`")?;
        let axes = self.int_list(node, "axes", 3)?.unwrap_or_else(|| vec![0, 1, 2, 3]);
        if pads.len() != 2 * axes.len() || axes.len() > 4 {
            return Err("`pads` must have two values per axis".into());
        }
        let (begins, ends) = pads.split_at(axes.len());
        let mut sides = [[0; 2]; 4];
        for ((&axis, &begin), &end) in axes.iter().zip(begins).zip(ends) {
            let index = usize::try_from(if axis < 0 { axis.saturating_add(4) } else { axis }).ok();
            let width = |side: i64| usize::try_from(side).ok().filter(|&side| side <= MAX_DIM);
            match (index.filter(|&index| index < 4), width(begin), width(end)) {
                (Some(index), Some(begin), Some(end)) if sides[index] == [0; 2] => {
                    sides[index] = [begin, end];
                }
                _ => {
                    return Err(
                        format!("invalid `pads` {pads:?}: negative, or a repeated or unknown axis").into()
                    );
                }
            }
        }
        if input.order == DimOrder::ChannelsLast {
            sides[1..].rotate_right(1);
        }
        let [batch, channels, height, width] = sides;
        if batch != [0, 0] || channels != [0, 0] {
            return Err("only height and width can be padded".into());
        }
        if height == [0, 0] && width == [0, 0] {
            return Ok(self.alias(node, input));
        }
        let pad = Pad { before: [height[0], width[0]], after: [height[1], width[1]], zeros };
        Ok(self.alias(node, LayerOutput { pad: Some(pad), ..input }))
    }
}
