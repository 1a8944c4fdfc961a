//! The transforms of minimal filtering: Bᵀ d B of patches, G g Gᵀ of filters, Aᵀ m A of products.
//!
//! They evaluate and interpolate polynomials at the points 0, ±p, ±q, ∞ with p = 5/8 and q = 3/2. The choice
//! of points determines the rounding error: for a sum over 256 channels it is 1.2e-6 of the result's norm
//! here, 2.5e-6 with the usual 0, ±1, ±2, ∞, and 0.6e-6 for a plain sum in order.
//!
//! ```text
//!       ⎡p²q²    0  -(p²+q²)    0    1  0⎤          ⎡1/(p²q²)  0   0  ⎤  P = 1/(2p²(p²-q²))
//!       ⎢  0  -pq²    -q²       p    1  0⎥          ⎢    P    pP  p²P ⎥  Q = 1/(2q²(q²-p²))
//!  Bᵀ = ⎢  0   pq²    -q²      -p    1  0⎥      G = ⎢    P   -pP  p²P ⎥
//!       ⎢  0  -p²q    -p²       q    1  0⎥          ⎢    Q    qQ  q²Q ⎥   (r = 3; further columns
//!       ⎢  0   p²q    -p²      -q    1  0⎥          ⎢    Q   -qQ  q²Q ⎥    are further powers)
//!       ⎣  0  p²q²     0   -(p²+q²)  0  1⎦          ⎣    0     0   1  ⎦
//!
//!  Aᵀ row k = [ 0^k   p^k  (-p)^k   q^k  (-q)^k   1 if k = m-1 else 0 ]
//! ```

use super::ALPHA;
use crate::native::lanes::Lanes;

/// The points other than 0 and ∞ are ±p and ±q.
const P: f32 = 0.625;
const Q: f32 = 1.5;
const P2: f32 = P * P;
const Q2: f32 = Q * Q;

/// Bᵀ d.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
pub(super) unsafe fn input_transform_1d<V: Lanes>(d: [V; ALPHA]) -> [V; ALPHA] {
    // SAFETY: upheld by the caller.
    unsafe {
        let c = |value: f32| V::splat(value);
        let (both, sum) = (c(P2 * Q2), c(-(P2 + Q2)));
        // The odd parts already contain their factors, so that the butterflies are additions, which other
        // units execute.
        let odd_p = d[1].multiply_add(c(-Q2 * P), d[3].multiply_add(c(P), c(0.0)));
        let odd_q = d[1].multiply_add(c(-P2 * Q), d[3].multiply_add(c(Q), c(0.0)));
        let (even_p, even_q) = (d[2].multiply_add(c(-Q2), d[4]), d[2].multiply_add(c(-P2), d[4]));
        [
            d[0].multiply_add(both, d[2].multiply_add(sum, d[4])),
            even_p.add(odd_p),
            odd_p.multiply_add(c(-1.0), even_p),
            even_q.add(odd_q),
            odd_q.multiply_add(c(-1.0), even_q),
            d[1].multiply_add(both, d[3].multiply_add(sum, d[5])),
        ]
    }
}

/// G g of two to five taps, including the normalisation of the interpolation.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
pub(super) unsafe fn filter_transform_1d<V: Lanes, const COUNT: usize>(g: [V; COUNT]) -> [V; ALPHA] {
    const SCALE_P: f32 = 1.0 / (2.0 * P2 * (P2 - Q2));
    const SCALE_Q: f32 = 1.0 / (2.0 * Q2 * (Q2 - P2));
    // SAFETY: upheld by the caller.
    unsafe {
        let c = |value: f32| V::splat(value);
        let none = c(0.0);
        let (mut even_p, mut odd_p) =
            (g[0].multiply_add(c(SCALE_P), none), g[1].multiply_add(c(P * SCALE_P), none));
        let (mut even_q, mut odd_q) =
            (g[0].multiply_add(c(SCALE_Q), none), g[1].multiply_add(c(Q * SCALE_Q), none));
        if COUNT > 2 {
            even_p = g[2].multiply_add(c(P2 * SCALE_P), even_p);
            even_q = g[2].multiply_add(c(Q2 * SCALE_Q), even_q);
        }
        if COUNT > 3 {
            odd_p = g[3].multiply_add(c(P * P2 * SCALE_P), odd_p);
            odd_q = g[3].multiply_add(c(Q * Q2 * SCALE_Q), odd_q);
        }
        if COUNT > 4 {
            even_p = g[4].multiply_add(c(P2 * P2 * SCALE_P), even_p);
            even_q = g[4].multiply_add(c(Q2 * Q2 * SCALE_Q), even_q);
        }
        [
            g[0].multiply_add(c(1.0 / (P2 * Q2)), none),
            even_p.add(odd_p),
            odd_p.multiply_add(c(-1.0), even_p),
            even_q.add(odd_q),
            odd_q.multiply_add(c(-1.0), even_q),
            g[COUNT - 1],
        ]
    }
}

