//! Copies between layouts, element types or both, such as weights for kernels with blocked layouts.
//!
//! ```text
//! offset(i, j, ..) = Σ over dimensions of table[dimension][index]       in source and target
//! ```
//!
//! This holds for every blocked layout, so a table per dimension and side gives the offsets of all elements.
//! Tiles over two dimensions keep both sides in L1 for every order of dimensions; sixteen elements that are
//! neighbours on both sides are copied together, squares of 16×16 are transposed in registers. oneDNN copies
//! some of these layouts one element at a time. Threads divide the target.
//!
//! Squares are transposed at 33 to 70 GB/s, where oneDNN's `jit:uni` kernel reaches 12 to 25
//! (docs/benchmarks/kernels.md).

#[cfg(target_arch = "x86_64")]
mod transposed;

use super::elementwise::CpuContext;
use super::lanes::LaneElement;
use super::simd::{Isa, multiversion};
use super::threads::{split, split_lengths};
use std::ops::Range;
use stratus_engine::Layout;

/// The size of a tile along its outer and inner dimensions.
const TILE: [usize; 2] = [16, 32];

/// The size of a transposed tile: long in the direction in which the target is written in order, along the
/// outer dimension or, in blocks of pairs, along the inner one.
const TRANSPOSED_TILE: [usize; 2] = [256, 16];
const PAIRED_TILE: [usize; 2] = [16, 256];

/// The number of neighbouring elements copied at once.
const RUN_ELEMENTS: usize = 16;

const MAX_DIMENSIONS: usize = 6;

/// A change of layout.
#[derive(Clone)]
pub struct Relayout {
    shape: Vec<usize>,
    /// The tables of source and target, `[dimension][index]`.
    offsets: [Vec<Vec<usize>>; 2],
    /// Dimensions of a tile, `[outer, inner]`.
    tiled: [usize; 2],
    /// The method of copying tiles.
    method: CopyMethod,
    /// The outermost dimension of the target, along which threads divide it.
    outermost: usize,
    /// Indices of that dimension in a contiguous run of the target, and the elements of the run.
    stretch: [usize; 2],
    /// True if the target has padding.
    pads: bool,
    elements: usize,
    cpu: CpuContext,
}

/// The method of copying a tile; a remainder shorter than a run is copied by elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyMethod {
    /// One by one.
    Elements,
    /// [`RUN_ELEMENTS`] at a time: this number of indices of the inner dimension are neighbours in source and
    /// target.
    Runs,
    /// [`RUN_ELEMENTS`] by [`RUN_ELEMENTS`]: [`RUN_ELEMENTS`] indices of the inner dimension are neighbours
    /// in the source, of the outer one in the target.
    Transposed,
    /// [`Self::Transposed`] with inner indices in pairs in the target, as VNNI requires.
    TransposedPairs,
}

/// The offset table of one dimension.
fn offsets(layout: &Layout, dimension: usize) -> Vec<usize> {
    let mut index = vec![0; layout.shape.len()];
    let offset = |at: usize| {
        index[dimension] = at;
        layout.offset(&index)
    };
    (0..layout.shape[dimension]).map(offset).collect()
}

impl Relayout {
    /// The copy between two layouts of the same shape; `None` if this kernel does not support it.
    #[must_use]
    pub fn new(from: &Layout, to: &Layout, cpu: &CpuContext) -> Option<Self> {
        let shape = &to.shape;
        if from.shape != *shape || !(2..=MAX_DIMENSIONS).contains(&shape.len()) || shape.contains(&0) {
            return None;
        }
        let mut by_extent: Vec<usize> = (0..shape.len()).collect();
        by_extent.sort_by_key(|&dimension| (std::cmp::Reverse(shape[dimension]), dimension));
        let innermost = to.blocks.last().map(|&(dimension, _)| dimension);
        let offsets =
            [from, to].map(|layout| (0..shape.len()).map(|d| offsets(layout, d)).collect::<Vec<_>>());
        let in_runs = |d: &usize| offsets.iter().all(|offsets| are_strided_runs(&offsets[*d], 1));
        let [first, second] = [by_extent[0], by_extent[1]];
        let run_dimension = by_extent.iter().copied().find(in_runs);
        let (method, tiled) = match (run_dimension, transposed(&offsets, &by_extent)) {
            (Some(inner), _) => (CopyMethod::Runs, [if inner == first { second } else { first }, inner]),
            (None, Some(transposed)) if cpu.level.isa() == Isa::Avx512 => transposed,
            _ if innermost == Some(first) => (CopyMethod::Elements, [second, first]),
            _ if innermost != Some(second) && from.strides[first] == 1 => {
                (CopyMethod::Elements, [second, first])
            }
            _ => (CopyMethod::Elements, [first, second]),
        };
        // Threads write contiguous runs of the target: along the dimension of the largest stride, a block at
        // a time.
        let outermost =
            (0..shape.len()).filter(|&d| to.padded[d] > block(to, d)).max_by_key(|&d| to.strides[d]);
        let outermost = outermost.unwrap_or(0);
        let mut stretch = [block(to, outermost), to.strides[outermost]];
        if stretch[1] * (to.padded[outermost] / stretch[0]) != to.elements() {
            stretch = [to.padded[outermost], to.elements()];
        }
        let pads = to.elements() != shape.iter().product::<usize>();
        let (shape, elements, cpu) = (shape.clone(), to.elements(), cpu.clone());
        Some(Self { shape, offsets, tiled, method, outermost, stretch, pads, elements, cpu })
    }

