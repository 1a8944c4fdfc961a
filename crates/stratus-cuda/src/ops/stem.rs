//! The stem. Programs for GPUs do not fuse it, because GPU memory is fast enough to store the convolution's
//! output. These simple kernels run plans made for another backend.

use super::{BuildResult, GpuOp, KernelBuilder, Operand, THREADS, check_type, int, long};
use crate::processor::{Argument, Implementation, Launch, Shape, Source};
use stratus_engine::ops::{Stem, StemApply, StemGradients, StemInference, StemStatistics};

/// The minimum number of output pixels of a block that sums over them.
const MIN_PIXELS_PER_BLOCK: usize = 64;

/// The source of a stem, for the type of its images.
fn source(stem: &Stem, images: &Operand) -> Result<Source, String> {
    check_type(images.dtype())?;
    let [pad_h, pad_w] = stem.conv.padding_before;
    Ok(Source::new("stem", images.dtype(), 1)
        .with("IN", stem.conv.in_channels)
        .with("KH", stem.conv.kernel[0])
        .with("KW", stem.conv.kernel[1])
        .with("PAD_H", pad_h)
        .with("PAD_W", pad_w)
        .with("RELU", u8::from(stem.relu)))
}

/// Sizes as parameters of kernels, and the pixels of the convolution's output, `N · H_out · W_out`.
struct Sizes {
    channels: Argument,
    /// Height and width of the images.
    images: [Argument; 2],
    /// Height and width of the convolution's output.
    rows_columns: [Argument; 2],
    /// The pixels of the convolution's output in the batch.
    pixels: usize,
}

impl Sizes {
    fn new(stem: &Stem, images: &Operand) -> Result<Self, String> {
        let [batch, _, height, width] = images.image()?;
        let [rows, columns] = stem.conv.output_size([height, width]).map_err(|error| error.to_string())?;
        Ok(Self {
            channels: int(stem.conv.out_channels)?,
            images: [int(height)?, int(width)?],
            rows_columns: [int(rows)?, int(columns)?],
            pixels: batch * rows * columns,
        })
    }
}

/// The number of blocks of a sum over `pixels` pixels of the batch.
fn blocks(pixels: usize, builder: &KernelBuilder<'_>) -> Result<u32, String> {
    let max_blocks = 4 * builder.processor.multiprocessors() as usize;
    u32::try_from(pixels.div_ceil(MIN_PIXELS_PER_BLOCK).clamp(1, max_blocks))
        .map_err(|error| error.to_string())
}

fn one_dimensional(blocks: u32) -> Shape {
    Shape { grid: [blocks, 1, 1], block: [THREADS, 1, 1], shared: 0 }
}

/// A launch with one thread per item.
fn thread_per_item(items: usize) -> Result<Shape, String> {
    u32::try_from(items.div_ceil(THREADS as usize)).map(one_dimensional).map_err(|error| error.to_string())
}

/// The launch that adds the partial sums of blocks in the scratch to the operand `to`.
fn add(
    source: &Source,
    to: usize,
    blocks: u32,
    entries: usize,
    builder: &KernelBuilder<'_>,
) -> Result<Launch, String> {
    let arguments = vec![
        Argument::Scratch(0),
        Argument::Operand(to),
        int(blocks as usize)?,
        int(entries)?,
        Argument::IsFirstTile,
    ];
    builder.launch(source, "stem_add", thread_per_item(entries)?, arguments)
}

/// The launch that writes the pooled map, and the argmax indices if there is an operand for them. A negative
/// epsilon marks inverse deviations in place of variances.
fn apply(
    stem: &Stem,
    operands: &[Operand],
    epsilon: f32,
    builder: &KernelBuilder<'_>,
) -> Result<Launch, String> {
    let (source, sizes) = (source(stem, &operands[0])?, Sizes::new(stem, &operands[0])?);
    let (y, index) = (&operands[6], operands.len() > 7);
    let [.., out_height, out_width] = y.image()?;
    let index = if index { Argument::Operand(7) } else { Argument::Null };
    let arguments = (0..7).map(Argument::Operand).chain([index, long(y.elements()), sizes.channels]);
    let arguments = arguments.chain(sizes.images).chain([int(out_height)?, int(out_width)?]);
    let arguments = arguments.chain([Argument::Float(epsilon)]).collect();
    builder.grid_stride(&source, "stem_apply", y.elements(), arguments)
}

impl GpuOp for StemApply {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        Ok(Implementation::native("stem_apply", vec![apply(&self.stem, operands, -1.0, builder)?], 0))
    }
}

impl GpuOp for StemInference {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let launch = apply(&self.stem, operands, self.stem.norm.epsilon, builder)?;
        Ok(Implementation::native("stem_inference", vec![launch], 0))
    }
}

impl GpuOp for StemStatistics {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let (stem, taps) = (&self.stem, self.stem.taps());
        let (source, sizes) = (source(stem, &operands[0])?, Sizes::new(stem, &operands[0])?);
        let (blocks, entries) = (blocks(sizes.pixels, builder)?, (taps + 1) * taps);
        let arguments = [Argument::Operand(0), Argument::Scratch(0), long(sizes.pixels)];
        let arguments = arguments.into_iter().chain(sizes.images).chain(sizes.rows_columns).collect();
        let correlate = builder.launch(&source, "stem_correlation", one_dimensional(blocks), arguments)?;
        let add = add(&source, 6, blocks, entries, builder)?;
        let arguments = [1, 6, 2, 3, 4, 5].map(Argument::Operand).into_iter().chain([
            long(sizes.pixels),
            sizes.channels,
            Argument::Float(stem.norm.epsilon),
            Argument::Float(stem.norm.momentum),
            Argument::Tiles,
            Argument::IsLastTile,
        ]);
        let shape = thread_per_item(stem.conv.out_channels)?;
        let reduce = builder.launch(&source, "stem_finish_statistics", shape, arguments.collect())?;
        let scratch = blocks as usize * entries * size_of::<f64>();
        Ok(Implementation::native("stem_statistics", vec![correlate, add, reduce], scratch))
    }
}

impl GpuOp for StemGradients {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let (stem, channels) = (&self.stem, self.stem.conv.out_channels);
        let (source, sizes) = (source(stem, &operands[0])?, Sizes::new(stem, &operands[0])?);
        let [batch, _, out_height, out_width] = operands[2].image()?;
        let pooled = batch * out_height * out_width;
        let (blocks, entries) = (blocks(pooled, builder)?, channels * (stem.taps() + 1));
        let arguments = [0, 2, 7].map(Argument::Operand).into_iter();
        let arguments = arguments.chain([Argument::Scratch(0), long(pooled), sizes.channels]);
        let arguments = arguments.chain(sizes.images).chain([int(out_height)?, int(out_width)?]).collect();
        let multiply = builder.launch(&source, "stem_products", one_dimensional(blocks), arguments)?;
        let add = add(&source, 11, blocks, entries, builder)?;
        let arguments = [1, 3, 4, 5, 6, 11, 8, 9, 10].map(Argument::Operand).into_iter();
        let arguments = arguments.chain([long(sizes.pixels), sizes.channels, Argument::Tiles]);
        let arguments = arguments.chain([Argument::IsLastTile]).collect();
        let finish = builder.launch(&source, "stem_finish", thread_per_item(channels)?, arguments)?;
        let scratch = blocks as usize * entries * size_of::<f64>();
        Ok(Implementation::native("stem_gradients", vec![multiply, add, finish], scratch))
    }
}
