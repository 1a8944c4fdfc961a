//! Padding and pooling, also by reductions over height and width. ONNX pads each side separately and has two
//! rules for the last window; max-pooling layers pad symmetrically.

use super::layers::pair;
use super::{DimOrder, ImportResult, Importer, LayerOutput, MAX_DIM, Value};
use crate::export::{DOC_ADAPTIVE_AVG_POOL, as_avg_pool};
use crate::proto::Node;
use stratus_base::printable;
use stratus_graph::ops::{AdaptiveAvgPool2d, AvgPool2d, Flatten, MaxPool2d};

/// Padding in pixels: `[top, left]` and `[bottom, right]`.
pub(crate) type Sides = ([usize; 2], [usize; 2]);

impl<'a> Importer<'a> {
    /// The padding of a node and of a preceding `Pad`. `zeros` is true if the node pads with zeros.
    pub(crate) fn padding(
        &self,
        node: &'a Node<'a>,
        input: LayerOutput,
        kernel: [usize; 2],
        stride: [usize; 2],
        dilation: [usize; 2],
        zeros: bool,
    ) -> ImportResult<Sides> {
        let [_, height, width] = self.image_shape(input)?;
        let mut size = [height, width];
        let (mut before, mut after) = ([0; 2], [0; 2]);
        if let Some(pad) = input.pad {
            if pad.zeros != zeros {
                return Err("the preceding Pad has another value than its own padding".into());
            }
            (before, after) = (pad.before, pad.after);
            size = [0, 1].map(|axis| size[axis] + before[axis] + after[axis]);
        }
        let mode = node.attribute("auto_pad").map_or(&b""[..], |attribute| attribute.text);
        let node_pads: Sides = match mode {
            b"" | b"NOTSET" => explicit_pads(node)?,
            b"VALID" => ([0; 2], [0; 2]),
            b"SAME_UPPER" | b"SAME_LOWER" => {
                // One window per stride of the image; an odd pixel is added after or before the image.
                let total = [0, 1].map(|axis| {
                    let reach =
                        dilation[axis].saturating_mul(kernel[axis].saturating_sub(1)).saturating_add(1);
                    let last = (size[axis].div_ceil(stride[axis]).max(1) - 1) * stride[axis];
                    last.saturating_add(reach).saturating_sub(size[axis])
                });
                let smaller = total.map(|total| total / 2);
                let larger = [total[0] - smaller[0], total[1] - smaller[1]];
                if mode == b"SAME_UPPER" { (smaller, larger) } else { (larger, smaller) }
            }
            other => {
                let other = printable(&String::from_utf8_lossy(other));
                return Err(format!("unsupported `auto_pad` {other}").into());
            }
        };
        for axis in 0..2 {
            before[axis] += node_pads.0[axis];
            after[axis] += node_pads.1[axis];
        }
        if before.iter().chain(&after).any(|&side| side > MAX_DIM) {
            return Err(format!("its padding exceeds {MAX_DIM} pixels").into());
        }
        Ok((before, after))
    }

    pub(super) fn max_pool(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let (input, kernel, stride) = self.window(node)?;
        // Zeros never change the maximum of non-negative values.
        let not_negative_input = input.id > 0 && self.layers[input.id - 1].not_negative;
        let zeros = input.pad.is_some_and(|pad| pad.zeros) && not_negative_input;
        if input.pad.is_some_and(|pad| pad.zeros) && !not_negative_input {
            return Err("zero padding of values that may be negative is not supported".into());
        }
        let (padding, after) = self.padding(node, input, kernel, stride, [1, 1], zeros)?;
        let [_, height, width] = self.image_shape(input)?;
        let ceil_mode = node.attribute("ceil_mode").is_some_and(|mode| mode.int != 0);
        let padded = [height + padding[0] + after[0], width + padding[1] + after[1]];
        let whole = MaxPool2d { kernel, stride, padding: [0, 0], ceil_mode };
        let mut target = whole.output_size(padded).map_err(|error| error.to_string())?;
        if ceil_mode {
            // PyTorch's rule, adopted by ONNX, drops windows that begin after the image and its leading
            // padding. A preceding `Pad` belongs to the image.
            let pad_after = input.pad.map_or([0; 2], |pad| pad.after);
            for (axis, size) in [height, width].into_iter().enumerate() {
                let begins_after =
                    (target[axis] - 1) * stride[axis] >= size + padding[axis] + pad_after[axis];
                target[axis] -= usize::from(begins_after && target[axis] > 1);
            }
        }
        // Leading padding fixes where windows start; trailing padding only their number.
        let pool = |ceil_mode| MaxPool2d { kernel, stride, padding, ceil_mode };
        let fits = |pool: &MaxPool2d| pool.output_size([height, width]).is_ok_and(|size| size == target);
        match [pool(ceil_mode), pool(!ceil_mode)].into_iter().find(fits) {
            Some(pool) => self.push(node, pool, &[input], vec![]),
            None => Err(asymmetric_padding(padding, after, kernel)),
        }
    }

