//! Products of matrices of whole numbers of 13 bits: as exact as maps of bf16 need, and twice as fast as those of floats.
//!
//! Values at the points, rounded to bf16, make results that are off by 1 % of their norm, six times as far as maps of bf16 round. As whole numbers
//! below 4096 in units of the largest that is summed over, they have the bits where the sums need them: results are off by 0.15 % where maps are
//! normal deviates, by 0.5 % where one pixel in ten thousand is two hundred times as large as the others; storing them as bf16 rounds by 0.17 %
//! (docs/benchmarks/kernels.md).
//!
//! Every tile has a unit for each point, and every filter one for each point and for as many terms as are summed as whole numbers. Neighbouring terms
//! lie together, as VPDPWSSD takes them: to each of 16 sums of 32 bits it adds two products of 16 bits (Intel, "Intel 64 and IA-32 architectures software
//! developer's manual", volume 2).

use super::product::{PANEL, ROWS};
use super::{POINTS, REACH, store};
use crate::native::lanes::{LANES, Lanes};
use crate::native::simd::Level;

/// The largest number.
const MOST: f32 = 4095.0;

/// Terms that sums of 32 bits hold, whatever they are. The columns of the right matrix have units of their own for each such chunk.
pub const CHUNK: usize = 128;

const _: () = assert!(CHUNK as f64 * (MOST as f64) * (MOST as f64) <= i32::MAX as f64);

/// What is smaller than this everywhere counts as zero: its unit has no inverse.
const LEAST: f32 = 1.3e-35;

/// What multiplies.
#[derive(Clone, Copy, Debug)]
pub enum Int16Products {
    /// The dot products of AVX-512 VNNI.
    #[cfg(target_arch = "x86_64")]
    Vnni(Vnni),
    /// One number at a time, to see the others by.
    #[cfg(test)]
    Portable,
}

/// The instruction, which the processor has: a value of this type is the proof.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Vnni(());

/// Columns of the right matrix, one register of them or two.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    /// Pairs of neighbouring terms of [`PANEL`] columns, of which the first are meant.
    pub words: &'a [i16],
    /// Their units: [`PANEL`] for each chunk of terms.
    pub units: &'a [f32],
    pub registers: usize,
    /// What will be multiplied by next, which is asked for meanwhile; empty where it is not worth it.
    pub next: &'a [i16],
}

impl Int16Products {
    /// Where the processor has an instruction for it that `level` permits.
    #[must_use]
    pub fn detect(level: Level) -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        {
            let permitted = level.isa() == crate::native::simd::Isa::Avx512;
            if permitted && std::arch::is_x86_feature_detected!("avx512vnni") {
                return Some(Self::Vnni(Vnni(())));
            }
        }
        let _ = level;
        None
    }

    /// `to = left * right`, in the units of the rows of the one, as many as `of_rows` is long, and the columns of the other. Rows of `left` are `terms`
    /// long, those of `to` begin `stride` elements apart.
    ///
    /// # Panics
    /// Where a matrix has another size.
    pub fn product(
        self,
        left: &[i16],
        of_rows: &[f32],
        right: Columns<'_>,
        to: &mut [f32],
        stride: usize,
        terms: usize,
    ) {
        let rows = of_rows.len();
        assert!(
            rows.is_multiple_of(ROWS)
                && terms.is_multiple_of(2)
                && left.len() >= rows * terms
                && right.words.len() >= terms * PANEL
                && right.units.len() >= chunks(terms) * PANEL
                && (1..=PANEL / LANES).contains(&right.registers)
                && to.len() >= rows.saturating_sub(1) * stride + right.registers * LANES,
            "matrices of other sizes"
        );
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the value is the proof of the instructions, the sizes were just seen.
            Self::Vnni(_) if right.registers == 2 => unsafe {
                vnni::product::<2>(left, of_rows, right, to, stride, terms);
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Vnni(_) => unsafe { vnni::product::<1>(left, of_rows, right, to, stride, terms) },
            #[cfg(test)]
            Self::Portable => portable(left, of_rows, right, to, stride, terms),
        }
    }
}

