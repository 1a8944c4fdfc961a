//! The same numbers in another layout, another type, or both: weights on their way to a kernel that wants them in blocks.
//!
//! Where an element lies is a sum of one term per dimension, in any layout that blocks make: a table per dimension says where all of them are. Tiles
//! over the two largest dimensions keep what is read and what is written in the nearest cache, whatever the orders are.

#[cfg(target_arch = "x86_64")]
mod transposed;

use super::elementwise::CpuContext;
use super::lanes::LaneElement;
use super::simd::{Isa, multiversion};
use super::threads::{cut, split};
use std::ops::Range;
use stratus_engine::Layout;

/// Indices of a tile along the outer and the inner one of its dimensions.
const TILE: [usize; 2] = [16, 32];

/// The same where it is transposed: it is long where the target is written in long stretches, along the outer dimension, or in blocks, along the inner one.
const TRANSPOSED_TILE: [usize; 2] = [256, 16];
const PAIRED_TILE: [usize; 2] = [16, 256];

/// Numbers that are moved at once, where they are neighbours before and after.
const RUN: usize = 16;

/// The most dimensions.
const MOST: usize = 6;

/// A change of layout.
#[derive(Clone)]
pub struct Relayout {
    shape: Vec<usize>,
    /// Per dimension and index its part of the element's place: in the source, in the target.
    places: [Vec<Vec<usize>>; 2],
    /// The dimensions of a tile, the inner one last.
    tiled: [usize; 2],
    /// How tiles are brought.
    way: Way,
    /// The target's outermost dimension, by which threads share the work: its index advances by so much.
    outermost: usize,
    /// Indices of that dimension that a stretch of the target holds, and the stretch's elements.
    stretch: [usize; 2],
    /// Whether the target has elements that are padding.
    pads: bool,
    elements: usize,
    cpu: CpuContext,
}

/// How the elements of a tile are brought, but for those at its end that are less than a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// One by one.
    Each,
    /// [`RUN`] at a time: so many indices of the inner dimension are neighbours, in the source and in the target.
    Runs,
    /// [`RUN`] by [`RUN`]: so many indices of the inner dimension are neighbours in the source, of the outer one in the target.
    Transposed,
    /// The same where the target has the inner dimension's indices in pairs, which is how products of pairs of bf16 take them.
    TransposedPairs,
}

/// The places of one dimension's indices.
fn places(layout: &Layout, dimension: usize) -> Vec<usize> {
    let mut index = vec![0; layout.shape.len()];
    let place = |at: usize| {
        index[dimension] = at;
        layout.offset(&index)
    };
    (0..layout.shape[dimension]).map(place).collect()
}

impl Relayout {
    /// The way from one layout to another of the same shape; `None` where another kernel has to go it.
    #[must_use]
    pub fn new(from: &Layout, to: &Layout, cpu: &CpuContext) -> Option<Self> {
        let shape = &to.shape;
        if from.shape != *shape || !(2..=MOST).contains(&shape.len()) || shape.contains(&0) {
            return None;
        }
        let mut by_extent: Vec<usize> = (0..shape.len()).collect();
        by_extent.sort_by_key(|&dimension| (std::cmp::Reverse(shape[dimension]), dimension));
        let innermost = to.blocks.last().map(|&(dimension, _)| dimension);
        let places = [from, to].map(|layout| (0..shape.len()).map(|d| places(layout, d)).collect::<Vec<_>>());
        let in_runs = |d: &usize| places.iter().all(|places| are_runs(&places[*d], 1));
        let [first, second] = [by_extent[0], by_extent[1]];
        let of_runs = by_extent.iter().copied().find(in_runs);
        let (way, tiled) = match (of_runs, transposed(&places, &by_extent)) {
            (Some(inner), _) => (Way::Runs, [if inner == first { second } else { first }, inner]),
            (None, Some(transposed)) if cpu.level.isa() == Isa::Avx512 => transposed,
            _ if innermost == Some(first) => (Way::Each, [second, first]),
            _ if innermost != Some(second) && from.strides[first] == 1 => (Way::Each, [second, first]),
            _ => (Way::Each, [first, second]),
        };
        // Threads write stretches of the target: along the dimension of the largest stride, a block at a time.
        let outermost =
            (0..shape.len()).filter(|&d| to.padded[d] > block(to, d)).max_by_key(|&d| to.strides[d]);
        let outermost = outermost.unwrap_or(0);
        let mut stretch = [block(to, outermost), to.strides[outermost]];
        if stretch[1] * (to.padded[outermost] / stretch[0]) != to.elements() {
            stretch = [to.padded[outermost], to.elements()];
        }
        let pads = to.elements() != shape.iter().product::<usize>();
        let (shape, elements, cpu) = (shape.clone(), to.elements(), cpu.clone());
        Some(Self { shape, places, tiled, way, outermost, stretch, pads, elements, cpu })
    }

