//! The stem. Programs for GPUs do not have it, where memory is fast enough to store the convolution's output: these kernels are there for plans that
//! were made elsewhere, and are simple.

use super::{Maker, OnGpu, Operand, THREADS, check_type, int, long};
use crate::processor::{Argument, Launch, Made, Shape, Source};
use stratus_engine::ops::{Stem, StemApply, StemGradients, StemInference, StemStatistics};

/// The places that a block has at least, where sums are taken over them.
const PLACES_OF_BLOCK: usize = 64;

/// The source for a stem and the type of its images.
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

/// Sizes that kernels are given, and how many places of the convolution's output there are.
struct Sizes {
    channels: Argument,
    /// Height and width of the images.
    images: [Argument; 2],
    /// Height and width of the convolution's output.
    rows_columns: [Argument; 2],
    places: usize,
}

impl Sizes {
    fn of(stem: &Stem, images: &Operand) -> Result<Self, String> {
        let [batch, _, height, width] = images.image()?;
        let [rows, columns] = stem.conv.output_size([height, width]).map_err(|error| error.to_string())?;
        Ok(Self {
            channels: int(stem.conv.out_channels)?,
            images: [int(height)?, int(width)?],
            rows_columns: [int(rows)?, int(columns)?],
            places: batch * rows * columns,
        })
    }
}

/// Blocks that share out places, for sums over the batch.
fn blocks(places: usize, maker: &Maker<'_>) -> Result<u32, String> {
    let most = 4 * maker.processor.multiprocessors() as usize;
    u32::try_from(places.div_ceil(PLACES_OF_BLOCK).clamp(1, most)).map_err(|error| error.to_string())
}

fn line(blocks: u32) -> Shape {
    Shape { grid: [blocks, 1, 1], block: [THREADS, 1, 1], shared: 0 }
}

/// A thread for each of some items.
fn each(items: usize) -> Result<Shape, String> {
    u32::try_from(items.div_ceil(THREADS as usize)).map(line).map_err(|error| error.to_string())
}

/// Adds the shares of blocks, which lie in the scratch, to an operand.
fn add(source: &Source, to: usize, blocks: u32, entries: usize, maker: &Maker<'_>) -> Result<Launch, String> {
    let arguments = vec![
        Argument::Scratch(0),
        Argument::Operand(to),
        int(blocks as usize)?,
        int(entries)?,
        Argument::IsFirstTile,
    ];
    maker.launch(source, "stem_add", each(entries)?, arguments)
}

/// The pooled map, and the winners where there is an operand for them. A negative epsilon says that the deviations are known.
fn apply(stem: &Stem, operands: &[Operand], epsilon: f32, maker: &Maker<'_>) -> Result<Launch, String> {
    let (source, sizes) = (source(stem, &operands[0])?, Sizes::of(stem, &operands[0])?);
    let (y, index) = (&operands[6], operands.len() > 7);
    let [.., out_height, out_width] = y.image()?;
    let index = if index { Argument::Operand(7) } else { Argument::Null };
    let arguments = (0..7).map(Argument::Operand).chain([index, long(y.elements()), sizes.channels]);
    let arguments = arguments.chain(sizes.images).chain([int(out_height)?, int(out_width)?]);
    let arguments = arguments.chain([Argument::Float(epsilon)]).collect();
    maker.spread(&source, "stem_apply", y.elements(), arguments)
}

impl OnGpu for StemApply {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        Ok(Made::of("stem_apply", vec![apply(&self.stem, operands, -1.0, maker)?], 0))
    }
}

impl OnGpu for StemInference {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        let launch = apply(&self.stem, operands, self.stem.norm.epsilon, maker)?;
        Ok(Made::of("stem_inference", vec![launch], 0))
    }
}

impl OnGpu for StemStatistics {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        let (stem, taps) = (&self.stem, self.stem.taps());
        let (source, sizes) = (source(stem, &operands[0])?, Sizes::of(stem, &operands[0])?);
        let (blocks, entries) = (blocks(sizes.places, maker)?, (taps + 1) * taps);
        let arguments = [Argument::Operand(0), Argument::Scratch(0), long(sizes.places)];
        let arguments = arguments.into_iter().chain(sizes.images).chain(sizes.rows_columns).collect();
        let correlate = maker.launch(&source, "stem_correlation", line(blocks), arguments)?;
        let add = add(&source, 6, blocks, entries, maker)?;
        let arguments = [1, 6, 2, 3, 4, 5].map(Argument::Operand).into_iter().chain([
            long(sizes.places),
            sizes.channels,
            Argument::Float(stem.norm.epsilon),
            Argument::Float(stem.norm.momentum),
            Argument::Tiles,
            Argument::IsLastTile,
        ]);
        let shape = each(stem.conv.out_channels)?;
        let settle = maker.launch(&source, "stem_settle", shape, arguments.collect())?;
        let scratch = blocks as usize * entries * size_of::<f64>();
        Ok(Made::of("stem_statistics", vec![correlate, add, settle], scratch))
    }
}

impl OnGpu for StemGradients {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        let (stem, channels) = (&self.stem, self.stem.conv.out_channels);
        let (source, sizes) = (source(stem, &operands[0])?, Sizes::of(stem, &operands[0])?);
        let [batch, _, out_height, out_width] = operands[2].image()?;
        let pooled = batch * out_height * out_width;
        let (blocks, entries) = (blocks(pooled, maker)?, channels * (stem.taps() + 1));
        let arguments = [0, 2, 7].map(Argument::Operand).into_iter();
        let arguments = arguments.chain([Argument::Scratch(0), long(pooled), sizes.channels]);
        let arguments = arguments.chain(sizes.images).chain([int(out_height)?, int(out_width)?]).collect();
        let multiply = maker.launch(&source, "stem_products", line(blocks), arguments)?;
        let add = add(&source, 11, blocks, entries, maker)?;
        let arguments = [1, 3, 4, 5, 6, 11, 8, 9, 10].map(Argument::Operand).into_iter();
        let arguments = arguments.chain([long(sizes.places), sizes.channels, Argument::Tiles]);
        let arguments = arguments.chain([Argument::IsLastTile]).collect();
        let finish = maker.launch(&source, "stem_finish", each(channels)?, arguments)?;
        let scratch = blocks as usize * entries * size_of::<f64>();
        Ok(Made::of("stem_gradients", vec![multiply, add, finish], scratch))
    }
}
