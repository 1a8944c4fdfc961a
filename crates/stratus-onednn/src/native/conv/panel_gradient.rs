//! The gradient of a convolution's weights on tiles of bf16 or `f32`.
//!
//! The gradient of one tap is a product of matrices, output's gradient by input, whose terms are the pixels of all images. Maps lie channels last;
//! tiles want pixels next to each other. So both maps are brought into panels, a chunk at a time that stays in the second cache, and every tap of
//! every block of channels is then a walk along two panels:
//!
//! - the terms of a chunk are its output pixels, row by row, and within a row image by image. A tap one row further down then begins one stretch
//!   further on, whatever the height of a map, and rows that would lie on the padding are left out;
//! - rows that a stride skips lie in panels of their own, one per remainder;
//! - columns differ by tap: the panels of the input are made once for each.

mod multiply;
mod pack;

pub use multiply::PanelArithmetic;

use super::panels::ConvProblem;
use super::taps::Axis;
use super::tiles::{BLOCK, ROWS, STEPS, SUMS};
use crate::native::elementwise::CpuContext;
use crate::native::relayout::Relayout;
use crate::native::simd::{Isa, prefetch_l2};
use crate::native::threads::{MAX_THREADS, cut, groups, piece, split};
use std::ops::Range;
use stratus_engine::Layout;
use stratus_graph::ops::Conv2d;

/// The rows of a panel that a chunk should have, few or many. More of them let sums stay longer in registers, fewer let panels stay in the caches.
const CHUNK_ROWS: [usize; 2] = [128, 256];

/// The most bytes of a chunk's panels for which it has many rows: they share a core's second cache with what is asked for ahead.
const MOST_BYTES: usize = 3 << 18;

/// The most rows of a kernel.
const MOST_ROWS: usize = 16;

/// Sums of this many bytes stay in a core's second cache: threads may then each have their own.
const SMALL: usize = 1 << 20;

/// The gradient of the weights of one convolution.
#[derive(Clone)]
pub struct PanelGradient<U> {
    channels: usize,
    filters: usize,
    batch: usize,
    /// Rows and columns of the output, and what they see.
    axes: [Axis; 2],
    /// Images and rows of a chunk.
    chunk: [usize; 2],
    /// Groups that threads form: each of the first kind makes the gradients of some filters, each of the second those of some chunks.
    groups: [usize; 2],
    /// From the sums to the gradient.
    gather: Relayout,
    unit: U,
    cpu: CpuContext,
}

/// Part of the batch.
#[derive(Clone)]
pub struct Chunk {
    images: Range<usize>,
    rows: Range<usize>,
    /// Terms: output pixels, rows of odd maps with one that is zero.
    terms: usize,
}

/// The terms of one tap.
#[derive(Clone, Copy, Default)]
struct Walk {
    /// Where they begin in a panel of the output's gradient, in elements.
    from: usize,
    /// Where they begin in the first panel of the input, in elements.
    start: usize,
    /// Elements from one panel of the input to the next.
    panel: usize,
    /// Tiles of them.
    count: usize,
}

/// What the next chunk reads of the maps, of which a part is asked for with every product.
struct Ahead<'a, E> {
    maps: [&'a [E]; 2],
}

impl<'a, E> Ahead<'a, E> {
    fn new(maps: Option<[&'a [E]; 2]>) -> Self {
        Self { maps: maps.unwrap_or_default() }
    }

    /// As much as a product of so many tiles may ask for, a line of a cache for each of its steps.
    fn take(&mut self, tiles: usize) -> &'a [E] {
        const CACHE_LINE: usize = 64;
        let [first, second] = &mut self.maps;
        let from = if first.is_empty() { second } else { first };
        let (part, rest) = from.split_at((tiles * STEPS * CACHE_LINE / size_of::<E>()).min(from.len()));
        *from = rest;
        part
    }
}

