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

/// `to (+)= left * right`, for `rows` rows, a multiple of [`ROWS`], sums over `terms` products, and `columns` columns: the whole panel `right` or
/// the first half of it, row by row. The rows of `to` begin `stride` elements apart.
///
/// # Safety
/// Of [`Lanes`].
#[inline(always)]
pub unsafe fn product<V: Lanes>(
    left: Left<'_>,
    right: &[f32],
    to: &mut [f32],
    stride: usize,
    [rows, terms, columns]: [usize; 3],
    add: bool,
) {
    let Left { elements, apart } = left;
    let end =
        |rows: usize, terms: usize| rows.saturating_sub(1) * apart[0] + terms.saturating_sub(1) * apart[1];
    assert!(
        rows.is_multiple_of(ROWS)
            && (columns == PANEL || columns == LANES)
            && elements.len() > end(rows, terms)
            && right.len() >= PANEL * terms
            && to.len() >= rows.saturating_sub(1) * stride + columns,
        "matrices of other sizes"
    );
    for row in (0..rows).step_by(ROWS) {
        // SAFETY: the rows and columns lie within the matrices, as was asserted.
        unsafe {
            let (left, to) = (elements.as_ptr().add(row * apart[0]), to.as_mut_ptr().add(row * stride));
            if columns == PANEL {
                tile::<V, 2>(left, apart, right.as_ptr(), to, stride, terms, add);
            } else {
                tile::<V, 1>(left, apart, right.as_ptr(), to, stride, terms, add);
            }
        }
    }
}

/// # Safety
/// Of [`Lanes`]; [`ROWS`] rows and `WIDE` registers of columns lie within the matrices.
#[inline(always)]
unsafe fn tile<V: Lanes, const WIDE: usize>(
    left: *const f32,
    apart: [usize; 2],
    right: *const f32,
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
            for (part, factor) in factors.iter_mut().enumerate() {
                *factor = V::load(&*right.add(term * PANEL + part * LANES).cast());
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
