//! Weight gradients of few input channels, such as of images: lanes are neighbouring weights of a filter.
//!
//! ```text
//! dw[filter, window] = Σ_outputs  dy[filter] · x[window]        window = kh · kw · C weights, 16 a register
//! ```
//!
//! In `[N, H, W, C]` a row of the window, `kw · C` numbers, is contiguous. The input of a band is rearranged
//! so that whole windows are contiguous:
//!
//! ```text
//! windows[column][input row][kw · C]         output (row, column): starts at input row · stride
//! ```
//!
//! Each register of a window is multiplied by one broadcast number of `dy` per filter; the sums of a strip,
//! up to six registers by four filters or three by eight, stay in registers for all outputs of a block. With
//! bf16 a lane holds two neighbouring outputs ([`arithmetic`]), for VDPBF16PS.
//!
//! Bound by the multiply-adds: per `dy` value and strip one broadcast for up to six of them. Lanes beyond the
//! last weight are wasted, 8 % for 7×7×3. A block's windows and gradients stay in L1 and L2 and are read once
//! per strip and few filters. General kernels reduce over input channels instead, and would use 3 of 16
//! lanes.
//!
//! Threads divide bands of rows; each has separate sums, which are added in the order of the threads.
//!
//! Compared with oneDNN: the gradient of ResNet-18's first layer takes 10.7 ms instead of 12.8 in bf16, 19.9
//! instead of 25.8 in `f32` (docs/benchmarks/kernels.md).

mod arithmetic;
mod block;
mod lanes;

pub use arithmetic::WindowArithmetic;

use super::panels::ConvProblem;
use crate::native::elementwise::CpuContext;
use crate::native::relayout::Relayout;
use crate::native::simd::Isa;
use crate::native::threads::{MAX_THREADS, chunk_range, split, split_lengths};
use std::ops::Range;
use stratus_engine::Layout;

const LANES: usize = 16;

/// The maximum registers of a window in a strip. With many registers, there are half as many filters: the
/// sums take three quarters of the 32 registers.
const MAX_STRIP_REGISTERS: usize = 6;
/// The maximum filters of a strip.
const MAX_STRIP_FILTERS: usize = 8;

/// With this number of input channels or more, other kernels fill their registers.
const MAX_CHANNELS: usize = LANES;

/// The maximum number of registers of a window.
const MAX_REGISTERS: usize = 32;

/// The approximate number of output rows of a band: rows that two bands read are rearranged twice.
const BAND_ROWS: usize = 14;

/// The approximate bytes of windows and gradients of a block of several columns, the size of L1.
const BLOCK_BYTES: usize = 48 << 10;

/// The gradients of the weights and the bias of one convolution.
#[derive(Clone)]
pub struct WindowGradient<U> {
    channels: usize,
    filters: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    batch: usize,
    input: [usize; 2],
    output: [usize; 2],
    /// The registers of a strip.
    strip_registers: usize,
    /// The strips of a window.
    strips: usize,
    /// The output rows of a band.
    rows: usize,
    /// The groups of output columns in a block ([`WindowArithmetic::PIXELS_PER_LANE`] columns each).
    columns: usize,
    /// The copy from the sums to the layout of the gradient.
    unpack: Relayout,
    unit: U,
    cpu: CpuContext,
}

/// A thread's section of scratch.
pub struct ThreadScratch<'a> {
    /// `[filters][window]`.
    sums: &'a mut [f32],
    /// `[filters]`; empty if the bias gradient is not needed.
    bias: &'a mut [f32],
    /// The input rows of a band, padded.
    image: &'a mut [f32],
    /// `[group of columns][input row][kw · C]`.
    windows: &'a mut [f32],
    /// `[group of columns][output row][filters]`.
    gradients: &'a mut [f32],
}

/// A range of output rows of an image.
pub struct Band {
    image: usize,
    rows: Range<usize>,
}

