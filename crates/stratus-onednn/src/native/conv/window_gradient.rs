//! The gradient of the weights of a convolution of few channels, such as of images: the lanes of a register are neighbouring weights of a filter.
//!
//! A filter's weights are counted as the numbers of its window lie in a map of channels last: row by row, column by column, channel by channel. For
//! one pixel of the output the numbers of a row of the window are neighbours, and so are those of all rows, once rows of the input are laid out
//! anew, per column of the output what it sees of each row, one behind the other. The window of the output a row further down then begins `stride`
//! such stretches further on. Each register of it is multiplied by one number of the output's gradient at a time, which is broadcast, for several
//! filters, whose sums stay in registers while the outputs of a block pass by.
//!
//! In bf16 a lane holds two neighbouring pixels of the output, and what they see ([`lanes`]).
//!
//! Floor: the multiplications and additions. Lanes behind the last weight are computed in vain: 8 % of them for 7×7 windows of three channels. A block's
//! numbers stay in the first two caches, and are read once for every few filters.

mod block;
mod lanes;

pub use lanes::WindowArithmetic;

use super::panels::ConvProblem;
use crate::native::elementwise::CpuContext;
use crate::native::relayout::Relayout;
use crate::native::simd::Isa;
use crate::native::threads::{MAX_THREADS, cut, piece, split};
use std::ops::Range;
use stratus_engine::Layout;

/// Lanes of a register.
const LANES: usize = 16;

/// The most registers of a window that are multiplied at a time, and of how many filters: their sums fill three quarters of the registers.
const WIDEST: usize = 6;
const TALLEST: usize = 8;

/// The most channels of the input: more fill registers by themselves.
const MOST_CHANNELS: usize = LANES;

/// The most registers of a window.
const MOST_REGISTERS: usize = 32;

/// Rows of the output that a band has, about: each band lays out anew what the one before it saw of the same rows.
const BAND: usize = 14;

/// Bytes that a block's windows and gradients may have together, if it has more than one column: about as many as the first cache.
const BLOCK: usize = 48 << 10;

/// The gradient of the weights of one convolution, and of its bias.
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
    /// Registers of a window that are multiplied at a time, and how often that is done.
    wide: usize,
    strips: usize,
    /// Rows of the output in a band.
    rows: usize,
    /// Columns of the output in a block, in groups of as many as a lane holds.
    columns: usize,
    /// From the sums to the gradient.
    gather: Relayout,
    unit: U,
    cpu: CpuContext,
}

/// What a thread works with.
pub struct Share<'a> {
    /// Per filter, those of the window.
    sums: &'a mut [f32],
    /// Per filter; none where no bias is wanted.
    bias: &'a mut [f32],
    /// The rows of the input that a band sees, with what is padding.
    image: &'a mut [f32],
    /// Per group of columns and row of the input, what the group sees of it.
    windows: &'a mut [f32],
    /// Per group of columns and row of the output, the filters' gradients.
    gradients: &'a mut [f32],
}

/// Rows of the output of an image.
pub struct Band {
    image: usize,
    rows: Range<usize>,
}

impl<U: WindowArithmetic> WindowGradient<U> {
    /// The gradient of the weights, to lie as the problem says; `None` where another kernel has to make it.
    #[must_use]
    pub fn new(problem: ConvProblem<'_, U>) -> Option<Self> {
        let ConvProblem { conv, batch, input, weights: takes, unit, cpu } = problem;
        let output = conv.output_size(input).ok()?;
        let window = conv.in_channels.checked_mul(conv.kernel[0])?.checked_mul(conv.kernel[1])?;
        let registers = window.div_ceil(LANES);
        let suits = conv.groups == 1
            && conv.dilation == [1, 1]
            && conv.in_channels < MOST_CHANNELS
            && registers <= MOST_REGISTERS
            && conv.out_channels.is_multiple_of(TALLEST)
            && cpu.level.isa() == Isa::Avx512
            && takes.shape == conv.weight_shape();
        if !suits || batch == 0 || output.contains(&0) {
            return None;
        }
        let strips = registers.div_ceil(WIDEST);
        let wide = registers.div_ceil(strips);
        let stretch = conv.kernel[1] * conv.in_channels;
        let sums = Layout {
            tag: "sums".to_owned(),
            shape: takes.shape.clone(),
            padded: takes.shape.clone(),
            strides: vec![strips * wide * LANES, 1, stretch, conv.in_channels],
            blocks: Vec::new(),
        };
        let rows = output[0].div_ceil(output[0].div_ceil(BAND));
        let mut gradient = Self {
            channels: conv.in_channels,
            filters: conv.out_channels,
            kernel: conv.kernel,
            stride: conv.stride,
            padding: conv.padding_before,
            batch,
            input,
            output,
            wide,
            strips,
            rows,
            columns: 1,
            gather: Relayout::new(&sums, takes, cpu)?,
            unit,
            cpu: cpu.clone(),
        };
        let of_column =
            (gradient.seen(rows) * gradient.stretch() + rows * gradient.filters) * size_of::<f32>();
        gradient.columns = (BLOCK / of_column).clamp(1, gradient.groups());
        Some(gradient)
    }