/// What a thread works with.
#[derive(Default)]
struct Share<'a> {
    sums: &'a mut [f32],
    bias: &'a mut [f32],
    dy: &'a mut [f32],
    x: &'a mut [f32],
}

impl<U: PanelArithmetic> PanelGradient<U> {
    /// The gradient of the weights, to lie as the problem says; `None` where another kernel has to make it.
    #[must_use]
    pub fn new(problem: ConvProblem<'_, U>) -> Option<Self> {
        let ConvProblem { conv, batch, input, weights: takes, unit, cpu } = problem;
        conv.output_size(input).ok()?;
        let (batch, input) =
            if sees_one_pixel(conv) { in_whole_tiles::<U>(batch, input) } else { (batch, input) };
        let output = conv.output_size(input).ok()?;
        let suits = conv.groups == 1
            && conv.in_channels >= ROWS
            && conv.out_channels >= ROWS
            && cpu.level.isa() == Isa::Avx512
            && conv.kernel[0] <= MOST_ROWS
            && takes.shape == conv.weight_shape();
        if !suits || batch == 0 {
            return None;
        }
        let [height, width] = [output[0], output[1].next_multiple_of(U::GROUP)];
        let blocks = [conv.out_channels, conv.in_channels].map(|channels| channels.div_ceil(BLOCK));
        let axes = [0, 1].map(|axis| Axis::forward(conv, axis, [input[axis], output[axis]]));
        let [few, many] = CHUNK_ROWS;
        // A row of all panels; of the input's there is one for each remainder of a stride.
        let row = 2 * (blocks[0] + blocks[1] * axes[0].classes().count()) * size_of::<[f32; ROWS]>();
        // Registers of tiles are read and written more slowly than others; a single tap gains nothing from rows that others see too.
        let long = unit.takes_filters_in_rows() || conv.kernel != [1; 2] && many * row <= MOST_BYTES;
        let chunk_terms = U::GROUP * if long { many } else { few };
        // Whole tiles of terms between one row and the next, where that is possible.
        let whole = |length: usize, wanted: usize| {
            let even = U::TERMS / gcd(length, U::TERMS);
            if wanted > even { wanted / even * even } else { wanted.max(1) }
        };
        let chunk = if height * width >= chunk_terms {
            [1, whole(width, chunk_terms / width).min(height)]
        } else {
            [whole(width, chunk_terms / (height * width)).min(batch), height]
        };
        let [rows, columns] = conv.kernel;
        let sums = Layout {
            tag: "sums".to_owned(),
            shape: takes.shape.clone(),
            padded: vec![blocks[0] * BLOCK, blocks[1] * BLOCK, rows, columns],
            strides: vec![columns * blocks[1] * rows * SUMS, rows * SUMS, SUMS, blocks[1] * rows * SUMS],
            blocks: vec![(0, 2), (1, 2), (0, ROWS), (1, ROWS)],
        };
        let small = sums.elements() * size_of::<f32>() <= SMALL;
        Some(Self {
            channels: conv.in_channels,
            filters: conv.out_channels,
            batch,
            axes,
            chunk,
            groups: groups(cpu.team.threads(), if small { 1 } else { blocks[0] }),
            gather: Relayout::new(&sums, takes, cpu)?,
            unit,
            cpu: cpu.clone(),
        })
    }

    /// Blocks of filters, blocks of channels.
    fn blocks(&self) -> [usize; 2] {
        [self.filters, self.channels].map(|channels| channels.div_ceil(BLOCK))
    }

    /// Columns of a row of terms: pairs are whole.
    fn columns(&self) -> usize {
        self.axes[1].count.next_multiple_of(U::GROUP)
    }

    /// Elements of the sums of one block of filters.
    fn sums_of_block(&self) -> usize {
        self.axes[0].taps.len() * self.axes[1].taps.len() * self.blocks()[1] * SUMS
    }

