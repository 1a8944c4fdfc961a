//! Profiles of programs on the reference backend.

use super::*;
use crate::ops::SgdUpdate;
use crate::passes::differentiate::differentiate;
use crate::passes::lower::{LossFunction, lower, with_loss};
use crate::passes::tile::tile as tiled;
use crate::passes::update::{MIN_FUSED_UPDATE_WEIGHTS, Optimiser, update_with_threshold};
use crate::plan::Persistent;
use crate::program::Mode;
use crate::reference::ReferenceBackend;
use crate::{Choices, Precision};

/// The training step of the smallest network, in tiles of at most `tile_bytes`.
fn plans(batch: usize, tile_bytes: Option<usize>) -> Vec<PreparedPlan> {
    plans_of("digits", batch, tile_bytes)
}

fn plans_of(network: &str, batch: usize, tile_bytes: Option<usize>) -> Vec<PreparedPlan> {
    plans_with(LossFunction::CrossEntropy, network, batch, tile_bytes)
}

fn plans_with(
    loss: LossFunction,
    network: &str,
    batch: usize,
    tile_bytes: Option<usize>,
) -> Vec<PreparedPlan> {
    let network = stratus_graph::zoo::find(network).unwrap();
    let graph = (network.build)(&(network.defaults)()).unwrap();
    let forward = with_loss(lower(&graph, Mode::Train, Precision::F32, batch).unwrap(), loss).unwrap();
    let program = differentiate(&forward).unwrap();
    let program = tile_bytes.map_or(program.clone(), |bytes| tiled(&program, bytes, 1).unwrap());
    let sgd = SgdUpdate {
        momentum: 0.9,
        weight_decay: 1e-4,
        nesterov: false,
        rate_factor: 1.0,
        loss_scaled: false,
    };
    let program = update_with_threshold(&program, Optimiser::Sgd(sgd), MIN_FUSED_UPDATE_WEIGHTS).unwrap();
    let mut persistent = Persistent::default();
    let plan = Plan::prepare(&ReferenceBackend, &program, Choices::default(), false, &mut persistent);
    vec![plan.unwrap()]
}

#[test]
fn every_step_is_timed() {
    for tile_bytes in [None, Some(1 << 16)] {
        let mut profiler = StepProfiler::new(&ReferenceBackend, plans(8, tile_bytes), 1 << 16).unwrap();
        let sections = profiler.plan(0).program.sections.len();
        assert_eq!(sections > 0, tile_bytes.is_some());
        profiler.measure(0, Duration::ZERO).unwrap();
        let time = profiler.time(0);
        assert_eq!(time.steps.len(), profiler.plan(0).program.steps.len());
        assert!(time.steps.iter().all(|seconds| *seconds > 0.0), "{:?}", time.steps);
        assert!((time.seconds() - time.steps.iter().sum::<f64>()).abs() < 1e-12);
    }
}

/// The memory of a step contains valid targets, whatever other steps have written.
#[test]
fn losses_of_labels_are_timed() {
    let plans = plans_with(LossFunction::BinaryCrossEntropy, "digits", 8, None);
    let mut profiler = StepProfiler::new(&ReferenceBackend, plans, 1 << 12).unwrap();
    profiler.measure(0, Duration::ZERO).unwrap();
    profiler.measure(0, Duration::ZERO).unwrap();
    assert!(profiler.time(0).steps.iter().all(|seconds| *seconds > 0.0));
}

/// Equal steps of other programs of the session are not timed again.
#[test]
fn equal_steps_share_their_times() {
    let twice: Vec<PreparedPlan> = plans(4, None).into_iter().chain(plans(4, None)).collect();
    let mut profiler = StepProfiler::new(&ReferenceBackend, twice, 1 << 20).unwrap();
    profiler.measure(0, Duration::ZERO).unwrap();
    let first = profiler.time(0);
    assert_eq!(profiler.time(1), first);
    profiler.measure(1, Duration::ZERO).unwrap();
    assert_eq!(profiler.time(1), first);
    assert!(profiler.distinct_steps(0) <= first.steps.len());
}

/// The scratch is bounded by caches and the largest step, however many steps there are.
#[test]
fn scratch_is_smaller_than_the_network() {
    let profiler = StepProfiler::new(&ReferenceBackend, plans_of("resnet18", 2, None), 1 << 20).unwrap();
    let plan = profiler.plan(0);
    assert!(plan.persistent_bytes + plan.transient_bytes > 2 * profiler.scratch_bytes());
}

#[test]
fn middle_tiles_count_once_per_tile() {
    let mut profiler = StepProfiler::new(&ReferenceBackend, plans(8, Some(1 << 16)), 1 << 16).unwrap();
    let section = profiler.plan(0).program.sections[0];
    assert!(section.tiles > 2);
    let group = profiler.programs[0].steps[section.first].group;
    // The first of several times is ignored.
    profiler.times[group] = StepTimings([vec![9.0, 5.0], vec![9.0, 1.0, 3.0], vec![7.0]]);
    let expected = 5.0 + 2.0 * (section.tiles as f64 - 2.0) + 7.0;
    assert!((profiler.time(0).steps[section.first] - expected).abs() < 1e-12);
}

/// One of six timings of a step is interrupted.
#[test]
fn interruptions_are_distributed_over_the_steps() {
    let mut profiler = StepProfiler::new(&ReferenceBackend, plans(4, None), 1 << 16).unwrap();
    profiler.times.iter_mut().for_each(|times| *times = StepTimings([vec![1.0], vec![], vec![]]));
    let steps = profiler.time(0).steps.len() as f64;
    assert!((profiler.time(0).seconds() - steps).abs() < 1e-9);
    let interrupted = vec![9.0, 1.0, 1.0, 1.0, 1.0, 4.0];
    profiler.times[0] = StepTimings([interrupted, vec![], vec![]]);
    assert!((profiler.time(0).seconds() - steps * 8.0 / 5.0).abs() < 1e-9);
}

#[test]
fn quantiles_are_interpolated() {
    assert_eq!(counted(&[5.0, 3.0, 1.0]), [1.0, 3.0]);
    assert_eq!(counted(&[5.0]), [5.0]);
    let sorted = [1.0, 2.0, 4.0];
    assert_eq!([0.0, 0.25, 0.5, 1.0].map(|part| quantile(&sorted, part)), [1.0, 1.5, 2.0, 4.0]);
    assert_eq!(quantile(&[], 0.5), 0.0);
}
