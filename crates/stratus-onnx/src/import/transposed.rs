//! Transposed convolutions.

use super::layers::{count, pair};
use super::pooling::explicit;
use super::{ImportResult, Importer, LARGEST, Value};
use crate::proto::Node;
use stratus_base::printable;
use stratus_graph::ops::ConvTranspose2d;

impl<'a> Importer<'a> {
    pub(super) fn conv_transpose(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let made = self.plain(node, 0)?;
        let (shape, weight) = self.weight(node, 1)?.ok_or("it has no weight")?;
        let [in_channels, per_group, height, width] = shape[..] else {
            return Err(format!(
                "its weight has {} dimensions, that of two-dimensional images 4",
                shape.len()
            )
            .into());
        };
        let kernel = [height, width];
        if pair(node, "kernel_shape", kernel)? != kernel {
            return Err(format!("its kernel is {kernel:?}, its `kernel_shape` says otherwise").into());
        }
        let groups = count(node, "group", 1)?;
        let out_channels = per_group.checked_mul(groups).ok_or("its groups are too many")?;
        let bias = self.list(node, 2, out_channels)?;
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
        let [_, height, width] = self.image(made)?;
        let (padding_before, padding_after) = cut_off(node, &conv, [height, width])?;
        let conv = ConvTranspose2d { padding_before, padding_after, ..conv };
        let parameters = [Some(weight), bias].into_iter().flatten().collect();
        self.push(node, conv, &[made], parameters)
    }
}

/// Pixels that the output has more.
fn output_padding(node: &Node<'_>) -> ImportResult<[usize; 2]> {
    let Some(attribute) = node.attribute("output_padding").filter(|attribute| !attribute.ints.is_empty())
    else {
        return Ok([0; 2]);
    };
    let extent = |&extent: &i64| usize::try_from(extent).ok().filter(|&extent| extent <= LARGEST);
    let extents: Option<Vec<usize>> = attribute.ints.iter().map(extent).collect();
    extents.and_then(|extents| extents.try_into().ok()).ok_or_else(|| {
        format!("its `output_padding` are {:?}; two are wanted, each from 0 to {LARGEST}", attribute.ints)
            .into()
    })
}

/// Pixels cut off the output, `[top, left]` and `[bottom, right]`. `conv` cuts off none.
fn cut_off(
    node: &Node<'_>,
    conv: &ConvTranspose2d,
    size: [usize; 2],
) -> ImportResult<([usize; 2], [usize; 2])> {
    let automatic = node.attribute("auto_pad").map_or(&b""[..], |attribute| attribute.text);
    let shape = node.attribute("output_shape").filter(|attribute| !attribute.ints.is_empty());
    let wanted = match (automatic, shape) {
        (b"" | b"NOTSET", None) => return explicit(node),
        (b"VALID", None) => return Ok(([0; 2], [0; 2])),
        (b"SAME_UPPER" | b"SAME_LOWER", None) => {
            [0, 1].map(|axis| size[axis].saturating_mul(conv.stride[axis]))
        }
        (_, Some(_)) => pair(node, "output_shape", [0, 0])?,
        (other, None) => {
            let other = printable(&String::from_utf8_lossy(other));
            return Err(format!("its `auto_pad` {other} is not known").into());
        }
    };
    let whole = conv.output_size(size).map_err(|error| error.to_string())?;
    let mut half = [0; 2];
    for axis in 0..2 {
        // On which side one pixel more is cut off, versions of ONNX disagree.
        half[axis] = match whole[axis].checked_sub(wanted[axis]) {
            Some(cut) if cut % 2 == 0 => cut / 2,
            _ => {
                return Err(format!(
                    "it makes {whole:?} pixels of which {wanted:?} are to stay: as many must be cut off on \
                     either side"
                )
                .into());
            }
        };
    }
    Ok((half, half))
}
