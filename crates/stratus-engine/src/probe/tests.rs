//! Programs of the reference backend, and what is timed of them.

use super::*;
use crate::ops::SgdUpdate;
use crate::passes::differentiate::differentiate;
use crate::passes::lower::lower;
use crate::passes::tile::tile as tiled;
use crate::passes::update::{LARGE, Optimiser, update_joined};
use crate::plan::Persistent;
use crate::program::Mode;
use crate::reference::ReferenceBackend;
use crate::{Choices, Precision};

/// The training step of the smallest network, in tiles of at most `tile_bytes`.
fn plans(batch: usize, tile_bytes: Option<usize>) -> Vec<PreparedPlan> {
    plans_of("digits", batch, tile_bytes)
}

fn plans_of(network: &str, batch: usize, tile_bytes: Option<usize>) -> Vec<PreparedPlan> {
    let network = stratus_graph::zoo::find(network).unwrap();
    let graph = (network.build)(&(network.defaults)()).unwrap();
    let forward = lower(&graph, Mode::Train, Precision::F32, batch).unwrap();
    let program = differentiate(&forward).unwrap();
    let program = tile_bytes.map_or(program.clone(), |bytes| tiled(&program, bytes, 1).unwrap());
    let sgd = SgdUpdate { momentum: 0.9, weight_decay: 1e-4, nesterov: false, rate: 1.0, scaled: false };
    let program = update_joined(&program, Optimiser::Sgd(sgd), LARGE).unwrap();
    let mut persistent = Persistent::default();
    let plan = Plan::prepare(&ReferenceBackend, &program, Choices::default(), false, &mut persistent);
    vec![plan.unwrap()]
}

#[test]
fn every_step_is_timed() {
    for tile_bytes in [None, Some(1 << 16)] {
        let mut probe = Probe::new(&ReferenceBackend, plans(8, tile_bytes), 1 << 16).unwrap();
        let sections = probe.plan(0).program.sections.len();
        assert_eq!(sections > 0, tile_bytes.is_some());
        probe.measure(0, Duration::ZERO).unwrap();
        let time = probe.time(0);
        assert_eq!(time.steps.len(), probe.plan(0).program.steps.len());
        assert!(time.steps.iter().all(|seconds| *seconds > 0.0), "{:?}", time.steps);
        assert!((time.seconds() - time.steps.iter().sum::<f64>()).abs() < 1e-12);
    }
}

/// Steps of other programs of the session that are equal are not timed again.
#[test]
fn equal_steps_share_their_times() {
    let twice: Vec<PreparedPlan> = plans(4, None).into_iter().chain(plans(4, None)).collect();
    let mut probe = Probe::new(&ReferenceBackend, twice, 1 << 20).unwrap();
    probe.measure(0, Duration::ZERO).unwrap();
    let first = probe.time(0);
    assert_eq!(probe.time(1), first);
    probe.measure(1, Duration::ZERO).unwrap();
    assert_eq!(probe.time(1), first);
    assert!(probe.kinds(0) <= first.steps.len());
}

/// The scratch is bounded by caches and the largest step, however many steps there are.
#[test]
fn the_network_needs_no_room() {
    let probe = Probe::new(&ReferenceBackend, plans_of("resnet18", 2, None), 1 << 20).unwrap();
    let plan = probe.plan(0);
    assert!(plan.persistent_bytes + plan.transient_bytes > 2 * probe.scratch_bytes());
}

#[test]
fn tiles_between_the_first_and_the_last_count_as_often_as_they_are() {
    let mut probe = Probe::new(&ReferenceBackend, plans(8, Some(1 << 16)), 1 << 16).unwrap();
    let section = probe.plan(0).program.sections[0];
    assert!(section.tiles > 2);
    let group = probe.programs[0].steps[section.first].group;
    // The first of several times does not count.
    probe.times[group] = Times([vec![9.0, 5.0], vec![9.0, 1.0, 3.0], vec![7.0]]);
    let expected = 5.0 + 2.0 * (section.tiles as f64 - 2.0) + 7.0;
    assert!((probe.time(0).steps[section.first] - expected).abs() < 1e-12);
}

/// One of six times of a step was interrupted.
#[test]
fn interruptions_are_shared_out() {
    let mut probe = Probe::new(&ReferenceBackend, plans(4, None), 1 << 16).unwrap();
    probe.times.iter_mut().for_each(|times| *times = Times([vec![1.0], vec![], vec![]]));
    let steps = probe.time(0).steps.len() as f64;
    assert!((probe.time(0).seconds() - steps).abs() < 1e-9);
    let interrupted = vec![9.0, 1.0, 1.0, 1.0, 1.0, 4.0];
    probe.times[0] = Times([interrupted, vec![], vec![]]);
    assert!((probe.time(0).seconds() - steps * 8.0 / 5.0).abs() < 1e-9);
}

#[test]
fn quantiles_lie_between_values() {
    assert_eq!(counted(&[5.0, 3.0, 1.0]), [1.0, 3.0]);
    assert_eq!(counted(&[5.0]), [5.0]);
    let sorted = [1.0, 2.0, 4.0];
    assert_eq!([0.0, 0.25, 0.5, 1.0].map(|part| quantile(&sorted, part)), [1.0, 1.5, 2.0, 4.0]);
    assert_eq!(quantile(&[], 0.5), 0.0);
}
