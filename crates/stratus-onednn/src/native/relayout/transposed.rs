//! Transposed tiles, whose inner dimension is contiguous in the source and whose outer one is contiguous in
//! the target: 16×16 squares are transposed in registers.

use super::{CopyTile, RUN_ELEMENTS};
use crate::native::lanes::{Avx512, LANES, LaneElement, Lanes};
use crate::native::simd::{Isa, IsaLevel, prefetch_l2};

const _: () = assert!(RUN_ELEMENTS == LANES);

/// Copies a tile as [`super::copy_tile_body`] does; rows and columns are whole runs. With `pairs`, the target
/// has columns in pairs.
///
/// # Panics
/// Without AVX-512.
pub(super) fn copy_tile<X: LaneElement, Y: LaneElement>(
    level: IsaLevel,
    tile: &CopyTile<'_>,
    pairs: bool,
    x: &[X],
    y: &mut [Y],
) {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma,avx2")]
    fn avx512<X: LaneElement, Y: LaneElement>(tile: &CopyTile<'_>, pairs: bool, x: &[X], y: &mut [Y]) {
        // SAFETY: the function has the instructions.
        unsafe { body::<Avx512, X, Y>(tile, pairs, x, y) }
    }
    assert_eq!(level.isa(), Isa::Avx512, "transposing without AVX-512");
    // SAFETY: the level proves that the CPU has these instructions.
    unsafe { avx512(tile, pairs, x, y) }
}

/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn body<V: Lanes, X: LaneElement, Y: LaneElement>(
    tile: &CopyTile<'_>,
    pairs: bool,
    x: &[X],
    y: &mut [Y],
) {
    let &CopyTile { rows, columns, from, to, first } = tile;
    let [from_rows, to_rows] = rows.map(|offsets| offsets.as_chunks::<RUN_ELEMENTS>().0);
    let [from_columns, to_columns] = columns.map(|offsets| offsets.as_chunks::<RUN_ELEMENTS>().0);
    for (from_rows, to_rows) in from_rows.iter().zip(to_rows) {
        for (from_columns, to_columns) in from_columns.iter().zip(to_columns) {
            // SAFETY: upheld by the caller.
            unsafe {
                let mut square = [V::splat(0.0); RUN_ELEMENTS];
                for (row, &offset) in square.iter_mut().zip(from_rows) {
                    let at = from + offset + from_columns[0];
                    *row = X::load_lanes(run(&x[at..at + RUN_ELEMENTS]));
                    // The next tile.
                    let ahead = at + columns[0].len();
                    prefetch_l2(x.get(ahead..=ahead).unwrap_or(&[]));
                }
                let square = V::transpose(square);
                let at = to + to_rows[0];
                if pairs {
                    for (columns, offsets) in
                        square.as_chunks::<2>().0.iter().zip(to_columns.as_chunks::<2>().0)
                    {
                        let mut both = [[Y::store(0.0); RUN_ELEMENTS]; 2];
                        Y::store_lanes(columns[0], &mut both[0]);
                        Y::store_lanes(columns[1], &mut both[1]);
                        let y = &mut y[at + offsets[0] - first..][..2 * RUN_ELEMENTS];
                        for lane in 0..RUN_ELEMENTS {
                            y[2 * lane] = both[0][lane];
                            y[2 * lane + 1] = both[1][lane];
                        }
                    }
                } else {
                    for (&column, offset) in square.iter().zip(to_columns) {
                        Y::store_lanes(column, run_mut(&mut y[at + offset - first..][..RUN_ELEMENTS]));
                    }
                }
            }
        }
    }
}

/// `slice` as one run.
#[inline(always)]
fn run<E>(slice: &[E]) -> &[E; LANES] {
    &slice.as_chunks().0[0]
}

/// `slice` as one run.
#[inline(always)]
fn run_mut<E>(slice: &mut [E]) -> &mut [E; LANES] {
    &mut slice.as_chunks_mut().0[0]
}