    pub(super) fn average_pool(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let (input, kernel, stride) = self.window(node)?;
        let (padding, after) = self.padding(node, input, kernel, stride, [1, 1], true)?;
        let [channels, height, width] = self.image_shape(input)?;
        let adaptive = AdaptiveAvgPool2d { output: [height / kernel[0], width / kernel[1]] };
        let image = stratus_graph::Shape::image(channels, height, width);
        let plain = AvgPool2d { kernel, stride, padding, padding_after: None, count_include_pad: true };
        if node.doc == DOC_ADAPTIVE_AVG_POOL
            && after == [0; 2]
            && as_avg_pool(&adaptive, &image) == Some(plain)
        {
            return self.push(node, adaptive, &[input], vec![]);
        }
        let counted = node.attribute("count_include_pad").is_some_and(|counts| counts.int != 0);
        let is_unpadded = padding == [0, 0] && after == [0, 0];
        if input.pad.is_some_and(|pad| (pad.before, pad.after) != (padding, after)) && !counted {
            return Err("unsupported `count_include_pad` 0 after Pad".into());
        }
        let count_include_pad = is_unpadded || counted || input.pad.is_some();
        let plain = AvgPool2d { count_include_pad, ..plain };
        let has_partial_window = node.attribute("ceil_mode").is_some_and(|mode| mode.int != 0)
            && (0..2).any(|axis| {
                let size = [height, width][axis] + padding[axis] + after[axis];
                !size.saturating_sub(kernel[axis]).is_multiple_of(stride[axis])
            });
        if has_partial_window {
            return Err(
                "unsupported `ceil_mode` 1: the last window would average pixels beyond the padding".into()
            );
        }
        let one_sided = AvgPool2d { padding_after: Some(after), ..plain };
        let target = one_sided.output_size([height, width]).map_err(|error| error.to_string())?;
        // The padding at the end does not matter if no window reaches it.
        let is_plain = plain.output_size([height, width]).is_ok_and(|found| found == target);
        let pool = if is_plain { plain } else { one_sided };
        self.push(node, pool, &[input], vec![])
    }

    pub(super) fn global_max_pool(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let input = self.channels_first_input(node, 0)?;
        let name = self.names.for_node(node);
        let pooled = self.global_maximum(name, input)?;
        Ok(self.as_output_of(node, pooled, input))
    }

    /// Adds the maximum over height and width: one max-pooling, or one of the rows and one of the columns if
    /// the map has more pixels than a window.
    fn global_maximum(&mut self, name: String, input: LayerOutput) -> ImportResult<LayerOutput> {
        let [_, height, width] = self.image_shape(input)?;
        let window =
            |kernel: [usize; 2]| MaxPool2d { kernel, stride: kernel, padding: [0, 0], ceil_mode: false };
        if window([height, width]).output_size([height, width]).is_ok() {
            return self.push_as(name, window([height, width]), &[input], vec![]);
        }
        let rows = self.names.with_suffix(&name, "rows");
        let columns = self.push_as(rows, window([height, 1]), &[input], vec![])?;
        self.push_as(name, window([1, width]), &[columns], vec![])
    }

