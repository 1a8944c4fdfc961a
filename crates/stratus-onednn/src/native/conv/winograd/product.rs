//! A product of matrices of floats: as many rows and columns at a time as have their sums in registers.

use crate::native::lanes::{LANES, Lanes};

/// Rows of which the sums are in registers.
pub const ROWS: usize = 8;
/// Columns that lie together.
pub const PANEL: usize = 2 * LANES;

/// The left matrix: the element of row `r` and column `k` lies at `r * apart[0] + k * apart[1]`.
#[derive(Clone, Copy)]
pub struct Left<'a> {
    pub elements: &'a [f32],
    pub apart: [usize; 2],
}

/// Columns of the right matrix, a register of them each: the elements of row `k` begin at `k * apart`.
#[derive(Clone, Copy)]
pub struct Right<'a, const WIDE: usize> {
    pub registers: [&'a [f32]; WIDE],
    pub apart: usize,
}

/// `to (+)= left * right`, for `rows` rows, a multiple of [`ROWS`], and sums over `terms` products. The rows of `to` begin `stride` elements apart.
///
/// # Safety
/// Of [`Lanes`].
#[inline(always)]
pub unsafe fn product<V: Lanes, const WIDE: usize>(
    left: Left<'_>,
    right: Right<'_, WIDE>,
    to: &mut [f32],
    stride: usize,
    [rows, terms]: [usize; 2],
    add: bool,
) {
    let last = |count: usize| count.saturating_sub(1);
    let end = last(rows) * left.apart[0] + last(terms) * left.apart[1];
    assert!(
        rows.is_multiple_of(ROWS)
            && left.elements.len() > end
            && right.registers.iter().all(|register| register.len() >= last(terms) * right.apart + LANES)
            && to.len() >= last(rows) * stride + WIDE * LANES,
        "matrices of other sizes"
    );
    for row in (0..rows).step_by(ROWS) {
        // SAFETY: the rows and columns lie within the matrices, as was asserted.
        unsafe {
            let from = left.elements.as_ptr().add(row * left.apart[0]);
            tile::<V, WIDE>(from, left.apart, right, to.as_mut_ptr().add(row * stride), stride, terms, add);
        }
    }
}

/// # Safety
/// Of [`Lanes`]; [`ROWS`] rows and `WIDE` registers of columns lie within the matrices.
#[inline(always)]
unsafe fn tile<V: Lanes, const WIDE: usize>(
    left: *const f32,
    apart: [usize; 2],
    right: Right<'_, WIDE>,
    to: *mut f32,
    stride: usize,
    terms: usize,
    add: bool,
) {
    // SAFETY: the caller's.
    unsafe {
        let at = |row: usize, part: usize| to.add(row * stride + part * LANES).cast::<[f32; LANES]>();
        let mut sums = [[V::splat(0.0); WIDE]; ROWS];
        if add {
            for (row, sums) in sums.iter_mut().enumerate() {
                for (part, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(&*at(row, part));
                }
            }
        }
        for term in 0..terms {
            let mut factors = [V::splat(0.0); WIDE];
            for (factor, register) in factors.iter_mut().zip(right.registers) {
                *factor = V::load(&*register.as_ptr().add(term * right.apart).cast());
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let value = V::splat(*left.add(row * apart[0] + term * apart[1]));
                for (sum, factor) in sums.iter_mut().zip(factors) {
                    *sum = value.multiply_add(factor, *sum);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (part, sum) in sums.iter().enumerate() {
                sum.store(&mut *at(row, part));
            }
        }
    }
}
