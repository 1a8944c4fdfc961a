//! The gradient of the weights of a convolution of few channels on AMX.
//!
//! [`super::panel_gradient`] brings maps into panels of 32 channels, once per column of taps; with eight or sixteen channels most of what it moves is
//! zeros. Here the images lie as they are, a border around them, pixel behind pixel: what a tap sees for 32 outputs in a row begins so many pixels
//! further on, and the tiles of all taps are loaded from one place. A second factor's rows are pairs of pixels: each pixel is laid out with the one
//! behind it. Of eight channels, a row then holds two pixels, and a tile two taps.
//!
//! Outputs that are border count too, with a gradient of zero.

use super::panels::ConvProblem;
use super::tiles::amx::{Amx, Registers};
use super::tiles::{MatrixUnit, ROWS, TERMS, TILE, TILE_SUMS};
use crate::native::elementwise::CpuContext;
use crate::native::lanes::transpose;
use crate::native::simd::{Bf16, Isa};
use crate::native::threads::{MAX_THREADS, cut, piece, split};
use std::arch::x86_64::{
    _mm256_loadu_si256, _mm512_castsi256_si512, _mm512_inserti64x4, _mm512_loadu_si512,
    _mm512_permutex2var_epi64, _mm512_permutexvar_epi16, _mm512_setzero_si512, _mm512_storeu_si512,
    _mm512_unpackhi_epi16, _mm512_unpacklo_epi16,
};
use std::ops::Range;

/// Elements of the pairs of a band of rows: they stay in a core's second cache.
const BAND: usize = 1 << 16;

/// The most tiles of sums: more than a first cache holds would be no gain over other kernels.
const MOST_TILES: usize = 64;

/// The gradient of the weights of one convolution, without stride or bias.
#[derive(Clone)]
pub struct TapGradient {
    channels: usize,
    filters: usize,
    kernel: [usize; 2],
    padding: [usize; 2],
    batch: usize,
    input: [usize; 2],
    output: [usize; 2],
    /// Output rows of a band.
    band: usize,
    /// Where the tiles of taps begin among the pairs, in elements.
    taps: Vec<usize>,
    /// Where each weight's gradient goes, and which sum it is.
    gather: Vec<[usize; 2]>,
    amx: Amx,
    cpu: CpuContext,
}

/// What a thread works with.
#[derive(Default)]
struct Share<'a> {
    sums: &'a mut [f32],
    memory: &'a mut [f32],
}

/// Part of an image.
struct Band {
    image: usize,
    rows: Range<usize>,
}

impl TapGradient {
    /// The gradient of the weights, to lie as the problem says; `None` where another kernel has to make it.
    #[must_use]
    pub fn new(problem: ConvProblem<'_>) -> Option<Self> {
        let ConvProblem { conv, batch, input, weights: takes, unit, cpu } = problem;
        let MatrixUnit::Amx(amx) = unit else { return None };
        let output = conv.output_size(input).ok()?;
        let [rows, columns] = conv.kernel;
        let channels = conv.in_channels;
        let suits = conv.groups == 1
            && conv.stride == [1, 1]
            && conv.dilation == [1, 1]
            && !conv.bias
            && (channels == ROWS || channels == ROWS / 2)
            && conv.out_channels.is_multiple_of(ROWS)
            && cpu.level.isa() == Isa::Avx512
            && takes.shape == conv.weight_shape();
        if !suits {
            return None;
        }
        let pitch = output[1] + columns - 1;
        let band = (BAND / (2 * channels * pitch)).saturating_sub(rows - 1).clamp(1, output[0]);
        // A tile has room for one tap or two next to each other.
        let together = ROWS / channels;
        let of_row = columns.div_ceil(together);
        let tap = |number: usize| (number / of_row * pitch + number % of_row * together) * 2 * channels;
        let taps: Vec<usize> = (0..rows * of_row).map(tap).collect();
        let blocks = conv.out_channels / ROWS;
        if taps.len() * blocks > MOST_TILES {
            return None;
        }
        let mut gather = Vec::with_capacity(conv.out_channels * channels * rows * columns);
        takes.for_each(&takes.shape, |at, from| {
            let (column, row) = (from % columns, from / columns % rows);
            let (channel, filter) = (from / (columns * rows) % channels, from / (columns * rows * channels));
            let tile = filter / ROWS * taps.len() + row * of_row + column / together;
            let sum = tile * TILE_SUMS + filter % ROWS * ROWS + column % together * channels + channel;
            gather.push([at, sum]);
        });
        Some(Self {
            channels,
            filters: conv.out_channels,
            kernel: conv.kernel,
            padding: conv.padding_before,
            batch,
            input,
            output,
            band,
            taps,
            gather,
            amx,
            cpu: cpu.clone(),
        })
    }

