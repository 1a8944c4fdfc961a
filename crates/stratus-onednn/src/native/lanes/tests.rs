//! Compares every operation of every lanes type with scalar code.

use super::*;
use crate::native::simd::IsaLevel;

with_lanes! {
    fn exercise / exercise_body(
        x: &[E; LANES],
        by: &[f32; LANES],
        y: &mut [E; LANES],
        sums: &mut [f32; LANES],
        half: &mut [f32; LANES / 2],
    )
}

#[inline(always)]
unsafe fn exercise_body<V: Lanes, E: LaneElement>(
    x: &[E; LANES],
    by: &[f32; LANES],
    y: &mut [E; LANES],
    sums: &mut [f32; LANES],
    half: &mut [f32; LANES / 2],
) {
    // SAFETY: upheld by the caller.
    unsafe {
        let (x, by) = (E::load_lanes::<V>(x), V::load(by));
        let product = x.multiply_add(by, V::splat(0.0));
        product.add(V::load(sums)).store(sums);
        E::store_lanes(product.relu(), y);
        product.store_half(half);
    }
}

/// Compares with scalar code. Products of two bf16 are exact in `f32`, so that fused and separate rounding
/// agree.
fn check<E: LaneElement + PartialEq + std::fmt::Debug>(values: &[f32]) {
    for level in IsaLevel::all() {
        for (x, by) in values.chunks_exact(LANES).zip(values.chunks_exact(LANES).skip(1)) {
            let exact = |value: f32| Bf16::store(value).load();
            let x: [E; LANES] = std::array::from_fn(|lane| E::store(exact(x[lane])));
            let by: [f32; LANES] = std::array::from_fn(|lane| exact(by[lane]));
            let mut sums = by;
            let mut y = [E::store(0.0); LANES];
            let mut half = [0.0; LANES / 2];
            exercise(level, &x, &by, &mut y, &mut sums, &mut half);
            for lane in 0..LANES {
                let product = x[lane].load() * by[lane] + 0.0;
                assert!(half.get(lane).is_none_or(|half| *half == product), "{level:?}");
                // A fused product that underflows keeps its sign, a rounded one does not; zeros compare
                // equal.
                assert_eq!(product + by[lane], sums[lane], "{level:?}");
                let relu = E::store(if product <= 0.0 { 0.0 } else { product });
                let same = relu.load() == y[lane].load();
                assert!(same, "{level:?} {product}: {:?} is not {relu:?}", y[lane]);
            }
        }
    }
}

#[test]
fn every_level_matches_scalar_code() {
    let mut bits = 1u32;
    let mut values: Vec<f32> = vec![0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40];
    values.extend((0..20_000).map(|_| {
        bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from_bits(bits)
    }));
    // NaN has many bit patterns: sums are compared without it.
    let finite: Vec<f32> = values.iter().copied().filter(|v| v.is_finite() && v.abs() < 1e15).collect();
    check::<f32>(&finite);
    check::<Bf16>(&finite);
}

with_lanes! {
    fn choose / choose_body(
        a: &[E; LANES],
        b: &[E; LANES],
        got: &mut [[E; LANES]; 7],
        repeated: &mut [[f32; LANES]; HALF],
        bytes: &mut [u8; LANES],
    )
}

#[inline(always)]
unsafe fn choose_body<V: Lanes, E: LaneElement>(
    a: &[E; LANES],
    b: &[E; LANES],
    got: &mut [[E; LANES]; 7],
    repeated: &mut [[f32; LANES]; HALF],
    bytes: &mut [u8; LANES],
) {
    // SAFETY: upheld by the caller.
    unsafe {
        let (a, b) = (E::load_lanes::<V>(a), E::load_lanes::<V>(b));
        let (one, two) = (V::splat(1.0), V::splat(2.0));
        E::store_lanes(a.maximum(b), &mut got[0]);
        E::store_lanes(a.select_equal(b, one, two), &mut got[1]);
        E::store_lanes(a.select_not_positive(one, two), &mut got[2]);
        E::store_lanes(a.low_halves(b), &mut got[3]);
        E::store_lanes(a.high_halves(b), &mut got[4]);
        let numbers = V::load_u8(bytes);
        E::store_lanes(numbers, &mut got[5]);
        E::store_lanes(a.add_where_byte(b, bytes, bytes[LANES / 3]), &mut got[6]);
        a.store_repeated(repeated);
        numbers.add(one).store_u8(bytes);
    }
}