    /// Whether squares of numbers are transposed in registers.
    #[must_use]
    pub fn transposes(&self) -> bool {
        matches!(self.way, Way::Transposed | Way::TransposedPairs)
    }

    /// Goes it.
    pub fn run<X: LaneElement, Y: LaneElement>(&self, x: &[X], y: &mut [Y]) {
        let threads = self.cpu.team.threads();
        let [indices, elements] = self.stretch;
        let stretches = |thread| split(self.elements / elements, threads, thread);
        let mut parts = cut(y, (0..threads).map(|thread| stretches(thread).len() * elements));
        self.cpu.team.run_parts(&mut parts[..threads], &|thread, y| {
            if self.pads {
                y.fill(Y::store(0.0));
            }
            let Range { start, end } = stretches(thread);
            let most = self.shape[self.outermost];
            let mut ranges: [Range<usize>; MOST] =
                std::array::from_fn(|d| 0..self.shape.get(d).copied().unwrap_or(1));
            ranges[self.outermost] = (start * indices).min(most)..(end * indices).min(most);
            self.part(&ranges, start * elements, x, y);
        });
    }

    /// Brings the elements of some ranges of indices; `y` begins at place `first` of the target.
    fn part<X: LaneElement, Y: LaneElement>(
        &self,
        ranges: &[Range<usize>; MOST],
        first: usize,
        x: &[X],
        y: &mut [Y],
    ) {
        let [outer, inner] = self.tiled;
        let tile = match self.way {
            Way::Each | Way::Runs => TILE,
            Way::Transposed => TRANSPOSED_TILE,
            Way::TransposedPairs => PAIRED_TILE,
        };
        for outers in tiles(&ranges[outer], tile[0]) {
            for inners in tiles(&ranges[inner], tile[1]) {
                let in_runs = |indices: &Range<usize>| {
                    indices.start.is_multiple_of(RUN) && indices.end.is_multiple_of(RUN)
                };
                let way = match self.way {
                    Way::Each => Way::Each,
                    way if in_runs(&inners) && (!self.transposes() || in_runs(&outers)) => way,
                    _ => Way::Each,
                };
                let mut ranges = ranges.clone();
                (ranges[outer], ranges[inner]) =
                    (outers.start..outers.start + 1, inners.start..inners.start + 1);
                let rows = [&self.places[0][outer][outers.clone()], &self.places[1][outer][outers.clone()]];
                let columns =
                    [&self.places[0][inner][inners.clone()], &self.places[1][inner][inners.clone()]];
                self.each(&ranges, |mut from, mut to| {
                    // The tile's first element is in its rows and columns too.
                    from -= rows[0][0] + columns[0][0];
                    to -= rows[1][0] + columns[1][0];
                    let tile = Tile { rows, columns, from, to, first };
                    let level = self.cpu.level;
                    match way {
                        Way::Each | Way::Runs => bring(level, &tile, way == Way::Runs, x, y),
                        // Nobody goes this way on another processor.
                        Way::Transposed | Way::TransposedPairs => {
                            #[cfg(target_arch = "x86_64")]
                            transposed::bring(level, &tile, way == Way::TransposedPairs, x, y);
                        }
                    }
                });
            }
        }
    }

