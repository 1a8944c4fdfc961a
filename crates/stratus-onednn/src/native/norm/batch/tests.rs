//! Tests beyond the case tables: every instruction set, and means far from zero.

use super::*;
use crate::native::elementwise::CpuContext;
use crate::native::rows::{ChannelSlice, MapGeometry};
use crate::native::threads::ThreadTeam;
use stratus_engine::Layout;
use stratus_engine::ops::FusedPool;
use stratus_graph::ops::MaxPool2d;

fn norm(shape: &[usize; 4], level: IsaLevel, pool: Option<FusedPool>) -> BatchNorm {
    let channels_last =
        |shape: &[usize; 4]| MapGeometry::from_layout(shape, &Layout::channels_last(shape)).unwrap();
    let geometry = channels_last(shape);
    let (epsilon, momentum, dtype, team) = (1e-5, 0.1, DType::F32, ThreadTeam::single());
    let [input, output] = [ChannelSlice::all_of(geometry); 2];
    let pool = pool.map(|fused| match fused.overlapping {
        Some(pool) => {
            let pooled = channels_last(&fused.output_shape(*shape));
            let cpu = CpuContext { team: team.clone(), level };
            Pooling::Overlapping(Box::new(MaxPool::new(&pool, geometry, pooled, &cpu)))
        }
        None => Pooling::Disjoint(DisjointPool { window: fused.window }),
    });
    BatchNorm {
        geometry,
        input,
        output,
        epsilon,
        momentum,
        activation: FusedActivation::RELU,
        pool,
        dtype,
        output_dtype: dtype,
        level,
        team,
    }
}