#[test]
fn every_level_selects_like_scalar_code() {
    let values = [0.0, -0.0, 1.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.25, 3.0];
    let same = |a: f32, b: f32| a == b || a.is_nan() && b.is_nan();
    for level in IsaLevel::all() {
        for step in 0..values.len() {
            let a: [f32; LANES] = std::array::from_fn(|lane| values[lane % values.len()]);
            let b: [f32; LANES] = std::array::from_fn(|lane| values[(lane + step) % values.len()]);
            // Some values occur twice.
            let numbers: [u8; LANES] = std::array::from_fn(|lane| (lane % 13 * 19 + step) as u8);
            let (mut got, mut bytes) = ([[0.0; LANES]; 7], numbers);
            let mut repeated = [[0.0; LANES]; HALF];
            choose(level, &a, &b, &mut got, &mut repeated, &mut bytes);
            for (at, value) in repeated.as_flattened().iter().enumerate() {
                assert!(same(*value, a[at / HALF]), "{level:?} {at}");
            }
            for lane in 0..LANES {
                let (first, second) = (a[lane], b[lane]);
                let larger = if first.is_nan() || second.is_nan() { f32::NAN } else { first.max(second) };
                let half = |from: usize| if lane < HALF { a[lane + from] } else { b[lane - HALF + from] };
                let expected = [
                    larger,
                    if first == second { 1.0 } else { 2.0 },
                    if first <= 0.0 { 1.0 } else { 2.0 },
                    half(0),
                    half(HALF),
                    f32::from(numbers[lane]),
                    if numbers[lane] == numbers[LANES / 3] { first + second } else { first },
                ];
                for (context, expected) in expected.into_iter().enumerate() {
                    let got = got[context][lane];
                    assert!(same(got, expected), "{level:?} {context} of {first} {second}: {got}");
                }
                assert_eq!(bytes[lane], numbers[lane] + 1, "{level:?}");
            }
        }
    }
}

#[test]
fn nan_is_propagated() {
    for level in IsaLevel::all() {
        let mut y = [Bf16(0); LANES];
        exercise(
            level,
            &[Bf16::store(f32::NAN); LANES],
            &[1.0; LANES],
            &mut y,
            &mut [0.0; LANES],
            &mut [0.0; LANES / 2],
        );
        assert!(y.iter().all(|y| y.load().is_nan()), "{level:?}");
    }
}

with_lanes! {
    fn round / round_body(
        a: &[E; LANES],
        b: &[E; LANES],
        larger: &mut [f32; LANES],
        integers: &mut [i16; LANES],
        pairs: &mut [[i16; 2]; LANES],
    )
}

#[inline(always)]
unsafe fn round_body<V: Lanes, E: LaneElement>(
    a: &[E; LANES],
    b: &[E; LANES],
    larger: &mut [f32; LANES],
    integers: &mut [i16; LANES],
    pairs: &mut [[i16; 2]; LANES],
) {
    // SAFETY: upheld by the caller.
    unsafe {
        let (a, b) = (E::load_lanes::<V>(a), E::load_lanes::<V>(b));
        V::splat(0.5).maximum_magnitude(a).maximum_magnitude(b).store(larger);
        a.store_i16(integers);
        a.store_i16_pairs(b, pairs);
    }
}