/// How many chunks have so many terms.
pub const fn chunks(terms: usize) -> usize {
    terms.div_ceil(CHUNK)
}

/// As [`Int16Products::product`]: the same bits.
#[cfg(test)]
fn portable(left: &[i16], of_rows: &[f32], right: Columns<'_>, to: &mut [f32], stride: usize, terms: usize) {
    for (row, of_row) in of_rows.iter().enumerate() {
        for column in 0..right.registers * LANES {
            let to = &mut to[row * stride + column];
            for first in (0..terms).step_by(CHUNK) {
                let mut sum = 0;
                for term in first..(first + CHUNK).min(terms) {
                    let right = right.words[(term / 2 * PANEL + column) * 2 + term % 2];
                    sum += i32::from(left[row * terms + term]) * i32::from(right);
                }
                let of_column = right.units[first / CHUNK * PANEL + column];
                let sum = sum as f32 * of_column * of_row;
                *to = if first == 0 { sum } else { *to + sum };
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod vnni {
    use super::{CHUNK, Columns, LANES, PANEL, ROWS, chunks};
    use crate::native::simd::ask_for_later;
    use std::arch::asm;
    use std::arch::x86_64::{
        __m512i, _mm512_add_ps, _mm512_cvtepi32_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mul_ps,
        _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_si512, _mm512_storeu_ps,
    };

    /// # Safety
    /// AVX-512 VNNI must be there; the sizes are those that [`Int16Products::product`](super::Int16Products::product) asks for, with `WIDE` registers of columns.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub unsafe fn product<const WIDE: usize>(
        left: &[i16],
        of_rows: &[f32],
        right: Columns<'_>,
        to: &mut [f32],
        stride: usize,
        terms: usize,
    ) {
        let steps = of_rows.len() / ROWS * chunks(terms);
        let mut next = right.next.chunks(right.next.len().div_ceil(steps.max(1)).max(1));
        for row in (0..of_rows.len()).step_by(ROWS) {
            for first in (0..terms).step_by(CHUNK) {
                let count = CHUNK.min(terms - first);
                ask_for_later(next.next().unwrap_or_default());
                // SAFETY: the caller's: rows, columns and terms lie within the matrices.
                unsafe {
                    let left = left.as_ptr().add(row * terms + first);
                    let of_columns = right.units.as_ptr().add(first / CHUNK * PANEL);
                    let right = right.words.as_ptr().add(first * PANEL);
                    let units = [of_rows.as_ptr().add(row), of_columns];
                    let to = to.as_mut_ptr().add(row * stride);
                    tile::<WIDE>(left, right, units, to, stride, [terms, count], first > 0);
                }
            }
        }
    }

    /// `sum` and the products of two pairs, in each of its numbers. The intrinsic becomes two instructions, a product and a sum, which end sooner where
    /// sums wait for each other; here sixteen of them do not, and one instruction is 1.3 times as fast.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    fn add_products(mut sum: __m512i, left: __m512i, right: __m512i) -> __m512i {
        // SAFETY: the function has the instruction, which touches nothing but this register.
        unsafe {
            asm!(
                "vpdpwssd {sum}, {left}, {right}",
                sum = inout(zmm_reg) sum,
                left = in(zmm_reg) left,
                right = in(zmm_reg) right,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sum
    }

    /// Sums of [`ROWS`] rows over `count` terms; rows of `left` lie `apart` from each other.
    ///
    /// # Safety
    /// As above.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn tile<const WIDE: usize>(
        left: *const i16,
        right: *const i16,
        [of_rows, of_columns]: [*const f32; 2],
        to: *mut f32,
        stride: usize,
        [apart, count]: [usize; 2],
        add: bool,
    ) {
        let mut sums = [[_mm512_setzero_si512(); WIDE]; ROWS];
        // SAFETY: the caller's.
        unsafe {
            for term in (0..count).step_by(2) {
                let mut factors = [_mm512_setzero_si512(); WIDE];
                for (part, factor) in factors.iter_mut().enumerate() {
                    *factor = _mm512_loadu_si512(right.add(term * PANEL + part * 2 * LANES).cast());
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let pair = left.add(row * apart + term).cast::<i32>().read_unaligned();
                    let pair = _mm512_set1_epi32(pair);
                    for (sum, factor) in sums.iter_mut().zip(factors) {
                        *sum = add_products(*sum, pair, factor);
                    }
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                let of_row = _mm512_set1_ps(*of_rows.add(row));
                for (part, sum) in sums.iter().enumerate() {
                    let of_column = _mm512_loadu_ps(of_columns.add(part * LANES));
                    let mut sum = _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(*sum), of_column), of_row);
                    let at = to.add(row * stride + part * LANES);
                    if add {
                        sum = _mm512_add_ps(_mm512_loadu_ps(at), sum);
                    }
                    _mm512_storeu_ps(at, sum);
                }
            }
        }
    }
}

/// The unit of numbers of which the largest is `largest`, and its inverse. Where that is infinite or no number, no product is a number.
fn unit(largest: f32) -> [f32; 2] {
    if largest < LEAST { [0.0; 2] } else { [largest / MOST, MOST / largest] }
}

/// Keeps values at all points, to be rounded when the largest are known: the `at`th in `strip`.
///
/// # Safety
/// Of [`Lanes`]; `strip` is long enough.
#[inline(always)]
pub unsafe fn keep<V: Lanes>(plane: [[V; REACH]; REACH], strip: &mut [f32], at: usize) {
    // SAFETY: the caller's.
    unsafe { store(plane, strip, at * POINTS * LANES, LANES) };
}

/// What was kept as the `at`th, at a point.
///
/// # Safety
/// Of [`Lanes`]; it lies within `strip`.
#[inline(always)]
unsafe fn kept<V: Lanes>(strip: &[f32], at: usize, point: usize) -> V {
    let from = (at * POINTS + point) * LANES;
    debug_assert!(from + LANES <= strip.len());
    // SAFETY: the caller's.
    unsafe { V::load(&*strip.as_ptr().add(from).cast()) }
}

/// The largest magnitudes of the first `count` that were kept, lane by lane, at a point.
///
/// # Safety
/// Of [`Lanes`]; there are so many in `strip`.
#[inline(always)]
unsafe fn largest<V: Lanes>(strip: &[f32], count: usize, point: usize) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    // SAFETY: the caller's.
    unsafe {
        let mut largest = V::splat(0.0);
        for at in 0..count {
            largest = largest.larger_magnitude(kept(strip, at, point));
        }
        largest.store(&mut lanes);
    }
    lanes
}

/// Registers of a row as whole numbers: those of a point go to `words` from `to(point)` on, their unit to `units[of(point)]`.
///
/// # Safety
/// Of [`Lanes`]; there are so many registers in `strip`, and room for what is written.
#[inline(always)]
pub unsafe fn round_row<V: Lanes>(
    strip: &[f32],
    registers: usize,
    words: &mut [i16],
    to: impl Fn(usize) -> usize,
    units: &mut [f32],
    of: impl Fn(usize) -> usize,
) {
    let mut most = [0.0; POINTS];
    for (point, most) in most.iter_mut().enumerate() {
        // SAFETY: the caller's.
        let lanes = unsafe { largest::<V>(strip, registers, point) }.map(f32::to_bits);
        // Bits of magnitudes are ordered as they are, those of what is no number behind all others.
        *most = f32::from_bits(lanes.into_iter().max().unwrap_or(0));
    }
    // All at once: divisions take long, many of them hardly longer.
    let inverses = most.map(|most| unit(most)[1]);
    for point in 0..POINTS {
        units[of(point)] = unit(most[point])[0];
        // SAFETY: the caller's.
        unsafe {
            let inverse = V::splat(inverses[point]);
            for register in 0..registers {
                let value = kept::<V>(strip, register, point).multiply_add(inverse, V::splat(0.0));
                let at = to(point) + register * LANES;
                debug_assert!(at + LANES <= words.len());
                value.store_words(&mut *words.as_mut_ptr().add(at).cast());
            }
        }
    }
}

/// A chunk of the terms of sixteen filters as pairs of whole numbers: those of a point and a pair go to `words` from `to(point, pair)` on, the filters'
/// units to `units` from `of(point)` on.
///
/// # Safety
/// Of [`Lanes`]; there are so many terms in `strip`, and room for what is written.
#[inline(always)]
pub unsafe fn round_filters<V: Lanes>(
    strip: &[f32],
    terms: usize,
    words: &mut [i16],
    to: impl Fn(usize, usize) -> usize,
    units: &mut [f32],
    of: impl Fn(usize) -> usize,
) {
    for point in 0..POINTS {
        // SAFETY: the caller's.
        unsafe {
            let mut inverse = largest::<V>(strip, terms, point);
            for (inverse, to) in inverse.iter_mut().zip(&mut units[of(point)..][..LANES]) {
                [*to, *inverse] = unit(*inverse);
            }
            let inverse = V::load(&inverse);
            for pair in 0..terms / 2 {
                let first = kept::<V>(strip, 2 * pair, point).multiply_add(inverse, V::splat(0.0));
                let second = kept::<V>(strip, 2 * pair + 1, point).multiply_add(inverse, V::splat(0.0));
                let at = to(point, pair);
                debug_assert!(at + 2 * LANES <= words.len());
                first.store_word_pairs(second, &mut *words.as_mut_ptr().add(at).cast());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers from -`most` to `most`, or `most` alone.
    fn words(count: usize, most: i16, extreme: bool) -> Vec<i16> {
        let mut bits = 1u32;
        let draw = |_| {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let word = (bits >> 16) as i16;
            if extreme { most } else { word % (most + 1) }
        };
        (0..count).map(draw).collect()
    }

    #[test]
    fn every_way_has_the_same_bits() {
        let Some(best) = Int16Products::detect(Level::detect([true, true])) else {
            println!("not run: this processor has no instruction for it");
            return;
        };
        for (rows, columns, terms) in [(8, 16, 2), (16, 32, 16), (8, 32, 128), (24, 16, 160), (8, 32, 400)] {
            for extreme in [false, true] {
                let [left, right] =
                    [rows * terms, terms * PANEL].map(|count| words(count, MOST as i16, extreme));
                let units = [rows, chunks(terms) * PANEL]
                    .map(|count| (1..=count).map(|at| 0.1 / at as f32).collect::<Vec<_>>());
                let [mut got, mut expected] = [0; 2].map(|_| vec![f32::NAN; rows * 40]);
                let of_right =
                    Columns { words: &right, units: &units[1], registers: columns / LANES, next: &[] };
                best.product(&left, &units[0], of_right, &mut got, 40, terms);
                Int16Products::Portable.product(&left, &units[0], of_right, &mut expected, 40, terms);
                for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
                    let outside = at % 40 >= columns;
                    let same = got.to_bits() == expected.to_bits() && (outside || !got.is_nan());
                    assert!(same, "{rows} {columns} {terms}: {got} {expected}");
                }
                // Whole numbers, without a unit: nothing overflows.
                let product = |t: usize| i64::from(left[t]) * i64::from(right[t / 2 * PANEL * 2 + t % 2]);
                let of_chunk = |chunk: usize| {
                    let sum: i64 = (chunk * CHUNK..terms.min((chunk + 1) * CHUNK)).map(product).sum();
                    sum as f64 * f64::from(units[1][chunk * PANEL]) * f64::from(units[0][0])
                };
                let expected: f64 = (0..chunks(terms)).map(of_chunk).sum();
                assert!(
                    (f64::from(got[0]) - expected).abs() <= 1e-6 * expected.abs() + 1e-3,
                    "{} {expected}",
                    got[0]
                );
            }
        }
    }

    #[test]
    fn units_of_what_is_too_small_or_no_number() {
        assert_eq!(unit(0.0), [0.0; 2]);
        assert_eq!(unit(1e-36), [0.0; 2]);
        assert_eq!(unit(4095.0), [1.0; 2]);
        assert!(unit(LEAST)[1].is_finite() && unit(f32::MAX)[1] > 0.0);
        assert!(unit(f32::NAN)[0].is_nan() && unit(f32::INFINITY)[0].is_infinite());
    }
}