fn numbers(count: usize) -> Vec<f32> {
    let mut bits = 7u32;
    let mut next = || {
        bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (bits >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Runs forward and backward; returns `y`, mean, inverse deviation and `dx`.
fn both(shape: &[usize; 4], level: IsaLevel, pool: Option<FusedPool>, x: &[f32]) -> [Vec<f32>; 4] {
    let norm = norm(shape, level, pool);
    let channels = shape[1];
    let outputs = pool.map_or(*shape, |pool| pool.output_shape(*shape)).iter().product();
    let mut scratch: Vec<f64> = vec![f64::NAN; norm.scratch_bytes() / 8];
    let scratch = bytemuck::cast_slice_mut(&mut scratch);
    let mut index = vec![0u8; if pool.is_some() { outputs } else { 0 }];
    let (mut y, mut mean, mut inverse) = (vec![0.0f32; outputs], vec![0.0; channels], vec![0.0; channels]);
    let (weight, bias) = (vec![1.5; channels], vec![0.25; channels]);
    let (mut running_mean, mut running_variance) = (vec![0.0; channels], vec![1.0; channels]);
    let running = [&mut running_mean[..], &mut running_variance];
    let mut moments = vec![f64::NAN; 2 * channels];
    let x = bytemuck::cast_slice(x);
    norm.statistics(x, running, [&mut mean, &mut inverse], &mut moments, Tile::WHOLE, scratch);
    let parameters = [&weight[..], &bias, &mean, &inverse];
    norm.apply([x, &[]], parameters, bytemuck::cast_slice_mut(&mut y), &mut index, scratch);
    let (mut dx, mut dweight, mut dbias) =
        (vec![0.0f32; x.len() / 4], vec![0.0; channels], vec![0.0; channels]);
    let (dy, whole) = (bytemuck::cast_slice(&y), Tile::WHOLE);
    let gradients = [&mut dweight[..], &mut dbias];
    norm.gradients(x, dy, parameters, &index, gradients, &mut moments, whole, scratch);
    let to = bytemuck::cast_slice_mut(&mut dx);
    norm.backward_data(x, dy, parameters, [&dweight, &dbias], &index, to, whole, scratch);
    [y, mean, inverse, dx]
}

#[test]
fn every_level_gives_the_same_bits() {
    for shape in [[2, 16, 6, 7], [1, 8, 4, 4], [3, 5, 5, 3], [1, 112, 5, 6]] {
        let x = numbers(shape.iter().product());
        let disjoint = [[2, 2], [3, 1]].map(FusedPool::disjoint);
        let ceil = MaxPool2d { ceil_mode: true, ..MaxPool2d::new(3, 2, 0) };
        let others = [MaxPool2d::new(3, 2, 1), ceil, MaxPool2d::new(2, 1, 0)];
        let pools = disjoint.into_iter().chain(others.iter().filter_map(FusedPool::from_pool));
        for pool in pools.map(Some).chain([None]) {
            let baseline = both(&shape, IsaLevel::detect([false, false]), pool, &x);
            for level in IsaLevel::all() {
                assert_eq!(both(&shape, level, pool, &x), baseline, "{shape:?} {pool:?} {}", level.name());
            }
        }
    }
}

/// Large maps are staged, small ones are not: the results must be equal.
#[test]
fn large_maps_are_pooled_like_their_images() {
    let (shape, image) = ([84usize, 8, 80, 80], [1, 8, 80, 80]);
    let (small, large) = (
        norm(&image, IsaLevel::detect([true, true]), Some(FusedPool::disjoint([2, 2]))),
        norm(&shape, IsaLevel::detect([true, true]), Some(FusedPool::disjoint([2, 2]))),
    );
    assert!(large.scratch_bytes() > small.scratch_bytes(), "the large map is staged");
    let x = numbers(shape.iter().product());
    let channels = shape[1];
    let constants: [Vec<f32>; 4] =
        [1.5, 0.25, 0.1, 2.0].map(|base| (0..channels).map(|channel| base + 0.01 * channel as f32).collect());
    let parameters = constants.each_ref().map(Vec::as_slice);
    let run = |norm: &BatchNorm, x: &[f32]| {
        let mut scratch: Vec<f64> = vec![f64::NAN; norm.scratch_bytes() / 8];
        let scratch = bytemuck::cast_slice_mut(&mut scratch);
        let (mut y, mut index, mut dx) =
            (vec![0.0f32; x.len() / 4], vec![0u8; x.len() / 4], vec![f32::NAN; x.len()]);
        let x = bytemuck::cast_slice(x);
        norm.inference(x, parameters, bytemuck::cast_slice_mut(&mut y), &mut index, scratch);
        let dy = bytemuck::cast_slice(&y);
        norm.inference_backward(x, dy, parameters, &index, bytemuck::cast_slice_mut(&mut dx), scratch);
        (y, index, dx)
    };
    let (y, index, dx) = run(&large, &x);
    let each = x.chunks(image.iter().product()).map(|x| run(&small, x));
    let (outputs, elements) = (y.len() / shape[0], dx.len() / shape[0]);
    for (number, (own_y, own_index, own_dx)) in each.enumerate() {
        assert!(y[number * outputs..][..outputs] == own_y, "image {number}");
        assert!(index[number * outputs..][..outputs] == own_index, "image {number}");
        assert!(dx[number * elements..][..elements] == own_dx, "image {number}");
    }
}

#[test]
fn a_mean_a_thousand_deviations_from_zero_costs_no_precision() {
    let shape = [4, 8, 16, 16];
    let noise = numbers(shape.iter().product());
    let x: Vec<f32> = noise.iter().map(|number| 1000.0 + number).collect();
    let [_, mean, inverse, _] = both(&shape, IsaLevel::detect([true, true]), None, &x);
    for channel in 0..8 {
        let values: Vec<f64> = x.iter().skip(channel).step_by(8).map(|&x| f64::from(x)).collect();
        let expected = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|x| (x - expected).powi(2)).sum::<f64>() / values.len() as f64;
        let deviation = f64::from(inverse[channel]).recip();
        assert!((f64::from(mean[channel]) - expected).abs() < 1e-4, "{mean:?}");
        assert!((deviation / variance.sqrt() - 1.0).abs() < 1e-4, "{inverse:?}");
    }
}