    /// Pixels from one row to the next, border included.
    fn pitch(&self) -> usize {
        self.output[1] + self.kernel[1] - 1
    }

    /// Tiles of the outputs of a band.
    fn tiles(&self) -> usize {
        (self.band * self.pitch()).div_ceil(TERMS)
    }

    /// Blocks of filters.
    fn blocks(&self) -> usize {
        self.filters / ROWS
    }

    /// Pixels that have a place: the last tile's windows, and what is read with the last of them.
    fn pixels(&self) -> usize {
        self.tiles() * TERMS + self.kernel[0] * self.pitch() + TERMS
    }

    fn sums(&self) -> usize {
        self.blocks() * self.taps.len() * TILE_SUMS
    }

    /// Elements of a thread's pixels, pairs, gradients as they lie, and as tiles.
    fn parts(&self) -> [usize; 4] {
        let (pixels, outputs) = (self.pixels() * self.channels, self.tiles() * TERMS * self.filters);
        // Of the pixels a register more is read than there are pairs of.
        [pixels + TERMS, 2 * pixels, outputs, outputs]
    }

    /// Bytes of scratch.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        let memory = self.parts().iter().sum::<usize>() * size_of::<Bf16>();
        self.cpu.team.threads() * (self.sums() * size_of::<f32>() + memory)
    }

    /// Makes the gradient.
    pub fn run(&self, x: &[Bf16], dy: &[Bf16], dw: &mut [f32], scratch: &mut [f32]) {
        let elements = |[height, width]: [usize; 2], channels| self.batch * height * width * channels;
        let expected = [elements(self.input, self.channels), elements(self.output, self.filters)];
        assert_eq!([x.len(), dy.len()], expected, "maps of another size");
        let threads = self.cpu.team.threads();
        let (sums, memory) = scratch.split_at_mut(threads * self.sums());
        let each = self.parts().iter().sum::<usize>() / 2;
        let mut all_sums = cut(&mut sums[..], (0..threads).map(|_| self.sums()));
        let mut all_memory = cut(memory, (0..threads).map(|_| each));
        let mut shares: [Share<'_>; MAX_THREADS] = std::array::from_fn(|thread| Share {
            sums: std::mem::take(&mut all_sums[thread]),
            memory: std::mem::take(&mut all_memory[thread]),
        });
        let bands = self.output[0].div_ceil(self.band);
        self.cpu.team.run_parts(&mut shares[..threads], &|thread, share| {
            share.sums.fill(0.0);
            // Borders are zero, and stay so.
            share.memory.fill(0.0);
            let tiles = self.amx.registers();
            for number in split(self.batch * bands, threads, thread) {
                let rows = piece(number % bands, self.band, self.output[0]);
                let band = Band { image: number / bands, rows };
                // SAFETY: the level is the proof of AVX-512 (`new`).
                unsafe { self.add(&band, [x, dy], &tiles, share) };
            }
        });
        let (first, others) = sums.split_at_mut(self.sums());
        for other in others.chunks_exact(self.sums()) {
            // In the order of the threads.
            first.iter_mut().zip(other).for_each(|(sum, other)| *sum += other);
        }
        for &[at, sum] in &self.gather {
            dw[at] = first[sum];
        }
    }

    /// Adds what a band gives.
    ///
    /// # Safety
    /// AVX-512 must be there.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn add(&self, band: &Band, [x, dy]: [&[Bf16]; 2], tiles: &Registers, share: &mut Share<'_>) {
        let [pixels, pairs, gradients, _] = self.parts();
        let memory: &mut [Bf16] = bytemuck::cast_slice_mut(share.memory);
        let (pixels, memory) = memory.split_at_mut(pixels);
        let (pairs, memory) = memory.split_at_mut(pairs);
        let (gradients, transposed) = memory.split_at_mut(gradients);
        self.place(band, x, pixels);
        self.place_gradients(band, dy, gradients);
        // SAFETY: the caller's, here and below.
        unsafe { pair(pixels, pairs, self.channels) };
        let count = self.tiles();
        for (block, (a, sums)) in transposed
            .chunks_exact_mut(count * TILE)
            .zip(share.sums.chunks_exact_mut(self.taps.len() * TILE_SUMS))
            .enumerate()
        {
            for (tile, a) in a.chunks_exact_mut(TILE).enumerate() {
                let from = &gradients[tile * TERMS * self.filters + block * ROWS..];
                unsafe { as_rows(from, self.filters, a) };
            }
            tiles.multiply_add_taps(a, pairs, &self.taps, self.channels, count, sums);
        }
    }

    /// Copies the rows that a band's taps see to their places.
    fn place(&self, band: &Band, x: &[Bf16], pixels: &mut [Bf16]) {
        let (channels, [height, width]) = (self.channels, self.input);
        let seen = band.rows.start..band.rows.end + self.kernel[0] - 1;
        for (row, to) in seen.zip(pixels.chunks_exact_mut(self.pitch() * channels)) {
            let to = &mut to[self.padding[1] * channels..][..width * channels];
            match row.checked_sub(self.padding[0]).filter(|&row| row < height) {
                Some(row) => {
                    let at = (band.image * height + row) * width * channels;
                    to.copy_from_slice(&x[at..at + width * channels]);
                }
                None => to.fill(Bf16(0)),
            }
        }
    }

    /// Copies a band's rows of the output's gradient to their places.
    fn place_gradients(&self, band: &Band, dy: &[Bf16], gradients: &mut [Bf16]) {
        let (filters, [height, width]) = (self.filters, self.output);
        let mut rows = gradients.chunks_exact_mut(self.pitch() * filters);
        for row in band.rows.clone() {
            let at = (band.image * height + row) * width * filters;
            if let Some(to) = rows.next() {
                to[..width * filters].copy_from_slice(&dy[at..at + width * filters]);
            }
        }
        // A last band may be shorter.
        rows.take(self.band - band.rows.len()).for_each(|row| row.fill(Bf16(0)));
    }
}