    /// Returns whether squares are transposed in registers.
    #[must_use]
    pub fn transposes(&self) -> bool {
        matches!(self.method, CopyMethod::Transposed | CopyMethod::TransposedPairs)
    }

    /// Copies `x` to `y`; padding becomes zero.
    pub fn run<X: LaneElement, Y: LaneElement>(&self, x: &[X], y: &mut [Y]) {
        let threads = self.cpu.team.threads();
        let [indices, elements] = self.stretch;
        let stretches = |thread| split(self.elements / elements, threads, thread);
        let mut parts = split_lengths(y, (0..threads).map(|thread| stretches(thread).len() * elements));
        self.cpu.team.run_parts(&mut parts[..threads], &|thread, y| {
            if self.pads {
                y.fill(Y::store(0.0));
            }
            let Range { start, end } = stretches(thread);
            let extent = self.shape[self.outermost];
            let mut ranges: [Range<usize>; MAX_DIMENSIONS] =
                std::array::from_fn(|d| 0..self.shape.get(d).copied().unwrap_or(1));
            ranges[self.outermost] = (start * indices).min(extent)..(end * indices).min(extent);
            self.copy_ranges(&ranges, start * elements, x, y);
        });
    }

    /// Copies some ranges of indices; `y` starts at offset `first` of the target.
    fn copy_ranges<X: LaneElement, Y: LaneElement>(
        &self,
        ranges: &[Range<usize>; MAX_DIMENSIONS],
        first: usize,
        x: &[X],
        y: &mut [Y],
    ) {
        let [outer, inner] = self.tiled;
        let tile = match self.method {
            CopyMethod::Elements | CopyMethod::Runs => TILE,
            CopyMethod::Transposed => TRANSPOSED_TILE,
            CopyMethod::TransposedPairs => PAIRED_TILE,
        };
        for outers in tiles(&ranges[outer], tile[0]) {
            for inners in tiles(&ranges[inner], tile[1]) {
                let in_runs = |indices: &Range<usize>| {
                    indices.start.is_multiple_of(RUN_ELEMENTS) && indices.end.is_multiple_of(RUN_ELEMENTS)
                };
                let method = match self.method {
                    CopyMethod::Elements => CopyMethod::Elements,
                    method if in_runs(&inners) && (!self.transposes() || in_runs(&outers)) => method,
                    _ => CopyMethod::Elements,
                };
                let mut ranges = ranges.clone();
                (ranges[outer], ranges[inner]) =
                    (outers.start..outers.start + 1, inners.start..inners.start + 1);
                let rows = [&self.offsets[0][outer][outers.clone()], &self.offsets[1][outer][outers.clone()]];
                let columns =
                    [&self.offsets[0][inner][inners.clone()], &self.offsets[1][inner][inners.clone()]];
                self.for_each(&ranges, |mut from, mut to| {
                    // Rows and columns both contain the first element's offset, which must count once.
                    from -= rows[0][0] + columns[0][0];
                    to -= rows[1][0] + columns[1][0];
                    let tile = CopyTile { rows, columns, from, to, first };
                    let level = self.cpu.level;
                    match method {
                        CopyMethod::Elements | CopyMethod::Runs => {
                            copy_tile(level, &tile, method == CopyMethod::Runs, x, y);
                        }
                        // Only chosen with AVX-512.
                        CopyMethod::Transposed | CopyMethod::TransposedPairs => {
                            #[cfg(target_arch = "x86_64")]
                            transposed::copy_tile(level, &tile, method == CopyMethod::TransposedPairs, x, y);
                        }
                    }
                });
            }
        }
    }