impl<U: WindowArithmetic> WindowGradient<U> {
    /// The weight gradient in the layout of the problem; `None` if this kernel does not support it.
    #[must_use]
    pub fn new(problem: ConvProblem<'_, U>) -> Option<Self> {
        let ConvProblem { conv, batch, input, weights: layout, unit, cpu } = problem;
        let output = conv.output_size(input).ok()?;
        let window = conv.in_channels.checked_mul(conv.kernel[0])?.checked_mul(conv.kernel[1])?;
        let registers = window.div_ceil(LANES);
        let is_supported = conv.groups == 1
            && conv.dilation == [1, 1]
            && conv.in_channels < MAX_CHANNELS
            && registers <= MAX_REGISTERS
            && conv.out_channels.is_multiple_of(MAX_STRIP_FILTERS)
            && cpu.level.isa() == Isa::Avx512
            && layout.shape == conv.weight_shape();
        if !is_supported || batch == 0 || output.contains(&0) {
            return None;
        }
        let strips = registers.div_ceil(MAX_STRIP_REGISTERS);
        let strip_registers = registers.div_ceil(strips);
        let window_row = conv.kernel[1] * conv.in_channels;
        let sums = Layout {
            tag: "sums".to_owned(),
            shape: layout.shape.clone(),
            padded: layout.shape.clone(),
            strides: vec![strips * strip_registers * LANES, 1, window_row, conv.in_channels],
            blocks: Vec::new(),
        };
        let rows = output[0].div_ceil(output[0].div_ceil(BAND_ROWS));
        let mut gradient = Self {
            channels: conv.in_channels,
            filters: conv.out_channels,
            kernel: conv.kernel,
            stride: conv.stride,
            padding: conv.padding_before,
            batch,
            input,
            output,
            strip_registers,
            strips,
            rows,
            columns: 1,
            unpack: Relayout::new(&sums, layout, cpu)?,
            unit,
            cpu: cpu.clone(),
        };
        let column_bytes =
            (gradient.input_rows(rows) * gradient.window_row() + rows * gradient.filters) * size_of::<f32>();
        gradient.columns = (BLOCK_BYTES / column_bytes).clamp(1, gradient.column_groups());
        Some(gradient)
    }

    /// The filters of a strip.
    fn filters_at_once(&self) -> usize {
        if self.strip_registers <= MAX_STRIP_REGISTERS / 2 {
            MAX_STRIP_FILTERS
        } else {
            MAX_STRIP_FILTERS / 2
        }
    }

    /// The weights of a row of the window.
    fn window_row(&self) -> usize {
        self.kernel[1] * self.channels
    }

    /// The input rows of `rows` output rows.
    fn input_rows(&self, rows: usize) -> usize {
        (rows - 1) * self.stride[0] + self.kernel[0]
    }

    /// The number of groups of output columns.
    fn column_groups(&self) -> usize {
        self.output[1].div_ceil(U::PIXELS_PER_LANE)
    }

    /// The elements of a padded input row, up to the last window.
    fn pitch(&self) -> usize {
        ((self.column_groups() * U::PIXELS_PER_LANE - 1) * self.stride[1] + self.kernel[1]) * self.channels
    }

    /// The sums of a filter, including those beyond its last weight.
    fn window_sums(&self) -> usize {
        self.strips * self.strip_registers * LANES
    }

    /// The `f32` elements of a thread's scratch, in the order of [`ThreadScratch`].
    fn scratch_floats(&self) -> [usize; 5] {
        let input_rows = self.input_rows(self.rows);
        // The last register of the last window extends beyond it.
        let windows = self.columns * input_rows * self.window_row() + self.window_sums();
        let image = (input_rows * self.pitch()).div_ceil(U::PIXELS_PER_LANE);
        [
            self.filters * self.window_sums(),
            self.filters,
            image,
            windows,
            self.columns * self.rows * self.filters,
        ]
    }