/// Lays every pixel out with the one behind it, channel by channel. Behind `pixels` a register more is read.
///
/// # Safety
/// AVX-512 must be there.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pair(pixels: &[Bf16], pairs: &mut [Bf16], channels: usize) {
    let order = |first: u64| {
        let lanes: [u64; 8] =
            [first, first + 1, first + 8, first + 9, first + 2, first + 3, first + 10, first + 11];
        // SAFETY: 64 bytes.
        unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
    };
    let [low, high] = [order(0), order(4)];
    for (at, to) in pairs.chunks_exact_mut(2 * TERMS).enumerate() {
        let here = &pixels[at * TERMS..][..TERMS];
        let next = &pixels[at * TERMS + channels..][..TERMS];
        // SAFETY: 64 bytes are read of either, 128 are written.
        unsafe {
            let (here, next) =
                (_mm512_loadu_si512(here.as_ptr().cast()), _mm512_loadu_si512(next.as_ptr().cast()));
            let (first, second) = (_mm512_unpacklo_epi16(here, next), _mm512_unpackhi_epi16(here, next));
            let to = to.as_mut_ptr();
            _mm512_storeu_si512(to.cast(), _mm512_permutex2var_epi64(first, low, second));
            _mm512_storeu_si512(to.add(TERMS).cast(), _mm512_permutex2var_epi64(first, high, second));
        }
    }
}

/// Writes sixteen filters of 32 pixels, `filters` elements apart, as a tile of a row per filter.
///
/// # Safety
/// AVX-512 must be there.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn as_rows(from: &[Bf16], filters: usize, tile: &mut [Bf16]) {
    let interleave: [u16; TERMS] = std::array::from_fn(|i| (i / 2 + i % 2 * ROWS) as u16);
    // SAFETY: 64 bytes.
    let interleave = unsafe { _mm512_loadu_si512(interleave.as_ptr().cast()) };
    assert!(from.len() >= (TERMS - 1) * filters + ROWS, "fewer pixels than a tile has");
    let mut rows = [_mm512_setzero_si512(); ROWS];
    for (pair, row) in rows.iter_mut().enumerate() {
        // SAFETY: 32 bytes of two pixels, which the assertion says are there.
        unsafe {
            let even = from.as_ptr().add(2 * pair * filters);
            let odd = _mm256_loadu_si256(even.add(filters).cast());
            let both = _mm512_castsi256_si512(_mm256_loadu_si256(even.cast()));
            *row = _mm512_permutexvar_epi16(interleave, _mm512_inserti64x4::<1>(both, odd));
        }
    }
    for (row, to) in transpose(rows).into_iter().zip(tile.chunks_exact_mut(TERMS)) {
        // SAFETY: 64 bytes.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), row) };
    }
}

#[cfg(test)]
#[path = "tap_gradient_tests.rs"]
mod tests;