    /// Rows of a panel of the input, of the taps that leave a remainder, and elements from panel to panel.
    fn input_panel(&self, [images, rows]: [usize; 2], reach: usize) -> [usize; 2] {
        let rows = (rows + reach) * images * self.columns() / U::GROUP;
        // The last tile of a stretch may end behind it.
        [rows, (rows + ROWS) * U::TERMS + U::GAP]
    }

    /// Elements from panel to panel of the output's gradient.
    fn output_panel(terms: usize) -> usize {
        terms.div_ceil(U::TERMS) * U::TILE + U::GAP
    }

    /// The number of chunks of images, and of rows.
    fn chunks(&self) -> [usize; 2] {
        [self.batch.div_ceil(self.chunk[0]), self.axes[0].count.div_ceil(self.chunk[1])]
    }

    fn chunk(&self, number: usize) -> Chunk {
        let [_, bands] = self.chunks();
        let images = piece(number / bands, self.chunk[0], self.batch);
        let rows = piece(number % bands, self.chunk[1], self.axes[0].count);
        let terms = images.len() * rows.len() * self.columns();
        Chunk { images, rows, terms }
    }

    /// `f32` elements of a thread's scratch: sums of bias, panels of the output's gradient, panels of the input.
    fn scratch(&self, blocks: usize) -> [usize; 3] {
        let [images, rows] = self.chunk;
        let dy = 2 * blocks * Self::output_panel(images * rows * self.columns());
        let (x, _) = self.input_panels(self.chunk, self.axes[0].step);
        [blocks * BLOCK * ROWS, dy / U::GROUP, x / U::GROUP]
    }

    /// The blocks of filters of the threads of a group.
    fn filters_of(&self, thread: usize) -> Range<usize> {
        split(self.blocks()[0], self.groups[0], thread % self.groups[0])
    }

    fn threads(&self) -> impl Iterator<Item = usize> {
        0..self.groups[0] * self.groups[1]
    }