    /// Calls `visit` with the two offsets of every element in the ranges.
    fn for_each(&self, ranges: &[Range<usize>; MAX_DIMENSIONS], mut visit: impl FnMut(usize, usize)) {
        let dimensions = self.shape.len();
        if ranges[..dimensions].iter().any(Range::is_empty) {
            return;
        }
        let mut index: [usize; MAX_DIMENSIONS] = std::array::from_fn(|d| ranges[d].start);
        loop {
            let offset =
                |tables: &[Vec<usize>]| tables.iter().zip(&index).map(|(offsets, &at)| offsets[at]).sum();
            visit(offset(&self.offsets[0]), offset(&self.offsets[1]));
            let Some(dimension) = (0..dimensions).rev().find(|&d| index[d] + 1 < ranges[d].end) else {
                return;
            };
            index[dimension] += 1;
            for later in dimension + 1..dimensions {
                index[later] = ranges[later].start;
            }
        }
    }
}

/// The transposed method, with its largest suitable dimensions `[outer, inner]`, if one applies.
fn transposed(offsets: &[Vec<Vec<usize>>; 2], by_extent: &[usize]) -> Option<(CopyMethod, [usize; 2])> {
    let [from, to] = offsets;
    let inner = by_extent.iter().copied().find(|&d| are_strided_runs(&from[d], 1))?;
    let outer =
        |stride: usize| by_extent.iter().copied().find(|&d| d != inner && are_strided_runs(&to[d], stride));
    let in_pairs = || to[inner].as_chunks::<2>().0.iter().all(|[even, odd]| even + 1 == *odd);
    match (outer(1), outer(2)) {
        (Some(outer), _) => Some((CopyMethod::Transposed, [outer, inner])),
        (None, Some(outer)) if in_pairs() => Some((CopyMethod::TransposedPairs, [outer, inner])),
        _ => None,
    }
}

/// Returns whether offsets are `stride` apart within each [`RUN_ELEMENTS`], ignoring a remainder at the end.
fn are_strided_runs(offsets: &[usize], stride: usize) -> bool {
    let (runs, _) = offsets.as_chunks::<RUN_ELEMENTS>();
    let is_run = |run: &[usize; RUN_ELEMENTS]| {
        run.iter().zip((run[0]..).step_by(stride)).all(|(&offset, next)| offset == next)
    };
    !runs.is_empty() && runs.iter().all(is_run)
}

/// The number of indices of a dimension in one block.
fn block(layout: &Layout, dimension: usize) -> usize {
    layout.blocks.iter().filter(|block| block.0 == dimension).map(|block| block.1).product()
}

/// Splits a range into pieces that start at multiples of `length`.
fn tiles(range: &Range<usize>, length: usize) -> impl Iterator<Item = Range<usize>> {
    let Range { start, end } = range.clone();
    (start / length..end.div_ceil(length))
        .map(move |tile| (tile * length).max(start)..((tile + 1) * length).min(end))
        .filter(|piece| !piece.is_empty())
}

