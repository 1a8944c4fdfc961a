//! Import of `Resize` and `Upsample`: bilinear or nearest, without antialiasing, of height and width.

use super::{Dim, DimOrder, ImportResult, Importer, LayerOutput, Value};
use crate::export::scaled;
use crate::nearest::Nearest;
use crate::proto::Node;
use crate::tensor::Elements;
use stratus_base::printable;
use stratus_graph::ops::{Resize, ResizeTo};
use stratus_graph::{Operation, Shape};

/// The maximum number of nodes between `Shape` and the `Resize` that uses the result.
const MAX_SHAPE_CHAIN_NODES: usize = 8;

impl<'a> Importer<'a> {
    pub(super) fn resize(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let input = self.channels_first_input(node, 0)?;
        let [channels, height, width] = self.image_shape(input)?;
        let text = |name: &str, otherwise: &'static str| {
            let text =
                node.attribute(name).map(|attribute| printable(&String::from_utf8_lossy(attribute.text)));
            text.unwrap_or_else(|| otherwise.to_owned())
        };
        let mode = text("mode", "nearest");
        if mode != "linear" && mode != "nearest" {
            return Err(format!("unsupported `mode` {mode}, expected linear (bilinear) or nearest").into());
        }
        let is_old = node.inputs.len() < 3 && self.opset < 11;
        if is_old {
            return self.upsample(node);
        }
        let is_set = |name: &str| node.attribute(name).is_some_and(|attribute| attribute.int != 0);
        if let Some(name) = ["antialias", "exclude_outside"].into_iter().find(|name| is_set(name)) {
            return Err(format!("`{name}` is not supported").into());
        }
        if text("keep_aspect_ratio_policy", "stretch") != "stretch" {
            return Err("`keep_aspect_ratio_policy` is not supported".into());
        }
        let (to, like) = self.size(node, [channels, height, width])?;
        let coordinates = text("coordinate_transformation_mode", "half_pixel");
        if mode == "nearest" {
            let rounding = text("nearest_mode", "round_prefer_floor");
            let nearest = Nearest { coordinates: &coordinates, rounding: &rounding };
            return self.nearest(node, input, (to, like), nearest);
        }
        let align_corners = coordinates == "align_corners";
        let resize = Resize { to, align_corners, nearest: false };
        let inputs = [Some(input), like].into_iter().flatten().collect::<Vec<_>>();
        let shapes: Vec<_> = inputs.iter().map(|input| self.layer_shape(input.id)).collect();
        let [_, to_height, to_width] = resize
            .output_shape(&shapes)
            .and_then(|shape| shape.as_image())
            .map_err(|error| error.to_string())?;
        let keeps = [height == to_height, width == to_width];
        if let ResizeTo::Scale(scale) = to
            && !align_corners
            && keeps != [true; 2]
            && (0..2).any(|axis| keeps[axis] && scale[axis] != 1.0)
        {
            return Err(format!(
                "unsupported scales {scale:?}: one dimension keeps its size, but not its pixels, from \
                 {height}x{width} to {to_height}x{to_width}"
            )
            .into());
        }
        match coordinates.as_str() {
            "half_pixel" | "align_corners" => {}
            // This mode takes the first pixel if a dimension becomes 1.
            "pytorch_half_pixel"
                if [(height, to_height), (width, to_width)].iter().all(|&(from, to)| from == 1 || to > 1) => {
            }
            "pytorch_half_pixel" => {
                return Err("`coordinate_transformation_mode` pytorch_half_pixel is not supported if a \
                            dimension becomes 1: it takes the first pixel, layers the middle one"
                    .into());
            }
            other => {
                return Err(format!(
                    "unsupported `coordinate_transformation_mode` {other}, expected half_pixel, \
                     pytorch_half_pixel or align_corners"
                )
                .into());
            }
        }
        self.push(node, resize, &inputs, vec![])
    }

    /// Adds a resize that copies the nearest pixels, if they are those that the layer copies.
    fn nearest(
        &mut self,
        node: &'a Node<'a>,
        input: LayerOutput,
        (to, like): (ResizeTo, Option<LayerOutput>),
        nearest: Nearest<'_>,
    ) -> ImportResult<Value> {
        let [_, height, width] = self.image_shape(input)?;
        let resize = Resize { to, align_corners: false, nearest: true };
        let inputs = [Some(input), like].into_iter().flatten().collect::<Vec<_>>();
        let shapes: Vec<_> = inputs.iter().map(|input| self.layer_shape(input.id)).collect();
        let output = resize.output_shape(&shapes).and_then(|shape| shape.as_image());
        let [_, to_height, to_width] = output.map_err(|error| error.to_string())?;
        let copies =
            [(height, to_height), (width, to_width)].into_iter().enumerate().all(|(axis, (from, to))| {
                let scale = match resize.to {
                    ResizeTo::Scale(scale) => scale[axis] as f32,
                    _ => to as f32 / from as f32,
                };
                nearest.is_floor(scale, [from, to])
            });
        if !copies {
            let Nearest { coordinates, rounding } = nearest;
            return Err(format!(
                "unsupported nearest pixels ({coordinates}, {rounding}) from {height}x{width} to \
                 {to_height}x{to_width}, expected those at `i · inputs / outputs`, rounded down: export \
                 it with `asymmetric` and `floor`"
            )
            .into());
        }
        self.push(node, resize, &inputs, vec![])
    }

    /// Imports the operators that were later replaced by `Resize` of set 11: `Upsample`, and `Resize` of
    /// set 10.
    pub(super) fn upsample(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let input = self.channels_first_input(node, 0)?;
        let [_, height, width] = self.image_shape(input)?;
        let scales = match node.attribute("scales") {
            Some(scales) => scales.floats.clone(),
            None => self.weight(node, 1)?.ok_or("missing scales")?.1,
        };
        let &[1.0, 1.0, down, across] = &scales[..] else {
            return Err(format!("unsupported scales {scales:?}, only height and width can be resized").into());
        };
        let mode = node.attribute("mode").map_or(&b"nearest"[..], |mode| mode.text);
        if mode != b"nearest" {
            // These operators interpolate without shifting by half a pixel.
            let is_same = [down, across] == [1.0, 1.0];
            return if is_same {
                Ok(self.alias(node, input))
            } else {
                Err("bilinear scaling in an operator set before 11 is not supported, as it aligns the first \
                     pixels, not the edges: export it with set 11 or later and `half_pixel`"
                    .into())
            };
        }
        let to = self.scale_to([height, width], [down, across])?;
        let nearest = Nearest { coordinates: "asymmetric", rounding: "simple" };
        self.nearest(node, input, (to, None), nearest)
    }

    /// The target of a resize by scales in f32.
    fn scale_to(&self, [height, width]: [usize; 2], scale: [f32; 2]) -> ImportResult<ResizeTo> {
        // Recover the intended decimal: 0.7 in f32 is slightly smaller, and exported as the next number if it
        // would give another size.
        let exact = scale.map(|scale| {
            let [text, below] = [scale, scale.next_down()].map(|scale| format!("{scale}"));
            let text = if below.len() + 4 <= text.len() { below } else { text };
            text.parse::<f64>().unwrap_or(f64::from(scale))
        });
        let to = ResizeTo::Scale(exact);
        let resize = Resize { to, align_corners: false, nearest: false };
        let input = Shape::image(1, height, width);
        let output = resize.output_shape(&[&input]).map_err(|error| error.to_string())?;
        if [scaled(height, scale[0]), scaled(width, scale[1])] != [Some(output.0[1]), Some(output.0[2])] {
            return Err(format!(
                "ambiguous scales {scale:?}: {height}x{width} pixels become {}x{} or, after rounding, \
                 another size",
                output.0[1], output.0[2]
            )
            .into());
        }
        Ok(to)
    }

    /// The target size, and the feature map whose size that is, if any.
    fn size(
        &self,
        node: &'a Node<'a>,
        [channels, height, width]: [usize; 3],
    ) -> ImportResult<(ResizeTo, Option<LayerOutput>)> {
        let axes = node.attribute("axes").map(|axes| axes.ints.clone());
        // The position of each dimension in scales or sizes.
        let positions: [Option<usize>; 4] = std::array::from_fn(|axis| {
            let axis = axis as i64;
            match &axes {
                Some(axes) => axes.iter().position(|&other| other == axis || other == axis - 4),
                None => Some(axis as usize),
            }
        });
        let [batch, channel, Some(down), Some(across)] = positions else {
            return Err("`axes` must include height and width".into());
        };
        let count = axes.map_or(4, |axes| axes.len());
        let has_values = |position| -> ImportResult<bool> {
            Ok(node.input(position).is_some() && !self.dims(node, position).is_ok_and(|list| list.is_empty()))
        };
        if node.input(2).is_some() && has_values(3)? {
            let scales = self.constant(node, 2)?.is_some_and(|scales| !scales.shape.contains(&0));
            if scales {
                return Err("scales and sizes are mutually exclusive".into());
            }
        }
        let scales = match node.input(2) {
            Some(_) => self.constant(node, 2)?.map(|scales| scales.elements),
            None => None,
        };
        match scales {
            Some(Elements::Floats(scales)) if !scales.is_empty() => {
                let is_one = |at: Option<usize>| at.is_none_or(|at| scales[at] == 1.0);
                if scales.len() != count || !is_one(batch) || !is_one(channel) {
                    return Err(format!(
                        "unsupported scales {scales:?}, only height and width can be resized"
                    )
                    .into());
                }
                let scale = [scales[down], scales[across]];
                Ok((self.scale_to([height, width], scale)?, None))
            }
            Some(Elements::Ints(scales)) if !scales.is_empty() => Err("scales must be floating point".into()),
            _ => {
                let sizes = self.dims(node, 3)?;
                let known = |at: usize| match sizes.get(at) {
                    Some(Dim::Known(size)) => usize::try_from(*size).ok(),
                    _ => None,
                };
                let (Some(to_height), Some(to_width)) = (known(down), known(across)) else {
                    return Err(
                        "its height and width must be positive and not depend on the batch size".into()
                    );
                };
                let keeps = channel.is_none_or(|at| known(at) == Some(channels));
                if sizes.len() != count || !keeps {
                    return Err("unsupported sizes, only height and width can be resized".into());
                }
                let has_target_size = |like: &LayerOutput| {
                    self.image_shape(*like).is_ok_and(|like| like[1..] == [to_height, to_width])
                };
                match self.like(node).filter(has_target_size) {
                    Some(like) => Ok((ResizeTo::Like, Some(like))),
                    None => Ok((ResizeTo::Size([to_height, to_width]), None)),
                }
            }
        }
    }

    /// The feature map from whose shape the sizes are computed, as in `interpolate(x, other.shape[2:])`.
    fn like(&self, node: &Node<'a>) -> Option<LayerOutput> {
        let mut name = node.input(3)?;
        for _ in 0..MAX_SHAPE_CHAIN_NODES {
            let producer = self.producers.get(name)?;
            let numbers = |name, position| self.int_list(producer, name, position).ok().flatten();
            let is_last = match producer.operator {
                "Cast" | "Identity" | "Squeeze" | "Unsqueeze" | "Concat" => true,
                "Gather" => matches!(numbers("", 1)?[..], [3 | -1]),
                "Slice" => matches!(numbers("ends", 2)?[..], [end] if end >= 4),
                "Shape" => {
                    let end = producer.attribute("end").map_or(4, |end| end.int);
                    return match self.values.get(producer.input(0)?) {
                        Some(Value::LayerOutput(input))
                            if input.order == DimOrder::ChannelsFirst && end >= 4 =>
                        {
                            Some(*input)
                        }
                        _ => None,
                    };
                }
                _ => false,
            };
            let next =
                if producer.operator == "Concat" { producer.inputs.last() } else { producer.inputs.first() };
            name = next.filter(|_| is_last)?;
        }
        None
    }
}
