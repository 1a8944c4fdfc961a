//! Tests beyond the case tables: every instruction set, blocked channels, uninitialised scratch.

use super::*;
use crate::native::conv::direct::tests::numbers;
use crate::native::simd::IsaLevel;
use crate::native::threads::ThreadTeam;
use stratus_engine::Layout;
use stratus_graph::ops::{BatchNorm2d, Conv2d};

/// All results of a stem's kernels.
type Results = (Vec<f32>, Vec<f64>, Vec<f32>, Vec<u8>, Vec<f32>);

/// Small integers without division, so that sums are exact in any order.
fn results(
    conv: Conv2d,
    batch: usize,
    input: [usize; 2],
    blocks: bool,
    level: IsaLevel,
    team: ThreadTeam,
) -> Results {
    let channels = conv.out_channels;
    let stem = Stem::new(conv, BatchNorm2d::new(channels), true, Stem::POOL).unwrap();
    let [height, width] = conv.output_size(input).unwrap();
    let shape = Stem::POOL.output_shape([batch, channels, height, width]);
    let whole = MapGeometry::from_layout(&shape, &Layout::channels_last(&shape)).unwrap();
    let groups = channels.div_ceil(16);
    let in_blocks = MapGeometry { planes: batch * groups, pixel_channels: 16, groups, ..whole };
    let pooled = if blocks { in_blocks } else { whole };
    let kernel = StemKernel::new(stem, batch, input, pooled, &CpuContext { team, level }).unwrap();
    let elements = pooled.planes * pooled.plane_elements();
    let images = numbers(batch * conv.in_channels * input[0] * input[1], 1);
    let weight = numbers(conv.weight_shape().iter().product(), 2);
    let (ones, zeros) = (vec![1.0; channels], vec![0.0; channels]);
    // Scratch starts as NaN: nothing may depend on its contents.
    let scratch = |bytes: usize| vec![f64::NAN; bytes.div_ceil(8)];

    let (mut running, mut saved) = ([zeros.clone(), ones.clone()], [zeros.clone(), zeros.clone()]);
    let mut correlation = vec![f64::NAN; (stem.taps() + 1) * stem.taps()];
    let mut memory = scratch(kernel.statistics_scratch_bytes());
    let [running_mean, running_variance] = &mut running;
    let [mean, deviation] = &mut saved;
    let bytes = bytemuck::cast_slice_mut(&mut memory);
    kernel.statistics(
        [&images, &weight],
        [running_mean, running_variance],
        [mean, deviation],
        &mut correlation,
        Tile::WHOLE,
        &mut bytes[..kernel.statistics_scratch_bytes()],
    );
    let statistics = [running, saved].concat().concat();

    let (mut y, mut index) = (vec![f32::NAN; elements], vec![77; elements]);
    let mut memory = scratch(kernel.apply_scratch_bytes());
    let floats = &mut bytemuck::cast_slice_mut(&mut memory)[..kernel.apply_scratch_bytes() / 4];
    kernel.apply([&images, &weight], [&ones, &zeros, &zeros], &ones, &mut y, &mut index, floats);

    let dy = numbers(elements, 3);
    let mut memory = scratch(kernel.gradients_scratch_bytes());
    let bytes = bytemuck::cast_slice_mut(&mut memory);
    let (mut dweight, mut dnorm) = (vec![f32::NAN; weight.len()], [zeros.clone(), zeros.clone()]);
    let mut sums = vec![f64::NAN; channels * (stem.taps() + 1)];
    let [dnorm_weight, dnorm_bias] = &mut dnorm;
    kernel.gradients(
        [&images, &weight, &dy],
        [&ones, &zeros, &ones],
        &correlation,
        &index,
        &mut dweight,
        [dnorm_weight, dnorm_bias],
        &mut sums,
        Tile::WHOLE,
        &mut bytes[..kernel.gradients_scratch_bytes()],
    );
    (statistics, correlation, y, index, [dweight, dnorm.concat()].concat())
}

#[test]
fn every_level_and_number_of_threads_gives_the_same_results() {
    let dense = |channels, filters, kernel, padding| Conv2d::new(channels, filters, kernel, 1, padding);
    for (conv, batch, input) in [
        (dense(1, 8, 3, 1), 3, [28, 28]),
        (dense(1, 24, 3, 1), 2, [9, 17]),
        (dense(2, 16, 2, 0), 2, [6, 66]),
        (dense(1, 8, 4, 2), 1, [7, 5]),
        (dense(3, 16, 1, 0), 5, [4, 3]),
    ] {
        for blocks in [false, true] {
            let expected = results(conv, batch, input, blocks, IsaLevel::all()[0], ThreadTeam::emulating(1));
            assert!(expected.2.iter().any(|y| *y > 0.0) && expected.3.contains(&3));
            for level in IsaLevel::all() {
                for threads in 1..=4 {
                    let got = results(conv, batch, input, blocks, level, ThreadTeam::emulating(threads));
                    assert_eq!(got, expected, "{level:?} {threads} threads {conv:?} {input:?} {blocks}");
                }
            }
        }
    }
}
