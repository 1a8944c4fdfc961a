//! A product of `f32` matrices whose sums stay in registers.
//!
//! With AVX-512 they are eight rows by one or two registers of sixteen columns, 16 of 32 registers; each term
//! is 2 loads of the right matrix and 8 broadcasts of the left one for 16 multiply-adds. With AVX2 they are
//! four rows by sixteen columns, 8 of 16 registers, which hide the latency of multiply-adds; each term is 2
//! loads and 4 broadcasts for 8 multiply-adds. The right matrix is packed in panels of 32 columns, `[K, 32]`,
//! so that it is read in order.

use crate::native::lanes::{LANES, Lanes};

/// The rows of a product are a multiple of this.
pub const ROWS: usize = 8;
/// The rows of a tile if [`ROWS`] do not fit in registers.
const FEW_ROWS: usize = 4;
/// The columns of a panel.
pub const PANEL: usize = 2 * LANES;

/// The left matrix: element `[r, k]` is at `r * strides[0] + k * strides[1]`.
#[derive(Clone, Copy)]
pub struct LeftMatrix<'a> {
    pub elements: &'a [f32],
    pub strides: [usize; 2],
}

/// One panel of the right matrix, or its first half: a slice per register of columns, whose row `k` starts at
/// `k * stride`.
#[derive(Clone, Copy)]
pub struct RightPanel<'a, const WIDE: usize> {
    pub registers: [&'a [f32]; WIDE],
    pub stride: usize,
}

/// `to = left * right`, or `to += left * right` if `add`: `rows`, a multiple of [`ROWS`], sums over `terms`.
/// Rows of `to` are `stride` elements apart.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
pub unsafe fn product<V: Lanes, const WIDE: usize>(
    left: LeftMatrix<'_>,
    right: RightPanel<'_, WIDE>,
    to: &mut [f32],
    stride: usize,
    [rows, terms]: [usize; 2],
    add: bool,
) {
    let last = |count: usize| count.saturating_sub(1);
    let end = last(rows) * left.strides[0] + last(terms) * left.strides[1];
    assert!(
        rows.is_multiple_of(ROWS)
            && left.elements.len() > end
            && right.registers.iter().all(|register| register.len() >= last(terms) * right.stride + LANES)
            && to.len() >= last(rows) * stride + WIDE * LANES,
        "unexpected matrix sizes"
    );
    let start = to.as_mut_ptr();
    for row in (0..rows).step_by(ROWS) {
        // SAFETY: the rows and columns are within the matrices, as was asserted.
        unsafe {
            let from = |row: usize| left.elements.as_ptr().add(row * left.strides[0]);
            let to = |row: usize| start.add(row * stride);
            if const { V::MAX_SUMS >= ROWS * WIDE } {
                tile::<V, ROWS, WIDE>(from(row), left.strides, right, to(row), stride, terms, add);
                continue;
            }
            const { assert!(V::MAX_SUMS >= FEW_ROWS) };
            for (part, register) in right.registers.into_iter().enumerate() {
                let right = RightPanel { registers: [register], stride: right.stride };
                for row in [row, row + FEW_ROWS] {
                    let to = to(row).add(part * LANES);
                    tile::<V, FEW_ROWS, 1>(from(row), left.strides, right, to, stride, terms, add);
                }
            }
        }
    }
}

/// # Safety
/// As [`Lanes`] requires; `HEIGHT` rows and `WIDE` registers of columns must be within the matrices.
#[inline(always)]
unsafe fn tile<V: Lanes, const HEIGHT: usize, const WIDE: usize>(
    left: *const f32,
    strides: [usize; 2],
    right: RightPanel<'_, WIDE>,
    to: *mut f32,
    stride: usize,
    terms: usize,
    add: bool,
) {
    // SAFETY: upheld by the caller.
    unsafe {
        let at = |row: usize, part: usize| to.add(row * stride + part * LANES).cast::<[f32; LANES]>();
        let mut sums = [[V::splat(0.0); WIDE]; HEIGHT];
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
                *factor = V::load(&*register.as_ptr().add(term * right.stride).cast());
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let value = V::splat(*left.add(row * strides[0] + term * strides[1]));
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