    /// Bytes of scratch.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        let of = |thread: usize| {
            let blocks = self.filters_of(thread).len();
            blocks * self.sums_of_block() + self.scratch(blocks).iter().sum::<usize>()
        };
        self.threads().map(of).sum::<usize>() * size_of::<f32>()
    }

    /// Makes the gradients of weights and bias; `db` is empty where there is no bias.
    pub fn run(
        &self,
        x: &[U::Element],
        dy: &[U::Element],
        dw: &mut [f32],
        db: &mut [f32],
        scratch: &mut [f32],
    ) {
        let [rows, columns] = &self.axes;
        let expected = [
            self.batch * rows.inputs * columns.inputs * self.channels,
            self.batch * rows.count * columns.count * self.filters,
        ];
        assert_eq!([x.len(), dy.len()], expected, "maps of another size");
        let all = self.blocks()[0] * self.sums_of_block();
        let (sums, rest) = scratch.split_at_mut(all * self.groups[1]);
        self.add_up(x, dy, !db.is_empty(), sums, rest);
        let (first, others) = sums.split_at_mut(all);
        for other in others.chunks_exact(all) {
            self.cpu.accumulate(other, first);
        }
        self.gather.run(first, dw);
        self.bias(rest, db);
    }

    /// Cuts scratch into what threads work with.
    fn cut<'a>(&self, sums: &'a mut [f32], scratch: &'a mut [f32]) -> [Share<'a>; MAX_THREADS] {
        let blocks = |thread: usize| self.filters_of(thread).len();
        let sums = cut(sums, self.threads().map(|thread| blocks(thread) * self.sums_of_block()));
        let mut shares = std::array::from_fn(|_| Share::default());
        for ((thread, share), (sums, rest)) in
            self.threads().zip(&mut shares).zip(sums.into_iter().zip(self.cut_rest(scratch)))
        {
            let [bias, dy, _] = self.scratch(blocks(thread));
            let (bias, rest) = rest.split_at_mut(bias);
            let (dy, x) = rest.split_at_mut(dy);
            *share = Share { sums, bias, dy, x };
        }
        shares
    }

    /// Cuts what of scratch is not sums.
    fn cut_rest<'a>(&self, scratch: &'a mut [f32]) -> [&'a mut [f32]; MAX_THREADS] {
        let of = |thread: usize| self.scratch(self.filters_of(thread).len()).iter().sum();
        cut(scratch, self.threads().map(of))
    }

    fn add_up(&self, x: &[U::Element], dy: &[U::Element], bias: bool, sums: &mut [f32], scratch: &mut [f32]) {
        let mut shares = self.cut(sums, scratch);
        let threads = self.groups[0] * self.groups[1];
        let chunks: usize = self.chunks().iter().product();
        self.cpu.team.run_parts(&mut shares[..threads], &|thread, share| {
            share.sums.fill(0.0);
            share.bias.fill(0.0);
            let filters = self.filters_of(thread);
            if filters.is_empty() {
                return;
            }
            let ready = self.unit.ready();
            let (dy_panels, x_panels) =
                (bytemuck::cast_slice_mut(share.dy), bytemuck::cast_slice_mut::<f32, U::Element>(share.x));
            let numbers = split(chunks, self.groups[1], thread / self.groups[0]);
            for number in numbers.clone() {
                let chunk = self.chunk(number);
                let next = (number + 1 < numbers.end).then(|| self.chunk(number + 1));
                let mut ahead = Ahead::new(next.map(|next| self.maps_of(&next, x, dy)));
                // SAFETY: the level is the proof of AVX-512 (`new`).
                unsafe {
                    let sums = bias.then_some(&mut *share.bias);
                    self.unit.pack_output(self, &chunk, &filters, dy, dy_panels, sums);
                };
                for column in 0..self.axes[1].taps.len() {
                    // SAFETY: as above.
                    unsafe { self.pack_input(&chunk, column, x, x_panels) };
                    self.multiply(&ready, &chunk, column, [dy_panels, x_panels], &mut ahead, share.sums);
                }
            }
        });
    }

    /// What a chunk reads of the maps, but for rows that other chunks see too.
    fn maps_of<'a, E>(&self, chunk: &Chunk, x: &'a [E], dy: &'a [E]) -> [&'a [E]; 2] {
        let [rows, columns] = &self.axes;
        // Of several images a chunk has all rows.
        let [first, last] = [chunk.images.start, chunk.images.end - 1];
        let part = |map: &'a [E], height: usize, row: usize, in_all: Range<usize>| {
            let start = (first * height + in_all.start.min(height)) * row;
            let end = (last * height + in_all.end.min(height)) * row;
            &map[start..end]
        };
        let seen = chunk.rows.start * rows.step..chunk.rows.end * rows.step;
        [
            part(dy, rows.count, columns.count * self.filters, chunk.rows.clone()),
            part(x, rows.inputs, columns.inputs * self.channels, seen),
        ]
    }

    /// Adds the products of a chunk for the taps of one column.
    fn multiply(
        &self,
        ready: &U::Ready,
        chunk: &Chunk,
        column: usize,
        [dy, x]: [&[U::Element]; 2],
        ahead: &mut Ahead<'_, U::Element>,
        sums: &mut [f32],
    ) {
        let [_, channel_blocks] = self.blocks();
        let panel = Self::output_panel(chunk.terms);
        let taps = self.axes[0].taps.len();
        let walks: [Walk; MOST_ROWS] =
            std::array::from_fn(|tap| if tap < taps { self.walk(chunk, tap) } else { Walk::default() });
        let (sums, _) = sums.as_chunks_mut::<SUMS>();
        for (filters, sums) in sums.chunks_exact_mut(self.sums_of_block() / SUMS).enumerate() {
            let dy = [2 * filters, 2 * filters + 1].map(|half| &dy[half * panel..][..panel]);
            let sums = &mut sums[column * channel_blocks * taps..][..channel_blocks * taps];
            for product in 0..sums.len() {
                let (channels, walk) = (product / taps, &walks[product % taps]);
                let x = [2 * channels, 2 * channels + 1]
                    .map(|half| &x[walk.start + half * walk.panel..][..walk.count * U::TILE]);
                let next = ahead.take(walk.count);
                let (sums, later) = sums[product..].split_at_mut(1);
                later.first().into_iter().for_each(|later| prefetch_l2(later));
                U::multiply_add(ready, dy.map(|half| &half[walk.from..]), x, walk.count, next, &mut sums[0]);
            }
        }
    }

    /// Where a tap's terms of a chunk lie; none for rows that see padding, which add nothing.
    fn walk(&self, chunk: &Chunk, tap: usize) -> Walk {
        let (class, shift) = self.axes[0].place(tap);
        let inside = self.axes[0].pixels_inside(tap);
        let [start, end] = [inside.start, inside.end]
            .map(|row| row.clamp(chunk.rows.start, chunk.rows.end) - chunk.rows.start);
        let row = chunk.images.len() * self.columns();
        let from = start * row / U::TERMS;
        let (panels, panel) = self.input_panels([chunk.images.len(), chunk.rows.len()], class);
        let first = from * ROWS + shift * row / U::GROUP;
        let count = if start < end { (end * row).div_ceil(U::TERMS) - from } else { 0 };
        Walk { from: from * U::TILE, start: panels + first * U::TERMS, panel, count }
    }

    /// Where the panels of the taps that leave a remainder begin, and the elements of each.
    fn input_panels(&self, sizes: [usize; 2], class: usize) -> (usize, usize) {
        let elements = |(_, reach)| self.input_panel(sizes, reach)[1];
        let classes = || self.axes[0].classes();
        let before: usize = classes().filter(|other| other.0 < class).map(elements).sum();
        let here = classes().find(|other| other.0 == class).map_or(0, elements);
        (2 * self.blocks()[1] * before, here)
    }

    /// Sums the registers of the bias, and those of the groups.
    fn bias(&self, scratch: &mut [f32], db: &mut [f32]) {
        if db.is_empty() {
            return;
        }
        db.fill(0.0);
        for (thread, share) in self.threads().zip(self.cut_rest(scratch)) {
            let filters = self.filters_of(thread);
            let [lanes, _, _] = self.scratch(filters.len());
            let first = (filters.start * BLOCK).min(db.len());
            let (halves, _) = share[..lanes].as_chunks::<{ ROWS * ROWS }>();
            for (db, half) in db[first..].chunks_mut(ROWS).zip(halves) {
                for (filter, db) in db.iter_mut().enumerate() {
                    // Sixteen numbers of a filter lie next to each other, or those of all filters for a row.
                    *db += match self.unit.takes_filters_in_rows() {
                        true => half[filter * ROWS..][..ROWS].iter().sum::<f32>(),
                        false => half[filter..].iter().step_by(ROWS).sum(),
                    };
                }
            }
        }
    }
}

/// Whether each output pixel sees the input's at its place alone: how they are put in rows then means nothing.
fn sees_one_pixel(conv: &Conv2d) -> bool {
    conv.kernel == [1; 2]
        && conv.stride == [1; 2]
        && conv.padding_before.iter().chain(&conv.padding_after).all(|&padding| padding == 0)
}

/// The pixels of all images as one image, of rows that leave no term of a tile empty, where that is possible.
fn in_whole_tiles<U: PanelArithmetic>(batch: usize, [height, width]: [usize; 2]) -> (usize, [usize; 2]) {
    let pixels = batch * height * width;
    let widths = std::iter::successors(Some(U::TERMS), |width| Some(width / 2));
    let mut widths = widths.take_while(|&width| width >= U::GROUP);
    match widths.find(|&width| pixels.is_multiple_of(width)) {
        Some(width) if pixels > 0 => (1, [pixels / width, width]),
        _ => (batch, [height, width]),
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
#[path = "panel_gradient_tests.rs"]
pub mod tests;