    /// Calls `visit` with the two places of every element of some ranges.
    fn each(&self, ranges: &[Range<usize>; MOST], mut visit: impl FnMut(usize, usize)) {
        let dimensions = self.shape.len();
        if ranges[..dimensions].iter().any(Range::is_empty) {
            return;
        }
        let mut index: [usize; MOST] = std::array::from_fn(|d| ranges[d].start);
        loop {
            let place = |of: &[Vec<usize>]| of.iter().zip(&index).map(|(places, &at)| places[at]).sum();
            visit(place(&self.places[0]), place(&self.places[1]));
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

/// How a tile can be transposed, and its dimensions, the inner one last; the largest that there are.
fn transposed(places: &[Vec<Vec<usize>>; 2], by_extent: &[usize]) -> Option<(Way, [usize; 2])> {
    let [from, to] = places;
    let inner = by_extent.iter().copied().find(|&d| are_runs(&from[d], 1))?;
    let outer = |apart: usize| by_extent.iter().copied().find(|&d| d != inner && are_runs(&to[d], apart));
    let in_pairs = || to[inner].as_chunks::<2>().0.iter().all(|[even, odd]| even + 1 == *odd);
    match (outer(1), outer(2)) {
        (Some(outer), _) => Some((Way::Transposed, [outer, inner])),
        (None, Some(outer)) if in_pairs() => Some((Way::TransposedPairs, [outer, inner])),
        _ => None,
    }
}

/// Whether places are so far apart, [`RUN`] at a time, but for what is left at the end.
fn are_runs(places: &[usize], apart: usize) -> bool {
    let (runs, _) = places.as_chunks::<RUN>();
    let is_run =
        |run: &[usize; RUN]| run.iter().zip((run[0]..).step_by(apart)).all(|(&place, next)| place == next);
    !runs.is_empty() && runs.iter().all(is_run)
}

/// A dimension's indices in one block.
fn block(layout: &Layout, dimension: usize) -> usize {
    layout.blocks.iter().filter(|block| block.0 == dimension).map(|block| block.1).product()
}

/// A range in pieces that begin at multiples of `length`.
fn tiles(range: &Range<usize>, length: usize) -> impl Iterator<Item = Range<usize>> {
    let Range { start, end } = range.clone();
    (start / length..end.div_ceil(length))
        .map(move |tile| (tile * length).max(start)..((tile + 1) * length).min(end))
        .filter(|piece| !piece.is_empty())
}

/// Elements that are brought together, by rows and columns. Each adds its part to an element's place, in the source and in the target.
struct Tile<'a> {
    rows: [&'a [usize]; 2],
    columns: [&'a [usize]; 2],
    /// What the source's parts begin from.
    from: usize,
    /// What the target's parts begin from, and the place that the target's slice begins with.
    to: usize,
    first: usize,
}

multiversion! {
    fn bring / bring_body [X: LaneElement, Y: LaneElement] [X, Y] (
        tile: &Tile<'_>, runs: bool, x: &[X], y: &mut [Y]
    )
}

/// Brings a tile. `runs` says that columns are neighbours, [`RUN`] at a time.
#[inline(always)]
fn bring_body<X: LaneElement, Y: LaneElement>(tile: &Tile<'_>, runs: bool, x: &[X], y: &mut [Y]) {
    let &Tile { rows, columns, from, to, first } = tile;
    for (&row, &to_row) in rows[0].iter().zip(rows[1]) {
        let (x, place) = (&x[from + row..], to + to_row);
        if runs {
            for (&column, &to_column) in columns[0].iter().step_by(RUN).zip(columns[1].iter().step_by(RUN)) {
                let y = &mut y[place + to_column - first..][..RUN];
                x[column..][..RUN].iter().zip(y).for_each(|(x, y)| *y = Y::store(x.load()));
            }
            continue;
        }
        for (&column, &to_column) in columns[0].iter().zip(columns[1]) {
            y[place + to_column - first] = Y::store(x[column].load());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::simd::{Bf16, Level};
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

    /// Every element is where the target has it, and padding is zero.
    fn check<X: LaneElement, Y: LaneElement>(from: &Layout, to: &Layout, threads: usize) {
        let number = |plain: usize| (plain % 251) as f32 - 100.0;
        let mut x = vec![X::store(f32::NAN); from.elements()];
        from.for_each(&from.shape, |at, plain| x[at] = X::store(number(plain)));
        let mut expected = vec![0.0; to.elements()];
        to.for_each(&to.shape, |at, plain| expected[at] = number(plain));
        for level in Level::all() {
            let cpu = CpuContext { team: ThreadTeam::in_turn(threads), level };
            let relayout = Relayout::new(from, to, &cpu).unwrap();
            let mut y = vec![Y::store(f32::NAN); to.elements()];
            relayout.run(&x, &mut y);
            let y: Vec<f32> = y.iter().map(|y| y.load()).collect();
            assert!(y == expected, "{from:?} {to:?} {} threads {threads}", level.name());
        }
    }

    proptest! {
        #[test]
        fn every_element_arrives(
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

    /// Whole squares, what is less than one, and the blocks that products of pairs want.
    #[test]
    fn matrices_are_transposed() {
        let targets = |shape: &[usize]| {
            [
                (layout(shape, &[1, 0], &[]), Way::Transposed),
                (layout(shape, &[0, 1], &[(1, 16), (0, 32)]), Way::Transposed),
                (layout(shape, &[0, 1], &[(1, 8), (0, 64), (1, 2)]), Way::TransposedPairs),
                (layout(shape, &[1, 0], &[(0, 16), (1, 2)]), Way::TransposedPairs),
            ]
        };
        for shape in [[64, 48], [300, 272], [70, 530]] {
            for (to, way) in targets(&shape) {
                let from = Layout::plain(&shape);
                let cpu = CpuContext { team: ThreadTeam::single(), level: Level::detect([true, true]) };
                if cpu.level.isa() == Isa::Avx512 {
                    assert_eq!(Relayout::new(&from, &to, &cpu).unwrap().way, way, "{to:?}");
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
    fn shapes_must_be_equal() {
        let team = CpuContext { team: ThreadTeam::single(), level: Level::detect([true, true]) };
        assert!(Relayout::new(&Layout::plain(&[2, 3]), &Layout::plain(&[3, 2]), &team).is_none());
    }
}