    /// Imports a mean, a sum or a maximum over height and width, or over one of them.
    pub(super) fn reduce(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let input = self.layer_input(node, 0)?;
        let [_, height, width] = self.image_shape(input)?;
        let mut axes = self.int_list(node, "axes", 1)?.unwrap_or_default();
        axes.iter_mut().filter(|axis| **axis < 0).for_each(|axis| *axis = axis.saturating_add(4));
        axes.sort_unstable();
        let expected = if input.order == DimOrder::ChannelsLast { [1, 2] } else { [2, 3] };
        let keeps = node.attribute("keepdims").is_none_or(|keep| keep.int != 0);
        let reduced = expected.map(|axis| axes.contains(&axis));
        let is_duplicate = axes.windows(2).any(|pair| pair[0] == pair[1]);
        let is_spatial = !axes.is_empty() && axes.iter().all(|axis| expected.contains(axis)) && !is_duplicate;
        if !is_spatial || (!keeps && reduced != [true, true]) {
            return Err(format!("unsupported `axes` {axes:?}, expected height and width {expected:?}").into());
        }
        let name = self.names.for_node(node);
        let pooled = match (node.operator, reduced) {
            ("ReduceMax", [true, true]) => self.global_maximum(name.clone(), input)?,
            ("ReduceMax", [rows, _]) => {
                let kernel = if rows { [height, 1] } else { [1, width] };
                let pool = MaxPool2d { kernel, stride: kernel, padding: [0, 0], ceil_mode: false };
                self.push_as(name.clone(), pool, &[input], vec![])?
            }
            (operator, _) => {
                let output = [if reduced[0] { 1 } else { height }, if reduced[1] { 1 } else { width }];
                let pooled = self.push_as(name.clone(), AdaptiveAvgPool2d { output }, &[input], vec![])?;
                let pixels = (height / output[0]) * (width / output[1]);
                let factor = if operator == "ReduceSum" { pixels as f32 } else { 1.0 };
                self.scaled(pooled, factor, &name)?
            }
        };
        if keeps {
            return Ok(self.as_output_of(node, pooled, input));
        }
        let flat = self.names.with_suffix(&name, "flatten");
        let output = self.push_as(flat, Flatten, &[pooled], vec![])?;
        Ok(Value::LayerOutput(LayerOutput { single_use: self.is_single_use(node), ..output }))
    }

    /// The input, kernel and stride of a pooling.
    pub(crate) fn window(&self, node: &'a Node<'a>) -> ImportResult<(LayerOutput, [usize; 2], [usize; 2])> {
        let input = self.padded_layer_input(node, 0)?;
        if input.order != DimOrder::ChannelsFirst {
            return Err("channels-last input is not supported".into());
        }
        let dilations = pair(node, "dilations", [1, 1])?;
        if dilations != [1, 1] {
            return Err(format!("unsupported `dilations` {dilations:?}, expected [1, 1]").into());
        }
        if node.attribute("kernel_shape").is_none_or(|kernel| kernel.ints.is_empty()) {
            return Err("missing `kernel_shape`".into());
        }
        Ok((input, pair(node, "kernel_shape", [1, 1])?, pair(node, "strides", [1, 1])?))
    }
}

/// The value of the attribute `pads`: top, left, bottom, right.
pub(super) fn explicit_pads(node: &Node<'_>) -> ImportResult<Sides> {
    let Some(pads) = node.attribute("pads").filter(|pads| !pads.ints.is_empty()) else {
        return Ok(Default::default());
    };
    let side = |&side: &i64| usize::try_from(side).ok().filter(|&side| side <= MAX_DIM);
    let sides: Option<Vec<usize>> = pads.ints.iter().map(side).collect();
    match sides.as_deref() {
        Some(&[top, left, bottom, right]) => Ok(([top, left], [bottom, right])),
        _ => Err(format!("`pads` is {:?}, expected four values from 0 to {MAX_DIM}", pads.ints).into()),
    }
}

fn asymmetric_padding(before: [usize; 2], after: [usize; 2], kernel: [usize; 2]) -> super::ImportError {
    format!(
        "padding {before:?} before and {after:?} after is not supported for windows {kernel:?}, expected \
         symmetric padding"
    )
    .into()
}
