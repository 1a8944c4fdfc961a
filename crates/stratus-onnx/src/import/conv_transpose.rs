//! Import of transposed convolutions.

use super::layers::{count, pair};
use super::pooling::explicit_pads;
use super::{ImportResult, Importer, MAX_DIM, Value};
use crate::proto::Node;
use stratus_base::printable;
use stratus_graph::ops::ConvTranspose2d;

impl<'a> Importer<'a> {
    pub(super) fn conv_transpose(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let input = self.channels_first_input(node, 0)?;
        let (shape, weight) = self.weight(node, 1)?.ok_or("missing weight")?;
        let [in_channels, per_group, height, width] = shape[..] else {
            return Err(format!("its weight has {} dimensions, expected 4", shape.len()).into());
        };
        let kernel = [height, width];
        if pair(node, "kernel_shape", kernel)? != kernel {
            return Err(format!("its `kernel_shape` differs from the kernel {kernel:?} of the weight").into());
        }
        let groups = count(node, "group", 1)?;
        let out_channels = per_group.checked_mul(groups).ok_or("too many groups")?;
        let bias = self.vector_input(node, 2, out_channels)?;
        let conv = ConvTranspose2d {
            in_channels,
            out_channels,
            kernel,
            stride: pair(node, "strides", [1, 1])?,
            padding_before: [0; 2],
            padding_after: [0; 2],
            output_padding: output_padding(node)?,
            dilation: pair(node, "dilations", [1, 1])?,
            groups,
            bias: bias.is_some(),
        };
        let [_, height, width] = self.image_shape(input)?;
        let (padding_before, padding_after) = output_crop(node, &conv, [height, width])?;
        let conv = ConvTranspose2d { padding_before, padding_after, ..conv };
        let parameters = [Some(weight), bias].into_iter().flatten().collect();
        self.push(node, conv, &[input], parameters)
    }
}

/// The value of the attribute `output_padding`.
fn output_padding(node: &Node<'_>) -> ImportResult<[usize; 2]> {
    let Some(attribute) = node.attribute("output_padding").filter(|attribute| !attribute.ints.is_empty())
    else {
        return Ok([0; 2]);
    };
    let dim = |&dim: &i64| usize::try_from(dim).ok().filter(|&dim| dim <= MAX_DIM);
    let dims: Option<Vec<usize>> = attribute.ints.iter().map(dim).collect();
    dims.and_then(|dims| dims.try_into().ok()).ok_or_else(|| {
        format!("`output_padding` is {:?}, expected two values from 0 to {MAX_DIM}", attribute.ints).into()
    })
}

/// The number of pixels cropped from the output, `[top, left]` and `[bottom, right]`. `conv` crops none.
fn output_crop(
    node: &Node<'_>,
    conv: &ConvTranspose2d,
    size: [usize; 2],
) -> ImportResult<([usize; 2], [usize; 2])> {
    let mode = node.attribute("auto_pad").map_or(&b""[..], |attribute| attribute.text);
    let shape = node.attribute("output_shape").filter(|attribute| !attribute.ints.is_empty());
    let target = match (mode, shape) {
        (b"" | b"NOTSET", None) => return explicit_pads(node),
        (b"VALID", None) => return Ok(([0; 2], [0; 2])),
        (b"SAME_UPPER" | b"SAME_LOWER", None) => {
            [0, 1].map(|axis| size[axis].saturating_mul(conv.stride[axis]))
        }
        (_, Some(_)) => pair(node, "output_shape", [0, 0])?,
        (other, None) => {
            let other = printable(&String::from_utf8_lossy(other));
            return Err(format!("unsupported `auto_pad` {other}").into());
        }
    };
    let full = conv.output_size(size).map_err(|error| error.to_string())?;
    let (mut before, mut after) = ([0; 2], [0; 2]);
    for axis in 0..2 {
        let cut = full[axis].checked_sub(target[axis]).ok_or_else(|| {
            format!("cannot crop {full:?} pixels to the larger {target:?}: use `output_padding`")
        })?;
        // An odd pixel is cut off at the end by SAME_UPPER, and else at the beginning.
        let (smaller, larger) = (cut / 2, cut - cut / 2);
        (before[axis], after[axis]) =
            if mode == b"SAME_UPPER" { (smaller, larger) } else { (larger, smaller) };
    }
    Ok((before, after))
}
