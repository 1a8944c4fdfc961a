//! Products of quantised matrices: 13-bit integers with `f32` scales, accumulated in int32 by VNNI. Accurate
//! enough for bf16 maps, and twice as fast as `f32`.
//!
//! ```text
//! left [rows, K]: a scale per row (tile and point)      right [K, 32]: a scale per column and chunk of K
//! to[r, c] = row_scale[r] * Σ_chunk column_scale[chunk, c] * Σ_k∈chunk left[r, k] * right[k, c]
//!                                                            └── int32, cannot overflow: 128 · 4095² < 2³¹
//! ```
//!
//! Scales are symmetric, `max |value| / 4095`. Rounding the transformed values to bf16 instead would change
//! results by 1 % of their norm, six times the error of storing maps in bf16 (0.17 %). With 13-bit integers
//! the error is 0.15 % for normally distributed maps, 0.5 % if one pixel in ten thousand is two hundred times
//! as large as the others (docs/benchmarks/kernels.md).
//!
//! VPDPWSSD adds two products of int16 to each of 16 int32 (Intel, "Intel 64 and IA-32 architectures software
//! developer's manual", volume 2): neighbouring terms are packed in pairs. Eight rows by two registers of
//! sums fill 16 registers, as with `f32`, but each instruction takes two terms.

use super::lanes_at;
use super::product::{PANEL, ROWS};
use crate::native::lanes::{LANES, Lanes};
use crate::native::simd::IsaLevel;

/// The largest quantised magnitude.
const MAX_QUANTISED: f32 = 4095.0;

/// The number of terms whose int32 sum cannot overflow.
pub const K_CHUNK: usize = 128;

const _: () = assert!(K_CHUNK as f64 * (MAX_QUANTISED as f64) * (MAX_QUANTISED as f64) <= i32::MAX as f64);

/// If all magnitudes are below this they count as zero: the inverse of the scale would be infinite.
const MIN_MAGNITUDE: f32 = 1.3e-35;

/// The implementation of such products.
#[derive(Clone, Copy, Debug)]
pub enum Int16Products {
    /// VPDPWSSD.
    #[cfg(target_arch = "x86_64")]
    Vnni(Vnni),
    /// One by one, as the reference for tests.
    #[cfg(test)]
    Portable,
}

/// A value proves that the CPU has AVX-512 VNNI.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Vnni(());

/// One or two registers of columns of the right matrix.
#[derive(Clone, Copy, Debug)]
pub struct RightColumns<'a> {
    /// A panel, `[K / 2, 32, 2]`; only the first `registers` of columns are read.
    pub values: &'a [i16],
    /// The scales, `[chunks of K, 32]`.
    pub scales: &'a [f32],
    pub registers: usize,
    /// The next panel, which is prefetched; may be empty.
    pub prefetch: &'a [i16],
}