#[test]
fn every_level_rounds_to_integers_like_scalar_code() {
    let values = [0.0, 0.5, 1.5, -0.5, -2.5, 2.5001, 4095.0, -4095.49, 32_767.0, -32_767.2, 0.49];
    for level in IsaLevel::all() {
        for step in 0..values.len() {
            let a: [f32; LANES] = std::array::from_fn(|lane| values[lane % values.len()]);
            let b: [f32; LANES] = std::array::from_fn(|lane| values[(lane + step) % values.len()]);
            let (mut larger, mut integers, mut pairs) = ([0.0; LANES], [0; LANES], [[0; 2]; LANES]);
            round(level, &a, &b, &mut larger, &mut integers, &mut pairs);
            for lane in 0..LANES {
                let [first, second] = [a[lane], b[lane]].map(|value| value.round_ties_even() as i16);
                assert_eq!((integers[lane], pairs[lane]), (first, [first, second]), "{level:?}");
                assert_eq!(larger[lane], a[lane].abs().max(b[lane].abs()).max(0.5), "{level:?}");
            }
            let odd = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
            let a: [f32; LANES] = std::array::from_fn(|lane| odd[lane % odd.len()]);
            round(level, &a, &b, &mut larger, &mut integers, &mut pairs);
            for (lane, larger) in larger.iter().enumerate() {
                let expected = if a[lane].is_nan() { larger.is_nan() } else { *larger == f32::INFINITY };
                assert!(expected, "{level:?} {larger} of {}", a[lane]);
            }
        }
    }
}

with_lanes! {
    fn transpose_rows / transpose_rows_body(rows: &[[E; LANES]; LANES], columns: &mut [[E; LANES]; LANES])
}

#[inline(always)]
unsafe fn transpose_rows_body<V: Lanes, E: LaneElement>(
    rows: &[[E; LANES]; LANES],
    columns: &mut [[E; LANES]; LANES],
) {
    // SAFETY: upheld by the caller.
    unsafe {
        let mut lanes = [V::splat(0.0); LANES];
        for (lanes, row) in lanes.iter_mut().zip(rows) {
            *lanes = E::load_lanes(row);
        }
        for (lanes, column) in V::transpose(lanes).into_iter().zip(columns) {
            E::store_lanes(lanes, column);
        }
    }
}

#[test]
fn every_level_transposes() {
    let rows: [[f32; LANES]; LANES] =
        std::array::from_fn(|row| std::array::from_fn(|column| (row * LANES + column) as f32));
    for level in IsaLevel::all() {
        let mut columns = [[f32::NAN; LANES]; LANES];
        transpose_rows(level, &rows, &mut columns);
        for (column, values) in columns.iter().enumerate() {
            assert_eq!(*values, rows.map(|row| row[column]), "{level:?}");
        }
    }
}

/// The type of an array that is aligned for [`Lanes::stream`].
#[repr(align(64))]
struct Aligned<T>(T);

with_lanes! {
    fn rearrange / rearrange_body(x: &[E; LANES], streamed: &mut [E; LANES], quads: &mut [[f32; LANES]; 4])
}

#[inline(always)]
unsafe fn rearrange_body<V: Lanes, E: LaneElement>(
    x: &[E; LANES],
    streamed: &mut [E; LANES],
    quads: &mut [[f32; LANES]; 4],
) {
    // SAFETY: upheld by the caller.
    unsafe {
        let x = E::load_lanes::<V>(x);
        E::stream_lanes(x, streamed);
        V::end_stream();
        for (lane, to) in quads.iter_mut().enumerate() {
            x.repeat_in_quads(lane).store(to);
        }
    }
}

fn check_rearranged<E: LaneElement + PartialEq + std::fmt::Debug>() {
    let x: [E; LANES] = std::array::from_fn(|lane| E::store(lane as f32 - 4.5));
    for level in IsaLevel::all() {
        let mut streamed = Aligned([E::store(0.0); LANES]);
        let mut quads = [[0.0; LANES]; 4];
        rearrange(level, &x, &mut streamed.0, &mut quads);
        assert_eq!(streamed.0, x, "{level:?}");
        for (lane, quads) in quads.iter().enumerate() {
            let expected: [f32; LANES] = std::array::from_fn(|to| x[to / 4 * 4 + lane].load());
            assert_eq!(*quads, expected, "{level:?}");
        }
    }
}

#[test]
fn every_level_streams_and_repeats_lanes() {
    check_rearranged::<f32>();
    check_rearranged::<Bf16>();
}
