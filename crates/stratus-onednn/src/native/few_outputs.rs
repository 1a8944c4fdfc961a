//! Matrix products over few terms: the data gradient of a classifier with few outputs, `dx[N, I] = dy[N, O] ×
//! w[O, I]`.
//!
//! General kernels pack both matrices and keep partial sums between passes over K. With K ≤ 32 that is
//! unnecessary: each element of the result is summed in a register and stored once, four rows by two
//! registers at a time. Threads divide rows.

use super::elementwise::CpuContext;
use super::lanes::{LANES, LaneElement, Lanes, with_lanes};
use super::threads::{split, split_lengths};

/// The maximum number of terms: with more, the second matrix leaves L1 between two rows of the first.
const MAX_TERMS: usize = 32;

/// Rows computed together, to reuse loads of the second matrix.
const ROWS: usize = 4;

/// `y = a b`, all row-major: `[rows, terms] × [terms, columns]`.
#[derive(Clone)]
pub struct FewOutputsProduct {
    rows: usize,
    terms: usize,
    columns: usize,
    cpu: CpuContext,
}

impl FewOutputsProduct {
    /// The kernel for a product; `None` if it does not support these sizes.
    #[must_use]
    pub fn new(rows: usize, terms: usize, columns: usize, cpu: &CpuContext) -> Option<Self> {
        let is_supported = (1..=MAX_TERMS).contains(&terms) && columns >= LANES;
        is_supported.then(|| Self { rows, terms, columns, cpu: cpu.clone() })
    }

    /// `y = a b`.
    pub fn run<E: LaneElement>(&self, a: &[E], b: &[E], y: &mut [E]) {
        let threads = self.cpu.team.threads();
        let rows = |thread: usize| split(self.rows, threads, thread);
        let mut parts = split_lengths(y, (0..threads).map(|thread| rows(thread).len() * self.columns));
        self.cpu.team.run_parts(&mut parts[..threads], &|thread, y| {
            let rows = rows(thread);
            let a = &a[rows.start * self.terms..rows.end * self.terms];
            product(self.cpu.level, a, b, [self.terms, self.columns], y);
        });
    }
}

with_lanes! { fn product / product_body(a: &[E], b: &[E], sizes: [usize; 2], y: &mut [E]) }

/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn product_body<V: Lanes, E: LaneElement>(
    a: &[E],
    b: &[E],
    [terms, columns]: [usize; 2],
    y: &mut [E],
) {
    let (mut a, mut y) = (a.chunks_exact(ROWS * terms), y.chunks_exact_mut(ROWS * columns));
    for (a, y) in (&mut a).zip(&mut y) {
        // SAFETY: upheld by the caller, here and below.
        unsafe { some_rows::<V, E, ROWS>(a, b, [terms, columns], y) };
    }
    let rest = a.remainder().chunks_exact(terms).zip(y.into_remainder().chunks_exact_mut(columns));
    for (a, y) in rest {
        unsafe { some_rows::<V, E, 1>(a, b, [terms, columns], y) };
    }
}

/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn some_rows<V: Lanes, E: LaneElement, const R: usize>(
    a: &[E],
    b: &[E],
    [terms, columns]: [usize; 2],
    y: &mut [E],
) {
    let mut factors = [[0f32; R]; MAX_TERMS];
    for (row, a) in a.chunks_exact(terms).enumerate() {
        for (factors, a) in factors.iter_mut().zip(a) {
            factors[row] = a.load();
        }
    }
    let factors = &factors[..terms];
    let mut at = 0;
    // SAFETY: upheld by the caller, here and below.
    while at + 2 * LANES <= columns {
        unsafe { block::<V, E, R, 2>(factors, b, columns, at, y) };
        at += 2 * LANES;
    }
    if at + LANES <= columns {
        unsafe { block::<V, E, R, 1>(factors, b, columns, at, y) };
        at += LANES;
    }
    if at < columns {
        // The last columns overlap some that are already stored, with the same values.
        unsafe { block::<V, E, R, 1>(factors, b, columns, columns - LANES, y) };
    }
}

/// `N` registers of columns from `at` on, of `R` rows.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn block<V: Lanes, E: LaneElement, const R: usize, const N: usize>(
    factors: &[[f32; R]],
    b: &[E],
    columns: usize,
    at: usize,
    y: &mut [E],
) {
    // SAFETY: upheld by the caller, here and below.
    let mut sums = [[unsafe { V::splat(0.0) }; N]; R];
    for (factors, b) in factors.iter().zip(b.chunks_exact(columns)) {
        let b: &[[E; LANES]] = b[at..at + N * LANES].as_chunks().0;
        for n in 0..N {
            let b = unsafe { E::load_lanes::<V>(&b[n]) };
            for row in 0..R {
                sums[row][n] = unsafe { b.multiply_add(V::splat(factors[row]), sums[row][n]) };
            }
        }
    }
    for (row, sums) in sums.into_iter().enumerate() {
        let from = row * columns + at;
        let y: &mut [[E; LANES]] = y[from..from + N * LANES].as_chunks_mut().0;
        for n in 0..N {
            unsafe { E::store_lanes(sums[n], &mut y[n]) };
        }
    }
}
