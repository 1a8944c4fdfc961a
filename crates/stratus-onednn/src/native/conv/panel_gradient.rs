//! The gradient of a convolution's weights on tiles of bf16.
//!
//! The gradient of one tap is a product of matrices, output's gradient by input, whose terms are the pixels of all images. Maps lie channels last;
//! tiles want pixels next to each other. So both maps are brought into panels, a chunk at a time that stays in the second cache, and every tap of
//! every block of channels is then a walk along two panels:
//!
//! - the terms of a chunk are its output pixels, row by row, and within a row image by image. A tap one row further down then begins one stretch
//!   further on, whatever the height of a map, and rows that would lie on the padding are left out;
//! - rows that a stride skips lie in panels of their own, one per remainder;
//! - columns differ by tap: the panels of the input are made once for each.

use super::panels::Task;
use super::taps::Axis;
use super::tiles::{BLOCK, GAP, ROWS, STEPS, SUMS, TERMS, TILE, Tiles, Unit};
use crate::native::elementwise::Machine;
use crate::native::relayout::Relayout;
use crate::native::simd::{Bf16, Instructions};
use crate::native::threads::{MAX_THREADS, cut, groups, piece, split};
use std::ops::Range;
use stratus_engine::Layout;
use stratus_graph::ops::Conv2d;

/// The terms that a chunk should have. More of them let sums stay longer in registers, fewer let panels stay in the caches.
const CHUNK_TERMS: usize = 512;

/// The most rows of a kernel.
const MOST_ROWS: usize = 16;

/// Sums of this many bytes stay in a core's second cache: threads may then each have their own.
const SMALL: usize = 1 << 20;

/// The gradient of the weights of one convolution.
#[derive(Clone)]
pub struct WeightGradient {
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
    unit: Unit,
    machine: Machine,
}

/// Part of the batch.
#[derive(Clone)]
struct Chunk {
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
struct Ahead<'a> {
    maps: [&'a [Bf16]; 2],
}

impl<'a> Ahead<'a> {
    fn new(maps: Option<[&'a [Bf16]; 2]>) -> Self {
        Self { maps: maps.unwrap_or_default() }
    }

    /// As much as a product of so many tiles may ask for, a line of a cache for each of its steps.
    fn take(&mut self, tiles: usize) -> &'a [Bf16] {
        let [first, second] = &mut self.maps;
        let from = if first.is_empty() { second } else { first };
        let (part, rest) = from.split_at((tiles * STEPS * TERMS).min(from.len()));
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

impl WeightGradient {
    /// The gradient of the weights, to lie as the task says; `None` where another kernel has to make it.
    #[must_use]
    pub fn new(task: Task<'_>) -> Option<Self> {
        let Task { conv, batch, input, weights: takes, unit, machine } = task;
        conv.output_size(input).ok()?;
        let (batch, input) = if sees_one_pixel(conv) { in_whole_tiles(batch, input) } else { (batch, input) };
        let output = conv.output_size(input).ok()?;
        let suits = conv.groups == 1
            && conv.in_channels >= ROWS
            && conv.out_channels >= ROWS
            && machine.level.instructions() == Instructions::Avx512
            && conv.kernel[0] <= MOST_ROWS
            && takes.shape == conv.weight_shape();
        if !suits || batch == 0 {
            return None;
        }
        let [height, width] = [output[0], output[1].next_multiple_of(2)];
        // Whole tiles of terms between one row and the next, where that is possible.
        let whole = |length: usize, wanted: usize| {
            let even = TERMS / gcd(length, TERMS);
            if wanted > even { wanted / even * even } else { wanted.max(1) }
        };
        let chunk = if height * width >= CHUNK_TERMS {
            [1, whole(width, CHUNK_TERMS / width).min(height)]
        } else {
            [whole(width, CHUNK_TERMS / (height * width)).min(batch), height]
        };
        let blocks = [conv.out_channels, conv.in_channels].map(|channels| channels.div_ceil(BLOCK));
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
            axes: [0, 1].map(|axis| Axis::forward(conv, axis, [input[axis], output[axis]])),
            chunk,
            groups: groups(machine.team.threads(), if small { 1 } else { blocks[0] }),
            gather: Relayout::new(&sums, takes, machine)?,
            unit,
            machine: machine.clone(),
        })
    }

