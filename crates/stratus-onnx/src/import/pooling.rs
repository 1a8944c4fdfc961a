//! Padding and pooling: ONNX pads every side by itself and has two rules for the last window, layers pad both
//! sides alike.

use super::layers::pair;
use super::{ImportResult, Importer, LARGEST, LayerOutput, Order, Value};
use crate::export::{ADAPTIVE, even};
use crate::proto::Node;
use stratus_base::printable;
use stratus_graph::ops::{AdaptiveAvgPool2d, AvgPool2d, MaxPool2d};

/// Pixels `[top, left]` and `[bottom, right]`.
type Sides = ([usize; 2], [usize; 2]);

impl<'a> Importer<'a> {
    /// The padding of a node and of the `Pad` before it. `zeros`: whether the node takes what is padded for
    /// zero.
    pub(super) fn padding(
        &self,
        node: &'a Node<'a>,
        made: LayerOutput,
        kernel: [usize; 2],
        stride: [usize; 2],
        dilation: [usize; 2],
        zeros: bool,
    ) -> ImportResult<Sides> {
        let [_, height, width] = self.image(made)?;
        let mut size = [height, width];
        let (mut before, mut after) = ([0; 2], [0; 2]);
        if let Some(pad) = made.pad {
            if pad.zeros != zeros {
                return Err("the padding before it is of another number than its own".into());
            }
            (before, after) = (pad.before, pad.after);
            size = [0, 1].map(|axis| size[axis] + before[axis] + after[axis]);
        }
        let automatic = node.attribute("auto_pad").map_or(&b""[..], |attribute| attribute.text);
        let own: Sides = match automatic {
            b"" | b"NOTSET" => explicit(node)?,
            b"VALID" => ([0; 2], [0; 2]),
            b"SAME_UPPER" | b"SAME_LOWER" => {
                // As many windows as strides begin in the image; what is odd goes behind it, or before.
                let whole = [0, 1].map(|axis| {
                    let reach =
                        dilation[axis].saturating_mul(kernel[axis].saturating_sub(1)).saturating_add(1);
                    let last = (size[axis].div_ceil(stride[axis]).max(1) - 1) * stride[axis];
                    last.saturating_add(reach).saturating_sub(size[axis])
                });
                let less = whole.map(|whole| whole / 2);
                let more = [whole[0] - less[0], whole[1] - less[1]];
                if automatic == b"SAME_UPPER" { (less, more) } else { (more, less) }
            }
            other => {
                let other = printable(&String::from_utf8_lossy(other));
                return Err(format!("its `auto_pad` {other} is not known").into());
            }
        };
        for axis in 0..2 {
            before[axis] += own.0[axis];
            after[axis] += own.1[axis];
        }
        if before.iter().chain(&after).any(|&side| side > LARGEST) {
            return Err(format!("it is padded by more than {LARGEST} pixels").into());
        }
        Ok((before, after))
    }

    pub(super) fn max_pool(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let (made, kernel, stride) = self.window(node)?;
        // Zeros never win where nothing is less.
        let rectified = made.id > 0 && self.layers[made.id - 1].not_negative;
        let zeros = made.pad.is_some_and(|pad| pad.zeros) && rectified;
        if made.pad.is_some_and(|pad| pad.zeros) && !rectified {
            return Err("the zeros that are padded before it could be the largest of a window".into());
        }
        let (padding, after) = self.padding(node, made, kernel, stride, [1, 1], zeros)?;
        let [_, height, width] = self.image(made)?;
        let asked = node.attribute("ceil_mode").is_some_and(|mode| mode.int != 0);
        let padded = [height + padding[0] + after[0], width + padding[1] + after[1]];
        let whole = MaxPool2d { kernel, stride, padding: [0, 0], ceil_mode: asked };
        let mut wanted = whole.output_size(padded).map_err(|error| error.to_string())?;
        if asked {
            // PyTorch's rule, which ONNX has taken over, looks at where the image ends, not its padding. What
            // was padded before belongs to the image.
            let behind = made.pad.map_or([0; 2], |pad| pad.after);
            for (axis, size) in [height, width].into_iter().enumerate() {
                let begins_behind = (wanted[axis] - 1) * stride[axis] >= size + padding[axis] + behind[axis];
                wanted[axis] -= usize::from(begins_behind && wanted[axis] > 1);
            }
        }
        // Where windows begin is decided by the padding before the image; the rest is how many there are.
        let pool = |ceil_mode| MaxPool2d { kernel, stride, padding, ceil_mode };
        let fits = |pool: &MaxPool2d| pool.output_size([height, width]).is_ok_and(|size| size == wanted);
        match [pool(asked), pool(!asked)].into_iter().find(fits) {
            Some(pool) => self.push(node, pool, &[made], vec![]),
            None => Err(unlike(padding, after, kernel)),
        }
    }

