//! The stem. Programs for GPUs have none, as GPU memory is fast enough to store the convolution's output.
//! These simple kernels run plans that were made for another backend.

use super::{KernelBuilder, OnGpu, Operand, THREADS, check_type, int, long};
use crate::processor::{Argument, Implementation, Launch, Shape, Source};
use stratus_engine::ops::{Stem, StemApply, StemGradients, StemInference, StemStatistics};

/// The fewest output pixels of a block that sums over them.
const PIXELS_OF_BLOCK: usize = 64;

/// The source of a stem, for the type of its images.
fn source(stem: &Stem, images: &Operand) -> Result<Source, String> {
    check_type(images.dtype())?;
    let [pad_h, pad_w] = stem.conv.padding_before;
    Ok(Source::of("stem", images.dtype(), 1)
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
    pixels: usize,
}

impl Sizes {
    fn of(stem: &Stem, images: &Operand) -> Result<Self, String> {
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

/// Blocks of a sum over `pixels` pixels of the batch.
fn blocks(pixels: usize, builder: &KernelBuilder<'_>) -> Result<u32, String> {
    let most = 4 * builder.processor.multiprocessors() as usize;
    u32::try_from(pixels.div_ceil(PIXELS_OF_BLOCK).clamp(1, most)).map_err(|error| error.to_string())
}

fn one_dimensional(blocks: u32) -> Shape {
    Shape { grid: [blocks, 1, 1], block: [THREADS, 1, 1], shared: 0 }
}

/// A thread per item.
fn thread_per_item(items: usize) -> Result<Shape, String> {
    u32::try_from(items.div_ceil(THREADS as usize)).map(one_dimensional).map_err(|error| error.to_string())
}

/// Adds the partial sums of blocks, which are in the scratch, to the operand `to`.
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

/// Writes the pooled map, and the argmax indices where there is an operand for them. A negative epsilon says
/// that the operand holds inverse deviations instead of variances.
fn apply(
    stem: &Stem,
    operands: &[Operand],
    epsilon: f32,
    builder: &KernelBuilder<'_>,
) -> Result<Launch, String> {
    let (source, sizes) = (source(stem, &operands[0])?, Sizes::of(stem, &operands[0])?);
    let (y, index) = (&operands[6], operands.len() > 7);
    let [.., out_height, out_width] = y.image()?;
    let index = if index { Argument::Operand(7) } else { Argument::Null };
    let arguments = (0..7).map(Argument::Operand).chain([index, long(y.elements()), sizes.channels]);
    let arguments = arguments.chain(sizes.images).chain([int(out_height)?, int(out_width)?]);
    let arguments = arguments.chain([Argument::Float(epsilon)]).collect();
    builder.grid_stride(&source, "stem_apply", y.elements(), arguments)
}

impl OnGpu for StemApply {
    fn build(
        &self,
        operands: &[Operand],
        _counts: [usize; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        Ok(Implementation::native("stem_apply", vec![apply(&self.stem, operands, -1.0, builder)?], 0))
    }
}

impl OnGpu for StemInference {
    fn build(
        &self,
        operands: &[Operand],
        _counts: [usize; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        let launch = apply(&self.stem, operands, self.stem.norm.epsilon, builder)?;
        Ok(Implementation::native("stem_inference", vec![launch], 0))
    }
}

impl OnGpu for StemStatistics {
    fn build(
        &self,
        operands: &[Operand],
        _counts: [usize; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        let (stem, taps) = (&self.stem, self.stem.taps());
        let (source, sizes) = (source(stem, &operands[0])?, Sizes::of(stem, &operands[0])?);
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
        let reduce = builder.launch(&source, "stem_settle", shape, arguments.collect())?;
        let scratch = blocks as usize * entries * size_of::<f64>();
        Ok(Implementation::native("stem_statistics", vec![correlate, add, reduce], scratch))
    }
}

impl OnGpu for StemGradients {
    fn build(
        &self,
        operands: &[Operand],
        _counts: [usize; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        let (stem, channels) = (&self.stem, self.stem.conv.out_channels);
        let (source, sizes) = (source(stem, &operands[0])?, Sizes::of(stem, &operands[0])?);
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