impl Int16Products {
    /// Detects VNNI, if `level` permits it.
    #[must_use]
    pub fn detect(level: IsaLevel) -> Option<Self> {
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

    /// `to = left * right`, scaled back. `left` is `[row_scales.len(), terms]`; rows of `to` are `stride`
    /// elements apart.
    ///
    /// # Panics
    /// If sizes are not as expected.
    pub fn product(
        self,
        left: &[i16],
        row_scales: &[f32],
        right: RightColumns<'_>,
        to: &mut [f32],
        stride: usize,
        terms: usize,
    ) {
        let rows = row_scales.len();
        assert!(
            rows.is_multiple_of(ROWS)
                && terms.is_multiple_of(2)
                && left.len() >= rows * terms
                && right.values.len() >= terms * PANEL
                && right.scales.len() >= chunks(terms) * PANEL
                && (1..=PANEL / LANES).contains(&right.registers)
                && to.len() >= rows.saturating_sub(1) * stride + right.registers * LANES,
            "unexpected matrix sizes"
        );
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the value proves the instructions, and the sizes were checked.
            Self::Vnni(_) if right.registers == 2 => unsafe {
                vnni::product::<2>(left, row_scales, right, to, stride, terms);
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Vnni(_) => unsafe { vnni::product::<1>(left, row_scales, right, to, stride, terms) },
            #[cfg(test)]
            Self::Portable => portable(left, row_scales, right, to, stride, terms),
        }
    }
}

/// The chunks of `terms`.
pub const fn chunks(terms: usize) -> usize {
    terms.div_ceil(K_CHUNK)
}

/// [`Int16Products::product`] without VNNI: the same bits.
#[cfg(test)]
fn portable(
    left: &[i16],
    row_scales: &[f32],
    right: RightColumns<'_>,
    to: &mut [f32],
    stride: usize,
    terms: usize,
) {
    for (row, row_scale) in row_scales.iter().enumerate() {
        for column in 0..right.registers * LANES {
            let to = &mut to[row * stride + column];
            for first in (0..terms).step_by(K_CHUNK) {
                let mut sum = 0;
                for term in first..(first + K_CHUNK).min(terms) {
                    let right = right.values[(term / 2 * PANEL + column) * 2 + term % 2];
                    sum += i32::from(left[row * terms + term]) * i32::from(right);
                }
                let column_scale = right.scales[first / K_CHUNK * PANEL + column];
                let sum = sum as f32 * column_scale * row_scale;
                *to = if first == 0 { sum } else { *to + sum };
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod vnni {
    use super::{K_CHUNK, LANES, PANEL, ROWS, RightColumns, chunks};
    use crate::native::simd::prefetch_l2;
    use std::arch::asm;
    use std::arch::x86_64::{
        __m512i, _mm512_add_ps, _mm512_cvtepi32_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mul_ps,
        _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_si512, _mm512_storeu_ps,
    };

    /// # Safety
    /// AVX-512 VNNI; sizes as [`Int16Products::product`](super::Int16Products::product) asserts them, with
    /// `WIDE` registers of columns.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub unsafe fn product<const WIDE: usize>(
        left: &[i16],
        row_scales: &[f32],
        right: RightColumns<'_>,
        to: &mut [f32],
        stride: usize,
        terms: usize,
    ) {
        let steps = row_scales.len() / ROWS * chunks(terms);
        let mut next = right.prefetch.chunks(right.prefetch.len().div_ceil(steps.max(1)).max(1));
        for row in (0..row_scales.len()).step_by(ROWS) {
            for first in (0..terms).step_by(K_CHUNK) {
                let count = K_CHUNK.min(terms - first);
                prefetch_l2(next.next().unwrap_or_default());
                // SAFETY: upheld by the caller: rows, columns and terms are within the matrices.
                unsafe {
                    let left = left.as_ptr().add(row * terms + first);
                    let column_scales = right.scales.as_ptr().add(first / K_CHUNK * PANEL);
                    let right = right.values.as_ptr().add(first * PANEL);
                    let scales = [row_scales.as_ptr().add(row), column_scales];
                    let to = to.as_mut_ptr().add(row * stride);
                    tile::<WIDE>(left, right, scales, to, stride, [terms, count], first > 0);
                }
            }
        }
    }

    /// VPDPWSSD. The intrinsic would be compiled to a multiplication and an addition, whose latency is
    /// shorter if sums depend on each other; sixteen independent sums do not, and one instruction is 1.3
    /// times as fast.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    fn add_products(mut sum: __m512i, left: __m512i, right: __m512i) -> __m512i {
        // SAFETY: the function has the instruction, which only modifies this register.
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

    /// The sums of [`ROWS`] rows over `count` terms; rows of `left` are `row_stride` apart.
    ///
    /// # Safety
    /// As [`product`] requires.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn tile<const WIDE: usize>(
        left: *const i16,
        right: *const i16,
        [row_scales, column_scales]: [*const f32; 2],
        to: *mut f32,
        stride: usize,
        [row_stride, count]: [usize; 2],
        add: bool,
    ) {
        let mut sums = [[_mm512_setzero_si512(); WIDE]; ROWS];
        // SAFETY: upheld by the caller.
        unsafe {
            for term in (0..count).step_by(2) {
                let mut factors = [_mm512_setzero_si512(); WIDE];
                for (part, factor) in factors.iter_mut().enumerate() {
                    *factor = _mm512_loadu_si512(right.add(term * PANEL + part * 2 * LANES).cast());
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let pair = left.add(row * row_stride + term).cast::<i32>().read_unaligned();
                    let pair = _mm512_set1_epi32(pair);
                    for (sum, factor) in sums.iter_mut().zip(factors) {
                        *sum = add_products(*sum, pair, factor);
                    }
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                let row_scale = _mm512_set1_ps(*row_scales.add(row));
                for (part, sum) in sums.iter().enumerate() {
                    let column_scale = _mm512_loadu_ps(column_scales.add(part * LANES));
                    let mut sum =
                        _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(*sum), column_scale), row_scale);
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

/// The quantisation scale for magnitudes up to `largest`, and its inverse. NaN and infinity make the products
/// NaN.
fn scale_and_inverse(largest: f32) -> [f32; 2] {
    if largest < MIN_MAGNITUDE { [0.0; 2] } else { [largest / MAX_QUANTISED, MAX_QUANTISED / largest] }
}

/// Stores the points of a transformed tile as number `at` in `staging`, to be quantised once the largest
/// magnitudes are known.
///
/// # Safety
/// As [`Lanes`] requires; `staging` must be long enough.
#[inline(always)]
pub unsafe fn stage<V: Lanes>(points: &[V], staging: &mut [f32], at: usize) {
    for (point, value) in points.iter().enumerate() {
        // SAFETY: upheld by the caller.
        unsafe { value.store(lanes_at(staging, (at * points.len() + point) * LANES)) };
    }
}

/// Loads point `point` of tile number `at` in `staging`, whose tiles have `POINTS` points.
///
/// # Safety
/// As [`Lanes`] requires; the point must be within `staging`.
#[inline(always)]
unsafe fn staged<V: Lanes, const POINTS: usize>(staging: &[f32], at: usize, point: usize) -> V {
    let from = (at * POINTS + point) * LANES;
    debug_assert!(from + LANES <= staging.len());
    // SAFETY: upheld by the caller.
    unsafe { V::load(&*staging.as_ptr().add(from).cast()) }
}

/// The largest magnitudes of the first `count` staged tiles at a point, per lane.
///
/// # Safety
/// As [`Lanes`] requires; `count` tiles must be staged.
#[inline(always)]
unsafe fn max_magnitudes<V: Lanes, const POINTS: usize>(
    staging: &[f32],
    count: usize,
    point: usize,
) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    // SAFETY: upheld by the caller.
    unsafe {
        let mut largest = V::splat(0.0);
        for at in 0..count {
            largest = largest.maximum_magnitude(staged::<V, POINTS>(staging, at, point));
        }
        largest.store(&mut lanes);
    }
    lanes
}

/// Quantises the staged channels of a tile: those of a point are stored to
/// `quantised[value_offset(point)..]`, their scale to `scales[scale_offset(point)]`.
///
/// # Safety
/// As [`Lanes`] requires; `registers` must be staged, and the outputs long enough.
#[inline(always)]
pub unsafe fn quantise_row<V: Lanes, const POINTS: usize>(
    staging: &[f32],
    registers: usize,
    quantised: &mut [i16],
    value_offset: impl Fn(usize) -> usize,
    scales: &mut [f32],
    scale_offset: impl Fn(usize) -> usize,
) {
    let mut magnitudes = [0.0; POINTS];
    for (point, largest) in magnitudes.iter_mut().enumerate() {
        // SAFETY: upheld by the caller.
        let lanes = unsafe { max_magnitudes::<V, POINTS>(staging, registers, point) }.map(f32::to_bits);
        // The bits of non-negative floats are ordered like the floats, NaN last.
        *largest = f32::from_bits(lanes.into_iter().max().unwrap_or(0));
    }
    // All divisions together, because their latency is long and their throughput high.
    let inverses = magnitudes.map(|largest| scale_and_inverse(largest)[1]);
    for point in 0..POINTS {
        scales[scale_offset(point)] = scale_and_inverse(magnitudes[point])[0];
        // SAFETY: upheld by the caller.
        unsafe {
            let inverse = V::splat(inverses[point]);
            for register in 0..registers {
                let value =
                    staged::<V, POINTS>(staging, register, point).multiply_add(inverse, V::splat(0.0));
                let at = value_offset(point) + register * LANES;
                debug_assert!(at + LANES <= quantised.len());
                value.store_i16(&mut *quantised.as_mut_ptr().add(at).cast());
            }
        }
    }
}

/// Quantises staged terms of sixteen filters, in pairs: a pair of terms at a point is stored to
/// `quantised[value_offset(point, pair)..]`, the filters' scales to `scales[scale_offset(point)..]`.
///
/// # Safety
/// As [`Lanes`] requires; `terms` must be staged, and the outputs long enough.
#[inline(always)]
pub unsafe fn quantise_filters<V: Lanes, const POINTS: usize>(
    staging: &[f32],
    terms: usize,
    quantised: &mut [i16],
    value_offset: impl Fn(usize, usize) -> usize,
    scales: &mut [f32],
    scale_offset: impl Fn(usize) -> usize,
) {
    for point in 0..POINTS {
        // SAFETY: upheld by the caller.
        unsafe {
            let mut inverse = max_magnitudes::<V, POINTS>(staging, terms, point);
            for (inverse, to) in inverse.iter_mut().zip(&mut scales[scale_offset(point)..][..LANES]) {
                [*to, *inverse] = scale_and_inverse(*inverse);
            }
            let inverse = V::load(&inverse);
            for pair in 0..terms / 2 {
                let scaled = |term: usize| {
                    staged::<V, POINTS>(staging, term, point).multiply_add(inverse, V::splat(0.0))
                };
                let (first, second) = (scaled(2 * pair), scaled(2 * pair + 1));
                let at = value_offset(point, pair);
                debug_assert!(at + 2 * LANES <= quantised.len());
                first.store_i16_pairs(second, &mut *quantised.as_mut_ptr().add(at).cast());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers from -`max` to `max`; with `extreme`, only `max`.
    fn words(count: usize, max: i16, extreme: bool) -> Vec<i16> {
        let mut bits = 1u32;
        let draw = |_| {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let word = (bits >> 16) as i16;
            if extreme { max } else { word % (max + 1) }
        };
        (0..count).map(draw).collect()
    }

    #[test]
    fn vnni_products_are_bitwise_equal_to_portable_ones() {
        let Some(best) = Int16Products::detect(IsaLevel::detect([true, true])) else {
            eprintln!("SKIPPED: this CPU has no int16 dot product (VNNI)");
            return;
        };
        for (rows, columns, terms) in [(8, 16, 2), (16, 32, 16), (8, 32, 128), (24, 16, 160), (8, 32, 400)] {
            for extreme in [false, true] {
                let [left, right] =
                    [rows * terms, terms * PANEL].map(|count| words(count, MAX_QUANTISED as i16, extreme));
                let scales = [rows, chunks(terms) * PANEL]
                    .map(|count| (1..=count).map(|at| 0.1 / at as f32).collect::<Vec<_>>());
                let [mut got, mut expected] = [0; 2].map(|_| vec![f32::NAN; rows * 40]);
                let right_columns = RightColumns {
                    values: &right,
                    scales: &scales[1],
                    registers: columns / LANES,
                    prefetch: &[],
                };
                best.product(&left, &scales[0], right_columns, &mut got, 40, terms);
                Int16Products::Portable.product(&left, &scales[0], right_columns, &mut expected, 40, terms);
                for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
                    let outside = at % 40 >= columns;
                    let same = got.to_bits() == expected.to_bits() && (outside || !got.is_nan());
                    assert!(same, "{rows} {columns} {terms}: {got} {expected}");
                }
                // Exact integers, which do not overflow.
                let product = |t: usize| i64::from(left[t]) * i64::from(right[t / 2 * PANEL * 2 + t % 2]);
                let chunk_sum = |chunk: usize| {
                    let sum: i64 = (chunk * K_CHUNK..terms.min((chunk + 1) * K_CHUNK)).map(product).sum();
                    sum as f64 * f64::from(scales[1][chunk * PANEL]) * f64::from(scales[0][0])
                };
                let expected: f64 = (0..chunks(terms)).map(chunk_sum).sum();
                assert!(
                    (f64::from(got[0]) - expected).abs() <= 1e-6 * expected.abs() + 1e-3,
                    "{} {expected}",
                    got[0]
                );
            }
        }
    }

    #[test]
    fn scales_of_tiny_and_non_finite_magnitudes() {
        assert_eq!(scale_and_inverse(0.0), [0.0; 2]);
        assert_eq!(scale_and_inverse(1e-36), [0.0; 2]);
        assert_eq!(scale_and_inverse(4095.0), [1.0; 2]);
        assert!(scale_and_inverse(MIN_MAGNITUDE)[1].is_finite() && scale_and_inverse(f32::MAX)[1] > 0.0);
        assert!(scale_and_inverse(f32::NAN)[0].is_nan() && scale_and_inverse(f32::INFINITY)[0].is_infinite());
    }
}
