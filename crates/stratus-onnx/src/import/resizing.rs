//! `Resize`, of which layers have one kind: bilinear, without antialiasing, of height and width.

use super::{Extent, ImportResult, Importer, LayerOutput, Order, Value};
use crate::export::scaled;
use crate::proto::Node;
use crate::tensor::Elements;
use stratus_base::printable;
use stratus_graph::ops::{Resize, ResizeTo};
use stratus_graph::{Operation, Shape};

/// The most nodes between the size of a tensor and what is resized to it.
const MOST_NODES: usize = 8;

impl<'a> Importer<'a> {
    pub(super) fn resize(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let made = self.plain(node, 0)?;
        let [channels, height, width] = self.image(made)?;
        let text = |name: &str, otherwise: &'static str| {
            let text =
                node.attribute(name).map(|attribute| printable(&String::from_utf8_lossy(attribute.text)));
            text.unwrap_or_else(|| otherwise.to_owned())
        };
        let mode = text("mode", "nearest");
        if mode != "linear" {
            return Err(format!("its `mode` is {mode}; linear, which is bilinear, is read").into());
        }
        if node.inputs.len() < 3 {
            return Err("it is that of operator set 10, whose pixels lie otherwise: export it in set 11 or \
                        later"
                .into());
        }
        let set = |name: &str| node.attribute(name).is_some_and(|attribute| attribute.int != 0);
        if let Some(name) = ["antialias", "exclude_outside"].into_iter().find(|name| set(name)) {
            return Err(format!("its `{name}` is set; layers interpolate between four pixels").into());
        }
        if text("keep_aspect_ratio_policy", "stretch") != "stretch" {
            return Err("its `keep_aspect_ratio_policy` decides its size".into());
        }
        let (to, like) = self.size(node, [channels, height, width])?;
        let places = text("coordinate_transformation_mode", "half_pixel");
        let align_corners = places == "align_corners";
        let resize = Resize { to, align_corners };
        let inputs = [Some(made), like].into_iter().flatten().collect::<Vec<_>>();
        let shapes: Vec<_> = inputs.iter().map(|made| self.shape(made.id)).collect();
        let [_, to_height, to_width] = resize
            .output_shape(&shapes)
            .and_then(|shape| shape.as_image())
            .map_err(|error| error.to_string())?;
        match places.as_str() {
            "half_pixel" | "align_corners" => {}
            // It takes the first pixel where an extent becomes 1.
            "pytorch_half_pixel"
                if [(height, to_height), (width, to_width)].iter().all(|&(from, to)| from == 1 || to > 1) => {
            }
            "pytorch_half_pixel" => {
                return Err("its `coordinate_transformation_mode` pytorch_half_pixel takes the first pixel \
                            where an extent becomes 1, layers the one in the middle"
                    .into());
            }
            other => {
                return Err(format!(
                    "its `coordinate_transformation_mode` is {other}; half_pixel, pytorch_half_pixel and \
                     align_corners are read"
                )
                .into());
            }
        }
        self.push(node, resize, &inputs, vec![])
    }

    /// What it is resized to, and the map whose size that is.
    fn size(
        &self,
        node: &'a Node<'a>,
        [channels, height, width]: [usize; 3],
    ) -> ImportResult<(ResizeTo, Option<LayerOutput>)> {
        let axes = node.attribute("axes").map(|axes| axes.ints.clone());
        // The position of each dimension's number in scales or sizes.
        let places: [Option<usize>; 4] = std::array::from_fn(|axis| {
            let axis = axis as i64;
            match &axes {
                Some(axes) => axes.iter().position(|&other| other == axis || other == axis - 4),
                None => Some(axis as usize),
            }
        });
        let [batch, channel, Some(down), Some(across)] = places else {
            return Err("its `axes` lack height or width".into());
        };
        let numbers = axes.map_or(4, |axes| axes.len());
        let given = |position| -> ImportResult<bool> {
            Ok(node.input(position).is_some()
                && !self.extents(node, position).is_ok_and(|list| list.is_empty()))
        };
        if node.input(2).is_some() && given(3)? {
            let scales = self.constant(node, 2)?.is_some_and(|scales| !scales.shape.contains(&0));
            if scales {
                return Err("it has scales and sizes: it takes either".into());
            }
        }
        let scales = match node.input(2) {
            Some(_) => self.constant(node, 2)?.map(|scales| scales.elements),
            None => None,
        };
        match scales {
            Some(Elements::Floats(scales)) if !scales.is_empty() => {
                let whole = |place: Option<usize>| place.is_none_or(|place| scales[place] == 1.0);
                if scales.len() != numbers || !whole(batch) || !whole(channel) {
                    return Err(
                        format!("its scales {scales:?} are not those of height and width alone").into()
                    );
                }
                let scale = [scales[down], scales[across]];
                // The decimal that was meant, of which 0.7 in f32 is a little less.
                let exact = scale.map(|scale| format!("{scale}").parse::<f64>().unwrap_or(f64::from(scale)));
                let to = ResizeTo::Scale(exact);
                let resize = Resize { to, align_corners: false };
                let input = Shape::image(channels, height, width);
                let made = resize.output_shape(&[&input]).map_err(|error| error.to_string())?;
                if [scaled(height, scale[0]), scaled(width, scale[1])] != [Some(made.0[1]), Some(made.0[2])] {
                    return Err(format!(
                        "its scales {scale:?} make {height}x{width} pixels {}x{} here, and another size \
                         where they are rounded",
                        made.0[1], made.0[2]
                    )
                    .into());
                }
                Ok((to, None))
            }
            Some(Elements::Ints(scales)) if !scales.is_empty() => Err("its scales are whole numbers".into()),
            _ => {
                let sizes = self.extents(node, 3)?;
                let known = |place: usize| match sizes.get(place) {
                    Some(Extent::Known(size)) => usize::try_from(*size).ok(),
                    _ => None,
                };
                let (Some(to_height), Some(to_width)) = (known(down), known(across)) else {
                    return Err(
                        "its height and width are no numbers of pixels, or depend on how many images \
                                there are"
                            .into(),
                    );
                };
                let keeps = channel.is_none_or(|place| known(place) == Some(channels));
                if sizes.len() != numbers || !keeps {
                    return Err("its sizes are not those of height and width alone".into());
                }
                let is_as_large = |like: &LayerOutput| {
                    self.image(*like).is_ok_and(|like| like[1..] == [to_height, to_width])
                };
                match self.like(node).filter(is_as_large) {
                    Some(like) => Ok((ResizeTo::Like, Some(like))),
                    None => Ok((ResizeTo::Size([to_height, to_width]), None)),
                }
            }
        }
    }

    /// The map whose width is the last of its sizes, where that is taken from a shape: as exporters write
    /// `interpolate(x, other.shape[2:])`.
    fn like(&self, node: &Node<'a>) -> Option<LayerOutput> {
        let mut name = node.input(3)?;
        for _ in 0..MOST_NODES {
            let maker = self.makers.get(name)?;
            let numbers = |name, position| self.integers(maker, name, position).ok().flatten();
            let is_last = match maker.operator {
                "Cast" | "Identity" | "Squeeze" | "Unsqueeze" | "Concat" => true,
                "Gather" => matches!(numbers("", 1)?[..], [3 | -1]),
                "Slice" => matches!(numbers("ends", 2)?[..], [end] if end >= 4),
                "Shape" => {
                    let end = maker.attribute("end").map_or(4, |end| end.int);
                    return match self.values.get(maker.input(0)?) {
                        Some(Value::LayerOutput(made)) if made.order == Order::Plain && end >= 4 => {
                            Some(*made)
                        }
                        _ => None,
                    };
                }
                _ => false,
            };
            let next = if maker.operator == "Concat" { maker.inputs.last() } else { maker.inputs.first() };
            name = next.filter(|_| is_last)?;
        }
        None
    }
}
