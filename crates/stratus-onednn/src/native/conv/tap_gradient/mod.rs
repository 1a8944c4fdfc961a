//! Weight gradients of few channels (8 or 16) on AMX, stride 1.
//!
//! [`super::panel_gradient`] packs panels of 32 channels for each column of taps, which would be mostly zeros
//! here. Instead, a band of rows is packed once for all taps:
//!
//! ```text
//! pixels  [rows + kernel - 1][pitch][C]      pitch = Wo + kernel - 1: the border included
//! pairs   [..][pitch][C, 2]                  each pixel interleaved with the next one: VNNI pairs
//! dw[16 filters, tap, C] += dy[16 filters, 32 outputs] × pairs[from tap's offset: 16 rows of 2 outputs]
//! ```
//!
//! Outputs are numbered with the pitch, so that the inputs of a tap for 32 consecutive outputs are
//! consecutive as well, `row * pitch + column` pixels later: tiles of all taps are loaded from the same
//! `pairs`, at different offsets. Outputs in the border have a gradient of zero. With 8 channels a tile row
//! holds two pixels, and so a tile of sums holds two neighbouring taps.
//!
//! Threads divide bands; each has separate sums, which are added in the order of the threads.

use super::panels::ConvProblem;
use super::tiles::amx::{Amx, Registers};
use super::tiles::{MatrixUnit, ROWS, TERMS, TILE, TILE_SUMS};
use crate::native::elementwise::CpuContext;
use crate::native::lanes::transpose;
use crate::native::simd::{Bf16, Isa};
use crate::native::threads::{MAX_THREADS, chunk_range, split, split_lengths};
use std::arch::x86_64::{
    _mm256_loadu_si256, _mm512_castsi256_si512, _mm512_inserti64x4, _mm512_loadu_si512,
    _mm512_permutex2var_epi64, _mm512_permutexvar_epi16, _mm512_setzero_si512, _mm512_storeu_si512,
    _mm512_unpackhi_epi16, _mm512_unpacklo_epi16,
};
use std::ops::Range;

/// The elements of a band's pairs, which stay in a core's L2 cache.
const BAND_ELEMENTS: usize = 1 << 16;

/// The maximum number of tiles of sums: beyond the size of L1, other kernels are as fast.
const MAX_TILES: usize = 64;

/// The weight gradient of one convolution without stride or bias.
#[derive(Clone)]
pub struct TapGradient {
    channels: usize,
    filters: usize,
    kernel: [usize; 2],
    padding: [usize; 2],
    batch: usize,
    input: [usize; 2],
    output: [usize; 2],
    /// The output rows of a band.
    band: usize,
    /// The offsets of the tiles of taps among the pairs, in elements.
    taps: Vec<usize>,
    /// The position of each weight in the gradient and among the sums.
    unpack: Vec<[usize; 2]>,
    amx: Amx,
    cpu: CpuContext,
}

/// A thread's section of scratch.
#[derive(Default)]
struct ThreadScratch<'a> {
    sums: &'a mut [f32],
    memory: &'a mut [f32],
}

/// A range of output rows of an image.
struct Band {
    image: usize,
    rows: Range<usize>,
}

impl TapGradient {
    /// The weight gradient in the layout of the problem; `None` if this kernel does not support it.
    #[must_use]
    pub fn new(problem: ConvProblem<'_>) -> Option<Self> {
        let ConvProblem { conv, batch, input, weights: layout, unit, cpu } = problem;
        let MatrixUnit::Amx(amx) = unit else { return None };
        let output = conv.output_size(input).ok()?;
        let [rows, columns] = conv.kernel;
        let channels = conv.in_channels;
        let is_supported = conv.groups == 1
            && conv.stride == [1, 1]
            && conv.dilation == [1, 1]
            && !conv.bias
            && (channels == ROWS || channels == ROWS / 2)
            && conv.out_channels.is_multiple_of(ROWS)
            && cpu.level.isa() == Isa::Avx512
            && layout.shape == conv.weight_shape();
        if !is_supported {
            return None;
        }
        let pitch = output[1] + columns - 1;
        let band = (BAND_ELEMENTS / (2 * channels * pitch)).saturating_sub(rows - 1).clamp(1, output[0]);
        // A tile of sums holds one tap of 16 channels, or two neighbouring taps of 8.
        let taps_per_tile = ROWS / channels;
        let tiles_per_row = columns.div_ceil(taps_per_tile);
        let tap = |number: usize| {
            (number / tiles_per_row * pitch + number % tiles_per_row * taps_per_tile) * 2 * channels
        };
        let taps: Vec<usize> = (0..rows * tiles_per_row).map(tap).collect();
        let blocks = conv.out_channels / ROWS;
        if taps.len() * blocks > MAX_TILES {
            return None;
        }
        let mut unpack = Vec::with_capacity(conv.out_channels * channels * rows * columns);
        layout.for_each(&layout.shape, |at, from| {
            let (column, row) = (from % columns, from / columns % rows);
            let (channel, filter) = (from / (columns * rows) % channels, from / (columns * rows * channels));
            let tile = filter / ROWS * taps.len() + row * tiles_per_row + column / taps_per_tile;
            let sum = tile * TILE_SUMS + filter % ROWS * ROWS + column % taps_per_tile * channels + channel;
            unpack.push([at, sum]);
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
            unpack,
            amx,
            cpu: cpu.clone(),
        })
    }

