//! Bilinear resizing.

use super::avg_pool2d::sum_whole_maps;
use super::concat::channels_last;
use super::convert::check_types;
use super::{BuildResult, GpuOp, KernelBuilder, Operand, int, long, vector};
use crate::processor::{Argument, Implementation, Launch, Source, type_name};
use stratus_engine::ops::{Interpolation, ResizeBackward, ResizeForward};

/// The kernels' argument `corners` for the nearest pixels.
const NEAREST: i32 = 2;

/// The launch of `kernel`, which reads the first operand and writes the second. `input` and `output` are
/// those that the forward pass reads and writes.
fn launch(
    kernel: &str,
    interpolation: &Interpolation,
    operands: &[Operand],
    [input, output]: [usize; 2],
    builder: &KernelBuilder<'_>,
) -> Result<Launch, String> {
    check_types(operands)?;
    let (from, to) = (operands[0].dtype(), operands[1].dtype());
    let [n, channels, h, w] = channels_last(&operands[input])?;
    let [_, _, height, width] = channels_last(&operands[output])?;
    // Kernels index within a sample by `int`.
    int((h * w).max(height * width) * channels)?;
    let vector = vector(&[from, to], &[channels]);
    let groups = channels / vector;
    let written = operands[1].image()?;
    let items = n * written[2] * written[3] * groups;
    // Grid-stride loops count beyond the items, which must not overflow.
    let index = if items < 1 << 31 { "u32" } else { "u64" };
    let mut source = Source::new("resize", from, vector).with("INDEX", index);
    if from != to {
        source = source.with("T_OUT", type_name(to));
    }
    let mut arguments = vec![Argument::Operand(0), Argument::Operand(1), long(items), int(groups)?];
    for extent in [h, w, height, width] {
        arguments.push(int(extent)?);
    }
    let steps = [(0, h, height), (1, w, width)];
    arguments.extend(steps.map(|(axis, inputs, outputs)| {
        Argument::Float(interpolation.step(axis, inputs, outputs, from) as f32)
    }));
    let positions = match interpolation {
        Interpolation { nearest: true, .. } => NEAREST,
        Interpolation { align_corners, .. } => i32::from(*align_corners),
    };
    arguments.push(Argument::Int(positions));
    builder.grid_stride(&source, kernel, items, arguments)
}

impl GpuOp for ResizeForward {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let launch = launch("resize_forward", &self.interpolation, operands, [0, 1], builder)?;
        Ok(Implementation::native("resize", vec![launch], 0))
    }
}

impl GpuOp for ResizeBackward {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let (dy, dx) = (&operands[0], &operands[1]);
        // The gradient of a single pixel is the sum of the map, for which one thread per pixel would be too
        // few.
        let launch = if dx.image()?[2..] == [1, 1] && dy.dtype() == dx.dtype() {
            sum_whole_maps(dy, dx, 1, builder)?
        } else {
            launch("resize_backward", &self.interpolation, operands, [1, 0], builder)?
        };
        Ok(Implementation::native("resize_backward", vec![launch], 0))
    }
}