/// Aᵀ m, two to five outputs.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
pub(super) unsafe fn output_transform_1d<V: Lanes, const COUNT: usize>(m: [V; ALPHA]) -> [V; COUNT] {
    // SAFETY: upheld by the caller.
    unsafe {
        let c = |value: f32| V::splat(value);
        let (sum_p, difference_p) = (m[1].add(m[2]), m[2].multiply_add(c(-1.0), m[1]));
        let (sum_q, difference_q) = (m[3].add(m[4]), m[4].multiply_add(c(-1.0), m[3]));
        let last = |power: usize| if power + 1 == COUNT { m[5] } else { c(0.0) };
        let mut y = [m[0].add(sum_p).add(sum_q); COUNT];
        y[1] = difference_p.multiply_add(c(P), difference_q.multiply_add(c(Q), last(1)));
        if COUNT > 2 {
            y[2] = sum_p.multiply_add(c(P2), sum_q.multiply_add(c(Q2), last(2)));
        }
        if COUNT > 3 {
            y[3] = difference_p.multiply_add(c(P * P2), difference_q.multiply_add(c(Q * Q2), last(3)));
        }
        if COUNT > 4 {
            y[4] = sum_p.multiply_add(c(P2 * P2), sum_q.multiply_add(c(Q2 * Q2), last(4)));
        }
        y
    }
}

#[inline(always)]
fn column_of<V: Lanes, const HEIGHT: usize, const WIDTH: usize>(
    rows: &[[V; WIDTH]; HEIGHT],
    column: usize,
) -> [V; HEIGHT] {
    let mut values = [rows[0][column]; HEIGHT];
    for (value, row) in values.iter_mut().zip(rows) {
        *value = row[column];
    }
    values
}

/// Rows `FIRST..FIRST + ROWS` of G g Gᵀ.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
pub(super) unsafe fn filter_transform<V: Lanes, const COUNT: usize, const FIRST: usize, const ROWS: usize>(
    g: [[V; COUNT]; COUNT],
) -> [[V; ALPHA]; ROWS] {
    // SAFETY: upheld by the caller.
    unsafe {
        // Columns first: unneeded rows cost no second pass.
        let mut rows = [[g[0][0]; COUNT]; ROWS];
        for column in 0..COUNT {
            let line = filter_transform_1d(column_of(&g, column));
            for (row, value) in rows.iter_mut().zip(line.into_iter().skip(FIRST)) {
                row[column] = value;
            }
        }
        let mut plane = [[g[0][0]; ALPHA]; ROWS];
        for (to, row) in plane.iter_mut().zip(rows) {
            *to = filter_transform_1d(row);
        }
        plane
    }
}

/// Aᵀ m A.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
pub(super) unsafe fn output_transform<V: Lanes, const COUNT: usize>(
    m: [[V; ALPHA]; ALPHA],
) -> [[V; COUNT]; COUNT] {
    // SAFETY: upheld by the caller.
    unsafe {
        let mut rows = [[m[0][0]; COUNT]; ALPHA];
        for (row, m) in rows.iter_mut().zip(m) {
            *row = output_transform_1d(m);
        }
        let mut plane = [[m[0][0]; COUNT]; COUNT];
        for column in 0..COUNT {
            let line: [V; COUNT] = output_transform_1d(column_of(&rows, column));
            for (row, value) in plane.iter_mut().zip(line) {
                row[column] = value;
            }
        }
        plane
    }
}
