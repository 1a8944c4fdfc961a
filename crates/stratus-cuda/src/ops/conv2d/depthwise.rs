//! Depthwise convolutions, one filter per channel, by native kernels (`source/depthwise.cu`,
//! `source/depthwise_weights.cu`). They are bound by memory bandwidth, which cuDNN's kernels do not saturate.

use crate::ffi::cudnn::{Pass, Problem};
use crate::ops::{KernelBuilder, Operand, int, long};
use crate::processor::{Argument, Implementation, Shape, Source};
use stratus_engine::{DType, Layout};
use stratus_graph::ops::Conv2d;

/// The threads of a block; also in the kernels' launch bounds.
const THREADS: usize = 128;
/// Neighbouring outputs of a row that a thread computes at once, rounded up to a multiple of the stride.
const PIXELS_PER_THREAD: usize = 4;
/// The maximum number of weights that a thread holds in registers: the taps of all its channels.
const MAX_THREAD_WEIGHTS: usize = 104;
/// The largest kernel whose loops are unrolled.
const MAX_KERNEL: usize = 64;
/// The largest stride whose loops are unrolled.
const MAX_STRIDE: usize = 4;
/// The largest input span whose loops are unrolled.
const MAX_INPUT_SPAN: usize = 32;
/// The largest image, which is addressed by an `int`.
const MAX_IMAGE_BYTES: usize = i32::MAX as usize;
/// The maximum number of rows of a thread's column of outputs.
const MAX_ROWS_PER_THREAD: usize = 16;

/// A depthwise convolution supported by the kernels.
pub(super) struct Depthwise<'a> {
    conv: &'a Conv2d,
    problem: Problem,
    dtype: DType,
    /// Channels per thread.
    vector: usize,
    /// Resident blocks per multiprocessor: with more of them, a thread has fewer registers.
    resident: usize,
}

impl<'a> Depthwise<'a> {
    /// The convolution of these operands (input, weight, output, with a gradient in place of one), if the
    /// kernels support it.
    pub fn new(conv: &'a Conv2d, problem: Problem, operands: [&Operand; 3]) -> Option<Self> {
        let channels = conv.in_channels;
        let [dtype, weight_dtype, y_dtype] = problem.types;
        let expected = if problem.pass == Pass::BackwardWeights { DType::F32 } else { dtype };
        let [taps_h, taps_w] = conv.kernel;
        let taps = taps_h * taps_w;
        let spans = [0, 1].map(|axis| {
            (PIXELS_PER_THREAD - 1) * conv.stride[axis]
                + (conv.kernel[axis].max(1) - 1) * conv.dilation[axis]
                + 1
        });
        let fits = conv.groups == channels
            && conv.out_channels == channels
            && matches!(dtype, DType::F32 | DType::Bf16 | DType::F16)
            && [weight_dtype, y_dtype] == [expected, dtype]
            && (1..=MAX_KERNEL).contains(&taps)
            && conv.stride.iter().all(|stride| (1..=MAX_STRIDE).contains(stride))
            && spans.iter().all(|&span| span <= MAX_INPUT_SPAN)
            && [problem.x, problem.y].iter().all(|[_, channels, height, width]| {
                channels * height * width * dtype.bytes() <= MAX_IMAGE_BYTES
            })
            && operands
                .iter()
                .all(|operand| operand.layout.same_bytes(&Layout::channels_last(&operand.value.shape)));
        // Four channels of any type: eight, although only 16 bytes, would need too many registers.
        let vector = [4, 2, 1].into_iter().find(|&vector| {
            channels.is_multiple_of(vector) && (vector == 1 || vector * taps <= MAX_THREAD_WEIGHTS)
        });
        let vector = vector.filter(|_| fits)?;
        let resident = if vector * taps <= 40 { 3 } else { 2 };
        Some(Self { conv, problem, dtype, vector, resident })
    }

