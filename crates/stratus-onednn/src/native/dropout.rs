//! Dropout: the mask is recomputed wherever it is needed, 16 blocks of the Philox sequence at a time.
//!
//! Elements are numbered in row-major order `[N, C, H, W]` in every layout. If that is the order in memory,
//! the four words of a block decide over four neighbours. With channels innermost, whose indices differ by
//! H·W, every element takes one word of its own block.

use super::elementwise::CpuContext;
use super::rows::MapGeometry;
use super::simd::{Element, multiversion};
use super::threads::split_lengths;
use std::ops::Range;
use stratus_engine::ops::Mask;

/// Blocks computed at a time.
const LANES: usize = 16;

/// The mask of a step, and the scale of the kept elements.
#[derive(Clone, Debug)]
pub struct DropoutMask {
    /// The mask of dropped elements.
    pub mask: Mask,
    /// The factor of the kept elements.
    pub scale: f32,
    /// The index of the tile's first element in the whole batch.
    pub first: u64,
}

/// `y = x * scale`, or 0 if the mask drops the element. Without a geometry the order in memory is row-major.
pub fn dropout<A: Element, B: Element>(
    cpu: &CpuContext,
    dropout: &DropoutMask,
    geometry: Option<&MapGeometry>,
    x: &[A],
    y: &mut [B],
) {
    let Some(geometry) = geometry else {
        cpu.for_ranges(y, &|range, y| {
            let first = dropout.first + range.start as u64;
            contiguous(cpu.level, dropout, first, &x[range], y);
        });
        return;
    };
    let threads = cpu.team.threads();
    let rows = |thread| geometry.thread_rows(threads, thread);
    let row = geometry.row_elements();
    let mut parts = split_lengths(y, (0..threads).map(|thread| rows(thread).len() * row));
    cpu.team.run_parts(&mut parts[..threads], &|thread, y| {
        let rows = rows(thread);
        map_rows(cpu.level, dropout, geometry, rows.clone(), &x[rows.start * row..rows.end * row], y);
    });
}

multiversion! {
    fn contiguous / contiguous_body [A: Element, B: Element] [A, B] (
        dropout: &DropoutMask,
        first: u64,
        x: &[A],
        y: &mut [B],
    )
}

/// Consecutive elements, starting with index `first`.
#[inline(always)]
fn contiguous_body<A: Element, B: Element>(dropout: &DropoutMask, first: u64, x: &[A], y: &mut [B]) {
    let mut position = 0;
    while position < y.len() {
        let number = first + position as u64;
        let (block, skip) = ((number / 4) as u32, (number % 4) as usize);
        let words =
            dropout.mask.stream.blocks::<LANES>(std::array::from_fn(|lane| block.wrapping_add(lane as u32)));
        let mut flat = [0; 4 * LANES];
        for (lane, flat) in flat.chunks_exact_mut(4).enumerate() {
            for (word, flat) in flat.iter_mut().enumerate() {
                *flat = words[word][lane];
            }
        }
        let count = (flat.len() - skip).min(y.len() - position);
        let (x, y) = (&x[position..position + count], &mut y[position..position + count]);
        for ((y, x), word) in y.iter_mut().zip(x).zip(&flat[skip..]) {
            let value = x.load() * dropout.scale;
            *y = B::store(if *word < dropout.mask.threshold { 0.0 } else { value });
        }
        position += count;
    }
}

multiversion! {
    fn map_rows / map_rows_body [A: Element, B: Element] [A, B] (
        dropout: &DropoutMask, geometry: &MapGeometry, rows: Range<usize>, x: &[A], y: &mut [B],
    )
}

/// Pixel rows of a map, counted over all planes.
#[inline(always)]
fn map_rows_body<A: Element, B: Element>(
    dropout: &DropoutMask,
    geometry: &MapGeometry,
    rows: Range<usize>,
    x: &[A],
    y: &mut [B],
) {
    let MapGeometry { height, row_pixels: row, pixel_channels: width, groups, channels, .. } = *geometry;
    let pixels = (height * row) as u64;
    let first_pixel = rows.start * row;
    for (position, (x, y)) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).enumerate() {
        let pixel = first_pixel + position;
        let plane = pixel / (height * row);
        let (image, group) = (plane / groups, plane % groups);
        let number = (image * channels + group * width) as u64 * pixels + (pixel % (height * row)) as u64;
        // Padding is zero, kept or not.
        for (chunk, (x, y)) in x.chunks(LANES).zip(y.chunks_mut(LANES)).enumerate() {
            let start = dropout.first + number + (chunk * LANES) as u64 * pixels;
            let numbers: [u64; LANES] = std::array::from_fn(|lane| start + lane as u64 * pixels);
            let blocks = dropout.mask.stream.blocks::<LANES>(numbers.map(|number| (number / 4) as u32));
            let mut words = [0; LANES];
            for lane in 0..LANES {
                let [a, b, c, d] = [0, 1, 2, 3].map(|word: usize| blocks[word][lane]);
                let odd = numbers[lane] & 1 != 0;
                let (low, high) = (if odd { b } else { a }, if odd { d } else { c });
                words[lane] = if numbers[lane] & 2 != 0 { high } else { low };
            }
            for ((y, x), word) in y.iter_mut().zip(x).zip(&words) {
                let value = x.load() * dropout.scale;
                *y = B::store(if *word < dropout.mask.threshold { 0.0 } else { value });
            }
        }
    }
}