    pub(super) fn average_pool(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let (made, kernel, stride) = self.window(node)?;
        let (padding, after) = self.padding(node, made, kernel, stride, [1, 1], true)?;
        let [channels, height, width] = self.image(made)?;
        let adaptive = AdaptiveAvgPool2d { output: [height / kernel[0], width / kernel[1]] };
        let image = stratus_graph::Shape::image(channels, height, width);
        let pool = AvgPool2d { kernel, stride, padding, count_include_pad: true };
        if node.doc == ADAPTIVE && after == [0; 2] && even(&adaptive, &image) == Some(pool) {
            return self.push(node, adaptive, &[made], vec![]);
        }
        let counted = node.attribute("count_include_pad").is_some_and(|counts| counts.int != 0);
        let none = padding == [0, 0] && after == [0, 0];
        if made.pad.is_some_and(|pad| (pad.before, pad.after) != (padding, after)) && !counted {
            return Err("it counts the zeros padded before it, and not its own".into());
        }
        let count_include_pad = none || counted || made.pad.is_some();
        let pool = AvgPool2d { count_include_pad, ..pool };
        let wanted = AvgPool2d { padding: [0, 0], ..pool }
            .output_size([height + padding[0] + after[0], width + padding[1] + after[1]])
            .map_err(|error| error.to_string())?;
        let last = node.attribute("ceil_mode").is_some_and(|mode| mode.int != 0)
            && (0..2).any(|axis| {
                let size = [height, width][axis] + padding[axis] + after[axis];
                !(size - kernel[axis]).is_multiple_of(stride[axis])
            });
        let found = pool.output_size([height, width]).map_err(|error| error.to_string())?;
        if last || found != wanted {
            return Err(unlike(padding, after, kernel));
        }
        self.push(node, pool, &[made], vec![])
    }

    pub(super) fn global_max_pool(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let made = self.plain(node, 0)?;
        let [_, height, width] = self.image(made)?;
        let kernel = [height, width];
        self.push(
            node,
            MaxPool2d { kernel, stride: kernel, padding: [0, 0], ceil_mode: false },
            &[made],
            vec![],
        )
    }

    /// What a pooling reads, its kernel and stride.
    fn window(&self, node: &'a Node<'a>) -> ImportResult<(LayerOutput, [usize; 2], [usize; 2])> {
        let made = self.padded(node, 0)?;
        if made.order != Order::Plain {
            return Err("it reads images with their channels last".into());
        }
        let dilations = pair(node, "dilations", [1, 1])?;
        if dilations != [1, 1] {
            return Err(format!("its `dilations` are {dilations:?}; [1, 1] is taken").into());
        }
        if node.attribute("kernel_shape").is_none_or(|kernel| kernel.ints.is_empty()) {
            return Err("it has no `kernel_shape`".into());
        }
        Ok((made, pair(node, "kernel_shape", [1, 1])?, pair(node, "strides", [1, 1])?))
    }
}

/// The attribute `pads`: top, left, bottom, right.
pub(super) fn explicit(node: &Node<'_>) -> ImportResult<Sides> {
    let Some(pads) = node.attribute("pads").filter(|pads| !pads.ints.is_empty()) else {
        return Ok(Default::default());
    };
    let side = |&side: &i64| usize::try_from(side).ok().filter(|&side| side <= LARGEST);
    let sides: Option<Vec<usize>> = pads.ints.iter().map(side).collect();
    match sides.as_deref() {
        Some(&[top, left, bottom, right]) => Ok(([top, left], [bottom, right])),
        _ => Err(format!("its `pads` are {:?}; four are wanted, each from 0 to {LARGEST}", pads.ints).into()),
    }
}

fn unlike(before: [usize; 2], after: [usize; 2], kernel: [usize; 2]) -> super::Refusal {
    format!(
        "padded by {before:?} before and {after:?} behind, its windows {kernel:?} are not those of a pooling \
         that pads both sides alike"
    )
    .into()
}