/// Elements that are copied together. Offsets are sums of those of a row, a column and the rest.
struct CopyTile<'a> {
    rows: [&'a [usize]; 2],
    columns: [&'a [usize]; 2],
    /// The offset of the rest in the source.
    from: usize,
    /// The offset of the rest in the target.
    to: usize,
    /// The offset at which the slice of the target starts.
    first: usize,
}

multiversion! {
    fn copy_tile / copy_tile_body [X: LaneElement, Y: LaneElement] [X, Y] (
        tile: &CopyTile<'_>, runs: bool, x: &[X], y: &mut [Y]
    )
}

/// Copies a tile. `runs`: columns are neighbours, [`RUN_ELEMENTS`] at a time.
#[inline(always)]
fn copy_tile_body<X: LaneElement, Y: LaneElement>(tile: &CopyTile<'_>, runs: bool, x: &[X], y: &mut [Y]) {
    let &CopyTile { rows, columns, from, to, first } = tile;
    for (&row, &to_row) in rows[0].iter().zip(rows[1]) {
        let (x, offset) = (&x[from + row..], to + to_row);
        if runs {
            for (&column, &to_column) in
                columns[0].iter().step_by(RUN_ELEMENTS).zip(columns[1].iter().step_by(RUN_ELEMENTS))
            {
                let y = &mut y[offset + to_column - first..][..RUN_ELEMENTS];
                x[column..][..RUN_ELEMENTS].iter().zip(y).for_each(|(x, y)| *y = Y::store(x.load()));
            }
            continue;
        }
        for (&column, &to_column) in columns[0].iter().zip(columns[1]) {
            y[offset + to_column - first] = Y::store(x[column].load());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::simd::{Bf16, IsaLevel};
    use crate::native::threads::ThreadTeam;
    use proptest::prelude::*;

    /// A layout of a shape: its dimensions in some order, outermost first, and inner blocks.
    fn layout(shape: &[usize], order: &[usize], blocks: &[(usize, usize)]) -> Layout {
        let mut padded = shape.to_vec();
        for (dimension, extent) in padded.iter_mut().enumerate() {
            let block: usize = blocks.iter().filter(|b| b.0 == dimension).map(|b| b.1).product();
            *extent = extent.next_multiple_of(block);
        }
        let mut stride = blocks.iter().map(|b| b.1).product();
        let mut strides = vec![0; shape.len()];
        for &dimension in order.iter().rev() {
            let block: usize = blocks.iter().filter(|b| b.0 == dimension).map(|b| b.1).product();
            strides[dimension] = stride;
            stride *= padded[dimension] / block;
        }
        Layout { tag: String::new(), shape: shape.to_vec(), padded, strides, blocks: blocks.to_vec() }
    }

    fn layouts(shape: Vec<usize>) -> impl Strategy<Value = Layout> {
        let dimensions = shape.len();
        let blocks = prop::collection::vec((0..dimensions, prop::sample::select(vec![2usize, 4, 16])), 0..4);
        (Just((0..dimensions).collect::<Vec<_>>()).prop_shuffle(), blocks)
            .prop_map(move |(order, blocks)| layout(&shape, &order, &blocks))
    }

    /// Checks that every element has its position in the target, and that padding is zero.
    fn check<X: LaneElement, Y: LaneElement>(from: &Layout, to: &Layout, threads: usize) {
        let number = |plain: usize| (plain % 251) as f32 - 100.0;
        let mut x = vec![X::store(f32::NAN); from.elements()];
        from.for_each(&from.shape, |at, plain| x[at] = X::store(number(plain)));
        let mut expected = vec![0.0; to.elements()];
        to.for_each(&to.shape, |at, plain| expected[at] = number(plain));
        for level in IsaLevel::all() {
            let cpu = CpuContext { team: ThreadTeam::emulating(threads), level };
            let relayout = Relayout::new(from, to, &cpu).unwrap();
            let mut y = vec![Y::store(f32::NAN); to.elements()];
            relayout.run(&x, &mut y);
            let y: Vec<f32> = y.iter().map(|y| y.load()).collect();
            assert!(y == expected, "{from:?} {to:?} {} threads {threads}", level.name());
        }
    }

    proptest! {
        #[test]
        fn every_element_is_copied(
            (from, to) in prop_oneof![
                prop::collection::vec(1usize..70, 2..4),
                prop::collection::vec(1usize..7, 4..6),
            ]
            .prop_flat_map(|shape| (layouts(shape.clone()), layouts(shape))),
            threads in 1usize..4,
        ) {
            check::<f32, f32>(&from, &to, threads);
            check::<f32, Bf16>(&from, &to, threads);
            check::<Bf16, Bf16>(&from, &to, threads);
            check::<Bf16, f32>(&from, &to, threads);
        }
    }

    /// Whole squares, remainders, and the blocks for products of pairs.
    #[test]
    fn matrices_are_transposed() {
        let targets = |shape: &[usize]| {
            [
                (layout(shape, &[1, 0], &[]), CopyMethod::Transposed),
                (layout(shape, &[0, 1], &[(1, 16), (0, 32)]), CopyMethod::Transposed),
                (layout(shape, &[0, 1], &[(1, 8), (0, 64), (1, 2)]), CopyMethod::TransposedPairs),
                (layout(shape, &[1, 0], &[(0, 16), (1, 2)]), CopyMethod::TransposedPairs),
            ]
        };
        for shape in [[64, 48], [300, 272], [70, 530]] {
            for (to, method) in targets(&shape) {
                let from = Layout::plain(&shape);
                let cpu = CpuContext { team: ThreadTeam::single(), level: IsaLevel::detect([true, true]) };
                if cpu.level.isa() == Isa::Avx512 {
                    assert_eq!(Relayout::new(&from, &to, &cpu).unwrap().method, method, "{to:?}");
                }
                for threads in [1, 2, 3] {
                    check::<f32, f32>(&from, &to, threads);
                    check::<f32, Bf16>(&from, &to, threads);
                    check::<Bf16, Bf16>(&from, &to, threads);
                }
            }
        }
    }

    #[test]
    fn refuses_different_shapes() {
        let team = CpuContext { team: ThreadTeam::single(), level: IsaLevel::detect([true, true]) };
        assert!(Relayout::new(&Layout::plain(&[2, 3]), &Layout::plain(&[3, 2]), &team).is_none());
    }
}