    /// Filters that are multiplied at a time: of wide windows half as many.
    fn tall(&self) -> usize {
        if self.wide <= WIDEST / 2 { TALLEST } else { TALLEST / 2 }
    }

    /// Numbers of a row of the window.
    fn stretch(&self) -> usize {
        self.kernel[1] * self.channels
    }

    /// Rows of the input that so many of the output see.
    fn seen(&self, rows: usize) -> usize {
        (rows - 1) * self.stride[0] + self.kernel[0]
    }

    /// Groups of columns of the output.
    fn groups(&self) -> usize {
        self.output[1].div_ceil(U::GROUP)
    }

    /// Numbers of a padded row of the input, as far as windows reach.
    fn pitch(&self) -> usize {
        ((self.groups() * U::GROUP - 1) * self.stride[1] + self.kernel[1]) * self.channels
    }

    /// Sums of a filter, those behind its last weight included.
    fn sums(&self) -> usize {
        self.strips * self.wide * LANES
    }

    /// `f32` elements of what a thread works with, in the order of [`Share`].
    fn parts(&self) -> [usize; 5] {
        let seen = self.seen(self.rows);
        // Registers of the last window reach behind it.
        let windows = self.columns * seen * self.stretch() + self.sums();
        let image = (seen * self.pitch()).div_ceil(U::GROUP);
        [self.filters * self.sums(), self.filters, image, windows, self.columns * self.rows * self.filters]
    }

    /// Bytes of scratch.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.cpu.team.threads() * self.parts().iter().sum::<usize>() * size_of::<f32>()
    }

    /// Makes the gradients of weights and bias; `db` is empty where there is no bias.
    ///
    /// # Panics
    /// Where a map or a gradient has another size.
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
        assert_eq!([x.len(), dy.len()], expected, "maps of another size");
        assert!(db.is_empty() || db.len() == self.filters, "a gradient of the bias of another size");
        let threads = self.cpu.team.threads();
        let of_thread = self.parts().iter().sum::<usize>();
        let bands = self.output[0].div_ceil(self.rows);
        let mut shares = cut(scratch, (0..threads).map(|_| of_thread));
        let band = |number: usize| Band {
            image: number / bands,
            rows: piece(number % bands, self.rows, self.output[0]),
        };
        self.cpu.team.run_parts(&mut shares[..threads], &|thread, scratch| {
            let mut share = self.share(scratch);
            share.sums.fill(0.0);
            share.bias.fill(0.0);
            if db.is_empty() {
                share.bias = &mut [];
            }
            // What lies behind the last window is multiplied too.
            share.windows.fill(0.0);
            let numbers = split(self.batch * bands, threads, thread);
            for number in numbers.clone() {
                let next = (number + 1 < numbers.end).then(|| band(number + 1));
                self.unit.add_band(self, &band(number), next.as_ref(), [x, dy], &mut share);
            }
        });
        self.finish(&mut shares[..threads], dw, db);
    }

    /// Cuts a thread's scratch.
    fn share<'a>(&self, scratch: &'a mut [f32]) -> Share<'a> {
        let [sums, bias, image, windows, gradients] = cut_in(scratch, self.parts());
        Share { sums, bias, image, windows, gradients }
    }

    /// Adds up what threads have, in their order, and puts it where it goes.
    fn finish(&self, shares: &mut [&mut [f32]], dw: &mut [f32], db: &mut [f32]) {
        let [of_sums, of_bias, ..] = self.parts();
        if let Some((first, others)) = shares.split_first_mut() {
            for other in others {
                let both = first[..of_sums + of_bias].iter_mut().zip(&other[..]);
                both.for_each(|(sum, other)| *sum += other);
            }
            let (sums, rest) = first.split_at(of_sums);
            self.gather.run(sums, dw);
            db.copy_from_slice(&rest[..db.len()]);
        }
    }

    /// Copies the rows of the input that a band sees, with zeros for padding.
    fn pad(&self, band: &Band, x: &[U::Element], image: &mut [U::Element]) {
        let zero = bytemuck::Zeroable::zeroed();
        let [height, width] = [self.input[0], self.input[1] * self.channels];
        let before = (self.padding[1] * self.channels).min(self.pitch());
        let count = width.min(self.pitch() - before);
        for (row, to) in image.chunks_exact_mut(self.pitch()).take(self.seen(band.rows.len())).enumerate() {
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

/// Cuts a slice into pieces of these lengths.
fn cut_in<const N: usize>(scratch: &mut [f32], lengths: [usize; N]) -> [&mut [f32]; N] {
    const { assert!(N <= MAX_THREADS) }
    let mut pieces = cut(scratch, lengths.into_iter()).into_iter();
    std::array::from_fn(|_| pieces.next().unwrap_or_default())
}

#[cfg(test)]
#[path = "window_gradient_tests.rs"]
mod tests;