    /// The pixels between the starts of two rows, including the border.
    fn pitch(&self) -> usize {
        self.output[1] + self.kernel[1] - 1
    }

    /// The tiles of the outputs of a band.
    fn tiles(&self) -> usize {
        (self.band * self.pitch()).div_ceil(TERMS)
    }

    /// The blocks of filters.
    fn blocks(&self) -> usize {
        self.filters / ROWS
    }

    /// The number of pixels read: up to the windows of the last tile, plus one.
    fn pixels(&self) -> usize {
        self.tiles() * TERMS + self.kernel[0] * self.pitch() + TERMS
    }

    fn sums(&self) -> usize {
        self.blocks() * self.taps.len() * TILE_SUMS
    }

    /// The bf16 elements of a thread's pixels, pairs, gradients, and gradients as tiles.
    fn memory_elements(&self) -> [usize; 4] {
        let (pixels, outputs) = (self.pixels() * self.channels, self.tiles() * TERMS * self.filters);
        // One more register of pixels is read than pairs are written.
        [pixels + TERMS, 2 * pixels, outputs, outputs]
    }

    /// The scratch bytes.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        let memory = self.memory_elements().iter().sum::<usize>() * size_of::<Bf16>();
        self.cpu.team.threads() * (self.sums() * size_of::<f32>() + memory)
    }

    /// Computes the gradient.
    pub fn run(&self, x: &[Bf16], dy: &[Bf16], dw: &mut [f32], scratch: &mut [f32]) {
        let elements = |[height, width]: [usize; 2], channels| self.batch * height * width * channels;
        let expected = [elements(self.input, self.channels), elements(self.output, self.filters)];
        assert_eq!([x.len(), dy.len()], expected, "unexpected map sizes");
        let threads = self.cpu.team.threads();
        let (sums, memory) = scratch.split_at_mut(threads * self.sums());
        let each = self.memory_elements().iter().sum::<usize>() / 2;
        let mut all_sums = split_lengths(&mut sums[..], (0..threads).map(|_| self.sums()));
        let mut all_memory = split_lengths(memory, (0..threads).map(|_| each));
        let mut shares: [ThreadScratch<'_>; MAX_THREADS] = std::array::from_fn(|thread| ThreadScratch {
            sums: std::mem::take(&mut all_sums[thread]),
            memory: std::mem::take(&mut all_memory[thread]),
        });
        let bands = self.output[0].div_ceil(self.band);
        self.cpu.team.run_parts(&mut shares[..threads], &|thread, share| {
            share.sums.fill(0.0);
            // Borders stay zero, because they are never written.
            share.memory.fill(0.0);
            let tiles = self.amx.registers();
            for number in split(self.batch * bands, threads, thread) {
                let rows = chunk_range(number % bands, self.band, self.output[0]);
                let band = Band { image: number / bands, rows };
                // SAFETY: the level proves AVX-512 (`new`).
                unsafe { self.add_band(&band, [x, dy], &tiles, share) };
            }
        });
        let (first, others) = sums.split_at_mut(self.sums());
        for other in others.chunks_exact(self.sums()) {
            // In the order of the threads.
            first.iter_mut().zip(other).for_each(|(sum, other)| *sum += other);
        }
        if dw.len() > self.unpack.len() {
            // Zeroes the padding of blocks, which sums over gradients read.
            dw.fill(0.0);
        }
        for &[at, sum] in &self.unpack {
            dw[at] = first[sum];
        }
    }

    /// Adds a band's products to the thread's sums.
    ///
    /// # Safety
    /// AVX-512 must be available.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn add_band(
        &self,
        band: &Band,
        [x, dy]: [&[Bf16]; 2],
        tiles: &Registers,
        share: &mut ThreadScratch<'_>,
    ) {
        let [pixels, pairs, gradients, _] = self.memory_elements();
        let memory: &mut [Bf16] = bytemuck::cast_slice_mut(share.memory);
        let (pixels, memory) = memory.split_at_mut(pixels);
        let (pairs, memory) = memory.split_at_mut(pairs);
        let (gradients, transposed) = memory.split_at_mut(gradients);
        self.copy_input(band, x, pixels);
        self.copy_gradient(band, dy, gradients);
        // SAFETY: upheld by the caller, here and below.
        unsafe { interleave_pairs(pixels, pairs, self.channels) };
        let count = self.tiles();
        for (block, (a, sums)) in transposed
            .chunks_exact_mut(count * TILE)
            .zip(share.sums.chunks_exact_mut(self.taps.len() * TILE_SUMS))
            .enumerate()
        {
            for (tile, a) in a.chunks_exact_mut(TILE).enumerate() {
                let from = &gradients[tile * TERMS * self.filters + block * ROWS..];
                unsafe { transpose_tile(from, self.filters, a) };
            }
            tiles.multiply_add_taps(a, pairs, &self.taps, self.channels, count, sums);
        }
    }

    /// Copies the input rows of a band, at the pitch.
    fn copy_input(&self, band: &Band, x: &[Bf16], pixels: &mut [Bf16]) {
        let (channels, [height, width]) = (self.channels, self.input);
        let input_rows = band.rows.start..band.rows.end + self.kernel[0] - 1;
        for (row, to) in input_rows.zip(pixels.chunks_exact_mut(self.pitch() * channels)) {
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

    /// Copies a band's rows of `dy`, at the pitch.
    fn copy_gradient(&self, band: &Band, dy: &[Bf16], gradients: &mut [Bf16]) {
        let (filters, [height, width]) = (self.filters, self.output);
        let mut rows = gradients.chunks_exact_mut(self.pitch() * filters);
        for row in band.rows.clone() {
            let at = (band.image * height + row) * width * filters;
            if let Some(to) = rows.next() {
                to[..width * filters].copy_from_slice(&dy[at..at + width * filters]);
            }
        }
        // The last band may be shorter.
        rows.take(self.band - band.rows.len()).for_each(|row| row.fill(Bf16(0)));
    }
}

/// Interleaves every pixel with the next one, channel by channel. One register beyond the pixels of `pairs`
/// is read.
///
/// # Safety
/// AVX-512 must be available.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn interleave_pairs(pixels: &[Bf16], pairs: &mut [Bf16], channels: usize) {
    let order = |first: u64| {
        let lanes: [u64; 8] =
            [first, first + 1, first + 8, first + 9, first + 2, first + 3, first + 10, first + 11];
        // SAFETY: 64 bytes.
        unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
    };
    let [low, high] = [order(0), order(4)];
    for (at, to) in pairs.chunks_exact_mut(2 * TERMS).enumerate() {
        let current = &pixels[at * TERMS..][..TERMS];
        let next = &pixels[at * TERMS + channels..][..TERMS];
        // SAFETY: 64 bytes are read of either, 128 are written.
        unsafe {
            let (current, next) =
                (_mm512_loadu_si512(current.as_ptr().cast()), _mm512_loadu_si512(next.as_ptr().cast()));
            let (first, second) =
                (_mm512_unpacklo_epi16(current, next), _mm512_unpackhi_epi16(current, next));
            let to = to.as_mut_ptr();
            _mm512_storeu_si512(to.cast(), _mm512_permutex2var_epi64(first, low, second));
            _mm512_storeu_si512(to.add(TERMS).cast(), _mm512_permutex2var_epi64(first, high, second));
        }
    }
}

/// Transposes sixteen filters of 32 pixels, which are `filters` elements apart, into a tile with a row per
/// filter.
///
/// # Safety
/// AVX-512 must be available.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn transpose_tile(from: &[Bf16], filters: usize, tile: &mut [Bf16]) {
    let interleave: [u16; TERMS] = std::array::from_fn(|i| (i / 2 + i % 2 * ROWS) as u16);
    // SAFETY: 64 bytes.
    let interleave = unsafe { _mm512_loadu_si512(interleave.as_ptr().cast()) };
    assert!(from.len() >= (TERMS - 1) * filters + ROWS, "too few pixels for a tile");
    let mut rows = [_mm512_setzero_si512(); ROWS];
    for (pair, row) in rows.iter_mut().enumerate() {
        // SAFETY: 32 bytes of two pixels, which the assertion guarantees.
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
mod tests;