    /// The scratch bytes.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.cpu.team.threads() * self.scratch_floats().iter().sum::<usize>() * size_of::<f32>()
    }

    /// Computes `dw` and `db`; `db` may be empty.
    ///
    /// # Panics
    /// If sizes are not as expected.
    pub fn run(
        &self,
        x: &[U::Element],
        dy: &[U::Element],
        dw: &mut [f32],
        db: &mut [f32],
        scratch: &mut [f32],
    ) {
        let elements = |[height, width]: [usize; 2], channels| self.batch * height * width * channels;
        let expected = [elements(self.input, self.channels), elements(self.output, self.filters)];
        assert_eq!([x.len(), dy.len()], expected, "unexpected map sizes");
        assert!(db.is_empty() || db.len() == self.filters, "unexpected size of the bias gradient");
        let threads = self.cpu.team.threads();
        let thread_floats = self.scratch_floats().iter().sum::<usize>();
        let bands = self.output[0].div_ceil(self.rows);
        let mut shares = split_lengths(scratch, (0..threads).map(|_| thread_floats));
        let band = |number: usize| Band {
            image: number / bands,
            rows: chunk_range(number % bands, self.rows, self.output[0]),
        };
        self.cpu.team.run_parts(&mut shares[..threads], &|thread, scratch| {
            let mut share = self.split_scratch(scratch);
            share.sums.fill(0.0);
            share.bias.fill(0.0);
            if db.is_empty() {
                share.bias = &mut [];
            }
            // Elements beyond the last window are multiplied too, so they must be finite.
            share.windows.fill(0.0);
            let numbers = split(self.batch * bands, threads, thread);
            for number in numbers.clone() {
                let next = (number + 1 < numbers.end).then(|| band(number + 1));
                self.unit.add_band(self, &band(number), next.as_ref(), [x, dy], &mut share);
            }
        });
        self.reduce(&mut shares[..threads], dw, db);
    }

    fn split_scratch<'a>(&self, scratch: &'a mut [f32]) -> ThreadScratch<'a> {
        let [sums, bias, image, windows, gradients] = split_array(scratch, self.scratch_floats());
        ThreadScratch { sums, bias, image, windows, gradients }
    }

    /// Adds the threads' sums in their order, and stores them.
    fn reduce(&self, shares: &mut [&mut [f32]], dw: &mut [f32], db: &mut [f32]) {
        let [sum_floats, bias_floats, ..] = self.scratch_floats();
        if let Some((first, others)) = shares.split_first_mut() {
            for other in others {
                let both = first[..sum_floats + bias_floats].iter_mut().zip(&other[..]);
                both.for_each(|(sum, other)| *sum += other);
            }
            let (sums, rest) = first.split_at(sum_floats);
            self.unpack.run(sums, dw);
            db.copy_from_slice(&rest[..db.len()]);
        }
    }

    /// Copies the input rows of a band, with zeros as padding.
    fn copy_padded(&self, band: &Band, x: &[U::Element], image: &mut [U::Element]) {
        let zero = bytemuck::Zeroable::zeroed();
        let [height, width] = [self.input[0], self.input[1] * self.channels];
        let before = (self.padding[1] * self.channels).min(self.pitch());
        let count = width.min(self.pitch() - before);
        for (row, to) in
            image.chunks_exact_mut(self.pitch()).take(self.input_rows(band.rows.len())).enumerate()
        {
            let row = (band.rows.start * self.stride[0] + row).checked_sub(self.padding[0]);
            match row.filter(|&row| row < height) {
                Some(row) => {
                    let from = &x[(band.image * height + row) * width..][..count];
                    to[..before].fill(zero);
                    to[before..][..count].copy_from_slice(from);
                    to[before + count..].fill(zero);
                }
                None => to.fill(zero),
            }
        }
    }
}

fn split_array<const N: usize>(scratch: &mut [f32], lengths: [usize; N]) -> [&mut [f32]; N] {
    const { assert!(N <= MAX_THREADS) }
    let mut pieces = split_lengths(scratch, lengths.into_iter()).into_iter();
    std::array::from_fn(|_| pieces.next().unwrap_or_default())
}

#[cfg(test)]
mod tests;