    /// The launches of its pass. The arguments are input, weight and output, with a gradient in place of one.
    pub fn candidate(
        &self,
        operands: [Argument; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        match self.problem.pass {
            Pass::BackwardWeights => self.backward_weights(operands, builder),
            Pass::Forward | Pass::BackwardData => self.maps(operands, builder),
        }
    }

    fn source(&self, file: &'static str, pixels: usize) -> Source {
        let Conv2d { kernel, dilation, .. } = self.conv;
        Source::new(file, self.dtype, self.vector)
            .with("KERNEL_H", kernel[0])
            .with("KERNEL_W", kernel[1])
            .with("DILATION_H", dilation[0])
            .with("DILATION_W", dilation[1])
            .with("PIXELS", pixels)
            .with("RESIDENT", self.resident)
    }

    /// The forward pass and the data gradient.
    fn maps(
        &self,
        [x, weight, y]: [Argument; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        let Conv2d { stride, .. } = *self.conv;
        let is_gradient = self.problem.pass == Pass::BackwardData;
        let ([from, to], [from_shape, to_shape]) = match is_gradient {
            true => ([y, x], [self.problem.y, self.problem.x]),
            false => ([x, y], [self.problem.x, self.problem.y]),
        };
        let axes = [self.axis(0, is_gradient)?, self.axis(1, is_gradient)?];
        let [down, up] = if is_gradient { [[1, 1], stride] } else { [stride, [1, 1]] };
        let pixels = PIXELS_PER_THREAD.next_multiple_of(up[1]);
        let source = self
            .source("depthwise", pixels)
            .with("DOWN_H", down[0])
            .with("DOWN_W", down[1])
            .with("UP_H", up[0])
            .with("UP_W", up[1])
            .with("REVERSED", u8::from(is_gradient));

        let [batch, channels, out_height, out_width] = to_shape;
        let [height, width] = axes.each_ref().map(|axis| axis.before);
        let (height, width) = (out_height + height, out_width + width);
        let groups = width.div_ceil(pixels);
        let columns = batch * groups * (channels / self.vector);
        // Columns are long, because the first input rows of each are read twice, but there are enough for
        // four rounds of blocks.
        let target_threads = 4 * self.resident * THREADS * builder.processor.multiprocessors() as usize;
        let rows = (columns * height / target_threads).clamp(1, MAX_ROWS_PER_THREAD);
        let parts = height.div_ceil(rows.next_multiple_of(up[0]));
        let rows = height.div_ceil(parts).next_multiple_of(up[0]);
        let parts = height.div_ceil(rows);

        let count = columns * parts;
        let sizes = [channels, from_shape[2], from_shape[3], out_height, out_width, rows, parts, groups];
        let mut arguments = vec![from, weight, to, long(count)];
        for size in sizes {
            arguments.push(int(size)?);
        }
        for axis in axes {
            arguments.extend([-int_of(axis.before)?, axis.begin].map(Argument::Int));
        }
        let blocks = extent(count.div_ceil(THREADS))?;
        let shape = Shape { grid: [blocks, 1, 1], block: [THREADS as u32, 1, 1], shared: 0 };
        let launch = builder.launch(&source, "depthwise", shape, arguments)?;
        Ok(Implementation { name: NAME.to_owned(), calls: vec![Box::new(launch)], scratch_bytes: 0 })
    }

    fn axis(&self, axis: usize, is_gradient: bool) -> Result<Axis, String> {
        let padding = int_of(self.conv.padding_before[axis])?;
        if !is_gradient {
            return Ok(Axis { before: 0, begin: -padding });
        }
        // With its first tap, the last of the kernel, the gradient at `u` reads `(u - padding) / stride`.
        let [taps, dilation, stride] =
            [self.conv.kernel[axis], self.conv.dilation[axis], self.conv.stride[axis]];
        let padding = int_of((taps - 1) * dilation)? - padding;
        let stride = int_of(stride)?;
        let before = (-padding).rem_euclid(stride);
        let begin = (-before - padding).div_euclid(stride);
        Ok(Axis { before: before.unsigned_abs() as usize, begin })
    }

    fn backward_weights(
        &self,
        [x, dweight, dy]: [Argument; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        let Conv2d { kernel, stride, padding_before, .. } = *self.conv;
        let [batch, channels, out_height, out_width] = self.problem.y;
        let taps = kernel[0] * kernel[1];
        let source = self
            .source("depthwise_weights", PIXELS_PER_THREAD)
            .with("STRIDE_H", stride[0])
            .with("STRIDE_W", stride[1]);

        // Blocks along the channels have equal widths, at most 32 threads.
        let vectors = channels / self.vector;
        let across = vectors.div_ceil(32);
        let width = vectors.div_ceil(across);
        let height = THREADS / width;
        let groups = out_width.div_ceil(PIXELS_PER_THREAD);
        let units = batch * out_height * groups;
        let target_blocks =
            (2 * self.resident * builder.processor.multiprocessors() as usize).div_ceil(across);
        let parts = units.div_ceil(2 * height).clamp(1, target_blocks.min(0xffff));
        let share = units.div_ceil(parts).max(1);
        let parts = units.div_ceil(share).max(1);

        let sizes = [units, share, channels, self.problem.x[2], self.problem.x[3], out_height, out_width];
        let mut arguments = vec![x, dy, Argument::Scratch(0)];
        for size in sizes.into_iter().chain([groups]).chain(padding_before) {
            arguments.push(int(size)?);
        }
        let shape = Shape {
            grid: [extent(across)?, extent(parts)?, 1],
            block: [width as u32, height as u32, 1],
            shared: 0,
        };
        let partial_sums = builder.launch(&source, "depthwise_weights", shape, arguments)?;
        let arguments = vec![Argument::Scratch(0), dweight, int(parts)?, int(channels)?];
        let shape =
            Shape { grid: [extent((taps * channels).div_ceil(32))?, 1, 1], block: [32, 16, 1], shared: 0 };
        let sums = builder.launch(&source, "depthwise_weights_sum", shape, arguments)?;
        Ok(Implementation {
            name: NAME.to_owned(),
            calls: vec![Box::new(partial_sums), Box::new(sums)],
            scratch_bytes: parts * taps * channels * size_of::<f64>(),
        })
    }
}

/// The name in plans.
const NAME: &str = "stratus:depthwise";

/// The start of the columns of outputs along one axis.
struct Axis {
    /// The distance before the first output.
    before: usize,
    /// The input of the first tap there.
    begin: i32,
}

fn int_of(count: usize) -> Result<i32, String> {
    i32::try_from(count).map_err(|_| format!("{count} exceeds the range of `int`"))
}

fn extent(blocks: usize) -> Result<u32, String> {
    int_of(blocks).map(i32::unsigned_abs)
}