    /// Blocks of filters, blocks of channels.
    fn blocks(&self) -> [usize; 2] {
        [self.filters, self.channels].map(|channels| channels.div_ceil(BLOCK))
    }

    /// Columns of a row of terms: pairs are whole.
    fn columns(&self) -> usize {
        self.axes[1].count.next_multiple_of(2)
    }

    /// Elements of the sums of one block of filters.
    fn sums_of_block(&self) -> usize {
        self.axes[0].taps.len() * self.axes[1].taps.len() * self.blocks()[1] * SUMS
    }

    /// Pairs of terms in a panel of the input, of the taps that leave a remainder, and elements from panel to panel.
    fn input_panel(&self, [images, rows]: [usize; 2], reach: usize) -> [usize; 2] {
        let pairs = (rows + reach) * images * self.columns() / 2;
        // The last tile of a stretch may end behind it.
        [pairs, (pairs + ROWS) * TERMS + GAP]
    }

    /// Elements from panel to panel of the output's gradient.
    fn output_panel(terms: usize) -> usize {
        terms.div_ceil(TERMS) * TILE + GAP
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
        [blocks * BLOCK * ROWS, dy / 2, x / 2]
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
    pub fn run(&self, x: &[Bf16], dy: &[Bf16], dw: &mut [f32], db: &mut [f32], scratch: &mut [f32]) {
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
            self.machine.accumulate(other, first);
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

    fn add_up(&self, x: &[Bf16], dy: &[Bf16], bias: bool, sums: &mut [f32], scratch: &mut [f32]) {
        let mut shares = self.cut(sums, scratch);
        let threads = self.groups[0] * self.groups[1];
        let chunks: usize = self.chunks().iter().product();
        self.machine.team.run_parts(&mut shares[..threads], &|thread, share| {
            share.sums.fill(0.0);
            share.bias.fill(0.0);
            let filters = self.filters_of(thread);
            if filters.is_empty() {
                return;
            }
            let tiles = self.unit.tiles();
            let (dy_panels, x_panels) =
                (bytemuck::cast_slice_mut(share.dy), bytemuck::cast_slice_mut::<f32, Bf16>(share.x));
            let numbers = split(chunks, self.groups[1], thread / self.groups[0]);
            for number in numbers.clone() {
                let chunk = self.chunk(number);
                let next = (number + 1 < numbers.end).then(|| self.chunk(number + 1));
                let mut ahead = Ahead::new(next.map(|next| self.maps_of(&next, x, dy)));
                // SAFETY: the level is the proof of AVX-512 (`new`).
                unsafe {
                    let sums = bias.then_some(&mut *share.bias);
                    if self.unit.takes_pairs() {
                        self.pack_output_in_pairs(&chunk, &filters, dy, dy_panels, sums);
                    } else {
                        self.pack_output(&chunk, &filters, dy, dy_panels, sums);
                    }
                };
                for column in 0..self.axes[1].taps.len() {
                    // SAFETY: as above.
                    unsafe { self.pack_input(&chunk, column, x, x_panels) };
                    self.multiply(&tiles, &chunk, column, [dy_panels, x_panels], &mut ahead, share.sums);
                }
            }
        });
    }

    /// What a chunk reads of the maps, but for rows that other chunks see too.
    fn maps_of<'a>(&self, chunk: &Chunk, x: &'a [Bf16], dy: &'a [Bf16]) -> [&'a [Bf16]; 2] {
        let [rows, columns] = &self.axes;
        // Of several images a chunk has all rows.
        let [first, last] = [chunk.images.start, chunk.images.end - 1];
        let part = |map: &'a [Bf16], height: usize, row: usize, in_all: Range<usize>| {
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
        tiles: &Tiles,
        chunk: &Chunk,
        column: usize,
        [dy, x]: [&[Bf16]; 2],
        ahead: &mut Ahead<'_>,
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
            let sums = sums[column * channel_blocks * taps..].chunks_exact_mut(taps);
            for (channels, sums) in sums.take(channel_blocks).enumerate() {
                for (walk, sums) in walks.iter().zip(sums) {
                    let x = [2 * channels, 2 * channels + 1]
                        .map(|half| &x[walk.start + half * walk.panel..][..walk.count * TILE]);
                    let next = ahead.take(walk.count);
                    tiles.multiply_add(dy.map(|half| &half[walk.from..]), x, walk.count, next, sums);
                }
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
        let from = start * row / TERMS;
        let (panels, panel) = self.input_panels([chunk.images.len(), chunk.rows.len()], class);
        let pair = from * ROWS + shift * row / 2;
        let count = if start < end { (end * row).div_ceil(TERMS) - from } else { 0 };
        Walk { from: from * TILE, start: panels + pair * TERMS, panel, count }
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
                    // Sixteen numbers of a filter lie next to each other, or those of all filters for a pair.
                    *db += match self.unit.takes_pairs() {
                        true => half[filter..].iter().step_by(ROWS).sum::<f32>(),
                        false => half[filter * ROWS..][..ROWS].iter().sum(),
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
fn in_whole_tiles(batch: usize, [height, width]: [usize; 2]) -> (usize, [usize; 2]) {
    let pixels = batch * height * width;
    let widths = std::iter::successors(Some(TERMS), |width| Some(width / 2)).take_while(|&width| width > 1);
    match widths.into_iter().find(|&width| pixels.is_multiple_of(width)) {
        Some(width) if pixels > 0 => (1, [pixels / width, width]),
        _ => (batch, [height, width]),
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

pub(super) use pack::transpose;

mod pack {
    use super::{BLOCK, Bf16, Chunk, ROWS, Range, TERMS, TILE, WeightGradient};
    use crate::native::conv::tiles::{load, mask};
    use std::arch::x86_64::{
        __m512i, _mm512_add_ps, _mm512_and_si512, _mm512_castsi512_ps, _mm512_loadu_ps, _mm512_loadu_si512,
        _mm512_permutex2var_epi16, _mm512_set1_epi32, _mm512_setzero_si512, _mm512_shuffle_i32x4,
        _mm512_slli_epi32, _mm512_storeu_ps, _mm512_storeu_si512, _mm512_unpackhi_epi32,
        _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
    };

    /// Which elements of two registers make pairs, for the first half of both and for the second.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn pairs() -> [__m512i; 2] {
        [0, ROWS].map(|first| {
            let elements: [u16; BLOCK] = std::array::from_fn(|i| (first + i / 2 + i % 2 * BLOCK) as u16);
            // SAFETY: 64 bytes.
            unsafe { _mm512_loadu_si512(elements.as_ptr().cast()) }
        })
    }

    /// Rows as columns: 16×16 numbers of 32 bits.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn transpose(rows: [__m512i; ROWS]) -> [__m512i; ROWS] {
        let mut a = rows;
        for i in 0..8 {
            a[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
            a[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
        }
        let mut b = a;
        for i in 0..4 {
            let [r0, r1, r2, r3] = [a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3]];
            b[4 * i] = _mm512_unpacklo_epi64(r0, r2);
            b[4 * i + 1] = _mm512_unpackhi_epi64(r0, r2);
            b[4 * i + 2] = _mm512_unpacklo_epi64(r1, r3);
            b[4 * i + 3] = _mm512_unpackhi_epi64(r1, r3);
        }
        // Now register 4 i + j holds, per quarter q, column 4 q + j of rows 4 i to 4 i + 3.
        let mut c = b;
        for j in 0..4 {
            let [r0, r1, r2, r3] = [b[j], b[4 + j], b[8 + j], b[12 + j]];
            let [low, high] = [_mm512_shuffle_i32x4::<0x88>(r0, r1), _mm512_shuffle_i32x4::<0xdd>(r0, r1)];
            let [low2, high2] = [_mm512_shuffle_i32x4::<0x88>(r2, r3), _mm512_shuffle_i32x4::<0xdd>(r2, r3)];
            c[j] = _mm512_shuffle_i32x4::<0x88>(low, low2);
            c[4 + j] = _mm512_shuffle_i32x4::<0x88>(high, high2);
            c[8 + j] = _mm512_shuffle_i32x4::<0xdd>(low, low2);
            c[12 + j] = _mm512_shuffle_i32x4::<0xdd>(high, high2);
        }
        c
    }

    /// Adds sixteen pairs of neighbouring bf16 to as many sums.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn add_up(pairs: __m512i, sums: &mut [f32; ROWS]) {
        let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
        let even = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
        let odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, upper));
        // SAFETY: 16 numbers.
        unsafe {
            let sum = _mm512_add_ps(_mm512_loadu_ps(sums.as_ptr()), _mm512_add_ps(even, odd));
            _mm512_storeu_ps(sums.as_mut_ptr(), sum);
        }
    }

    /// A map that is brought into panels of 16 channels, which lie so many elements apart: a row per pair of terms, pairs channel by channel.
    struct PairsOf<'a> {
        map: &'a [Bf16],
        channels: usize,
        panel: usize,
    }

    impl PairsOf<'_> {
        /// Writes a pair of pixels, given by where their channels begin, as the panels' row `pair`: so many blocks of 32 channels.
        ///
        /// # Safety
        /// AVX-512 must be there; all channels of the pixels lie within the map.
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw")]
        unsafe fn put(
            &self,
            blocks: Range<usize>,
            pixels: [Option<usize>; 2],
            panels: &mut [Bf16],
            pair: usize,
        ) {
            let [low, high] = pairs();
            for (number, block) in blocks.enumerate() {
                let mask = mask(self.channels, block);
                let at = |pixel: Option<usize>| pixel.map(|at| at + block * BLOCK);
                // SAFETY: the caller's.
                let [first, second] = unsafe { pixels.map(|pixel| load(self.map, at(pixel), mask)) };
                let halves = [
                    _mm512_permutex2var_epi16(first, low, second),
                    _mm512_permutex2var_epi16(first, high, second),
                ];
                for (half, values) in halves.into_iter().enumerate() {
                    let to = &mut panels[(2 * number + half) * self.panel + pair * TERMS..][..TERMS];
                    // SAFETY: 64 bytes.
                    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), values) };
                }
            }
        }
    }

    impl WeightGradient {
        /// Brings a chunk of the output's gradient into panels of 16 filters: tiles of a row per filter, 32 terms long. Adds to the sums of the bias,
        /// 16 per filter.
        ///
        /// # Safety
        /// AVX-512 must be there.
        #[target_feature(enable = "avx512f,avx512bw")]
        pub(super) unsafe fn pack_output(
            &self,
            chunk: &Chunk,
            filters: &Range<usize>,
            dy: &[Bf16],
            panels: &mut [Bf16],
            mut bias: Option<&mut [f32]>,
        ) {
            let panel = Self::output_panel(chunk.terms);
            let [low, high] = pairs();
            let [height, width] = [0, 1].map(|axis| self.axes[axis].count);
            for tile in 0..chunk.terms.div_ceil(TERMS) {
                let mut pixels = [None; TERMS];
                for (pixel, term) in pixels.iter_mut().zip(tile * TERMS..) {
                    let (column, row) = (term % self.columns(), term / self.columns());
                    let (image, row) = (row % chunk.images.len(), row / chunk.images.len());
                    if row < chunk.rows.len() && column < width {
                        let row = (chunk.images.start + image) * height + chunk.rows.start + row;
                        *pixel = Some((row * width + column) * self.filters);
                    }
                }
                for (number, block) in filters.clone().enumerate() {
                    let mask = mask(self.filters, block);
                    let mut halves = [[_mm512_setzero_si512(); ROWS]; 2];
                    for (pair, pixels) in pixels.as_chunks::<2>().0.iter().enumerate() {
                        // SAFETY: filters of a pixel of the map.
                        let [first, second] =
                            pixels.map(|at| unsafe { load(dy, at.map(|at| at + block * BLOCK), mask) });
                        halves[0][pair] = _mm512_permutex2var_epi16(first, low, second);
                        halves[1][pair] = _mm512_permutex2var_epi16(first, high, second);
                    }
                    for (half, rows) in halves.into_iter().enumerate() {
                        let rows = transpose(rows);
                        let half = 2 * number + half;
                        let to = &mut panels[half * panel + tile * TILE..][..TILE];
                        for (row, to) in rows.iter().zip(to.chunks_exact_mut(TERMS)) {
                            // SAFETY: 64 bytes.
                            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), *row) };
                        }
                        if let Some(bias) = &mut bias {
                            let (sums, _) = bias[half * ROWS * ROWS..].as_chunks_mut();
                            rows.into_iter().zip(sums).for_each(|(row, sums)| add_up(row, sums));
                        }
                    }
                }
            }
        }

        /// The same in pairs, as [`Self::pack_input`] has them: a row per pair of terms, pairs filter by filter.
        ///
        /// # Safety
        /// AVX-512 must be there.
        #[target_feature(enable = "avx512f,avx512bw")]
        pub(super) unsafe fn pack_output_in_pairs(
            &self,
            chunk: &Chunk,
            filters: &Range<usize>,
            dy: &[Bf16],
            panels: &mut [Bf16],
            mut bias: Option<&mut [f32]>,
        ) {
            let [height, width] = [0, 1].map(|axis| self.axes[axis].count);
            let map = PairsOf { map: dy, channels: self.filters, panel: Self::output_panel(chunk.terms) };
            let mut next = 0;
            for row in chunk.rows.clone() {
                for image in chunk.images.clone() {
                    let pixel =
                        |x: usize| (x < width).then_some(((image * height + row) * width + x) * self.filters);
                    for x in (0..self.columns()).step_by(2) {
                        // SAFETY: filters of a pixel of the map.
                        unsafe { map.put(filters.clone(), [pixel(x), pixel(x + 1)], panels, next) };
                        next += 1;
                    }
                }
            }
            // What the last tile has behind the last term adds nothing.
            for pair in next..next.next_multiple_of(ROWS) {
                // SAFETY: as above.
                unsafe { map.put(filters.clone(), [None; 2], panels, pair) };
            }
            let Some(bias) = &mut bias else { return };
            for (half, sums) in bias.chunks_exact_mut(ROWS * ROWS).enumerate() {
                let (sums, _) = sums.as_chunks_mut::<ROWS>();
                let pairs = &panels[half * map.panel..][..next.next_multiple_of(ROWS) * TERMS];
                for (number, pair) in pairs.chunks_exact(TERMS).enumerate() {
                    // SAFETY: 64 bytes.
                    let pair = unsafe { _mm512_loadu_si512(pair.as_ptr().cast()) };
                    add_up(pair, &mut sums[number % ROWS]);
                }
            }
        }

        /// Brings what the taps of a column see of a chunk into panels of 16 channels: a row per pair of terms, pairs channel by channel.
        ///
        /// # Safety
        /// AVX-512 must be there.
        #[target_feature(enable = "avx512f,avx512bw")]
        pub(super) unsafe fn pack_input(
            &self,
            chunk: &Chunk,
            column: usize,
            x: &[Bf16],
            panels: &mut [Bf16],
        ) {
            let sizes = [chunk.images.len(), chunk.rows.len()];
            let pairs_of_a_row = self.columns() / 2;
            let [_, blocks] = self.blocks();
            let [y_axis, x_axis] = &self.axes;
            let (_, sees) = x_axis.taps[column];
            for (class, reach) in y_axis.classes() {
                let (start, _) = self.input_panels(sizes, class);
                let [pairs, panel] = self.input_panel(sizes, reach);
                let panels = &mut panels[start..][..2 * blocks * panel];
                let map = PairsOf { map: x, channels: self.channels, panel };
                let mut put = |pair: usize, pixels: [Option<usize>; 2]| {
                    // SAFETY: channels of a pixel of the map.
                    unsafe { map.put(0..blocks, pixels, panels, pair) };
                };
                for row in 0..chunk.rows.len() + reach {
                    let y = y_axis.inside(chunk.rows.start + row, y_axis.origin() + class.cast_signed());
                    for (number, image) in chunk.images.clone().enumerate() {
                        let first = (row * sizes[0] + number) * pairs_of_a_row;
                        let pixel = |x: usize| {
                            let (y, x) = (y?, x_axis.inside(x, sees).filter(|_| x < x_axis.count)?);
                            Some(((image * y_axis.inputs + y) * x_axis.inputs + x) * self.channels)
                        };
                        for pair in 0..pairs_of_a_row {
                            put(first + pair, [pixel(2 * pair), pixel(2 * pair + 1)]);
                        }
                    }
                }
                for pair in pairs..pairs + ROWS {
                    put(pair, [None; 2]);
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "panel_gradient_tests.rs"]
pub mod tests;
