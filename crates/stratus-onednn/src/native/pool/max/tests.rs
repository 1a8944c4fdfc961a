//! Values that the case tables do not contain: NaN, infinities, zeros of both signs, and ties among them.

use super::*;
use crate::native::simd::{Bf16, IsaLevel};
use crate::native::threads::ThreadTeam;
use proptest::prelude::*;
use stratus_engine::Layout;

/// Values whose order matters: NaN, infinities, zeros.
const SPECIAL_VALUES: [f32; 10] = [
    f32::NAN,
    -f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    0.0,
    -0.0,
    1.0,
    -1.0,
    f32::MIN_POSITIVE,
    -f32::MIN_POSITIVE,
];

/// The position and index of the argmax of a window's elements.
fn argmax<E: Element>(x: &[E], window: impl Iterator<Item = (usize, usize)>) -> Option<(usize, usize)> {
    window.reduce(|best, next| {
        let [largest, value] = [best, next].map(|(_, at)| x[at].load());
        if value > largest || value.is_nan() && !largest.is_nan() { next } else { best }
    })
}

/// Pools in both directions at every level; maps are channels last.
fn check<E: Ordered + LaneElement>(pool: MaxPool2d, shape: [usize; 4], values: &[f32], threads: usize) {
    let [batch, channels, height, width] = shape;
    let Ok([out_height, out_width]) = pool.output_size([height, width]) else { return };
    let y_shape = [batch, channels, out_height, out_width];
    let geometry =
        |shape: &[usize; 4]| MapGeometry::from_layout(shape, &Layout::channels_last(shape)).unwrap();
    let x: Vec<E> = values.iter().map(|&value| E::store(value)).collect();
    let at = |image: usize, row: usize, column: usize, channel: usize, [height, width]: [usize; 2]| {
        ((image * height + row) * width + column) * channels + channel
    };
    let outputs = y_shape.iter().product();
    let (mut expected, mut numbers, mut gradient) =
        (vec![0.0; outputs], vec![0u8; outputs], vec![0.0; x.len()]);
    let dy = |at: usize| (at % 7) as f32 - 3.0;
    for image in 0..batch {
        for (row, column) in (0..out_height).flat_map(|row| (0..out_width).map(move |column| (row, column))) {
            for channel in 0..channels {
                let input_at = |tap: usize, axis: usize, output: usize, edge: usize| {
                    (output * pool.stride[axis] + tap).checked_sub(pool.padding[axis]).filter(|&at| at < edge)
                };
                let window = (0..pool.kernel[0] * pool.kernel[1]).filter_map(|number| {
                    let row = input_at(number / pool.kernel[1], 0, row, height)?;
                    let column = input_at(number % pool.kernel[1], 1, column, width)?;
                    Some((number, at(image, row, column, channel, [height, width])))
                });
                let to = at(image, row, column, channel, [out_height, out_width]);
                let (number, from) = argmax(&x, window).expect("windows overlap the map");
                (expected[to], numbers[to]) = (x[from].load(), number as u8);
                gradient[from] += dy(to);
            }
        }
    }
    let dy: Vec<E> = (0..outputs).map(|at| E::store(dy(at))).collect();
    for level in IsaLevel::all() {
        let cpu = CpuContext { team: ThreadTeam::emulating(threads), level };
        let pool = MaxPool::new(&pool, geometry(&shape), geometry(&y_shape), &cpu);
        let (mut y, mut index, mut dx) =
            (vec![E::store(7.0); outputs], vec![9; outputs], vec![E::store(7.0); x.len()]);
        pool.forward(&x, &mut y, &mut index);
        for (at, (y, expected)) in y.iter().zip(&expected).enumerate() {
            let same = y.load() == *expected || y.load().is_nan() && expected.is_nan();
            assert!(same, "{level:?} {shape:?} {at}: {} is not {expected}", y.load());
        }
        assert_eq!(index, numbers, "{level:?} {shape:?}");
        let mut masked = vec![9; outputs];
        pool.clone().with_relu_mask(true).forward(&x, &mut y, &mut masked);
        let mask = |(number, y): (&u8, &f32)| if *y <= 0.0 { RELU_MASKED } else { *number };
        assert_eq!(
            masked,
            numbers.iter().zip(&expected).map(mask).collect::<Vec<_>>(),
            "{level:?} {shape:?}"
        );
        let mut without = vec![E::store(7.0); outputs];
        pool.forward(&x, &mut without, &mut []);
        assert!(bytemuck::cast_slice::<E, u8>(&y) == bytemuck::cast_slice::<E, u8>(&without), "{level:?}");
        pool.backward(&dy, &index, &mut dx);
        let dx: Vec<f32> = dx.iter().map(|dx| dx.load()).collect();
        assert_eq!(dx, gradient, "{level:?} {shape:?}");
    }
}

proptest! {
    #[test]
    fn special_values_are_ordered_as_in_ieee_754(
        channels in prop::sample::select(vec![1usize, 3, 8, 16, 32, 48, 64, 80]),
        [height, width] in [1usize..6, 1..6],
        kernel in 1usize..4,
        stride in 1usize..4,
        padded in any::<bool>(),
        threads in 1usize..4,
        seed in any::<u64>(),
    ) {
        let pool = MaxPool2d::new(kernel, stride, if padded { kernel / 2 } else { 0 });
        let shape = [2, channels, height, width];
        let mut state = seed;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            SPECIAL_VALUES[(state >> 33) as usize % SPECIAL_VALUES.len()]
        };
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| draw()).collect();
        check::<f32>(pool, shape, &values, threads);
        check::<Bf16>(pool, shape, &values, threads);
    }
}
