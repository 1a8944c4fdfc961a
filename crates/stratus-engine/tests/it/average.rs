//! The moving average of weights: of every parameter that is trained and every statistic that changes, once
//! an iteration, whatever the passes before.

use crate::common::{HYPER, Probe, digits, fuse, published_digits, sgd};
use stratus_engine::ops::EmaUpdate;
use stratus_engine::passes::average::average;
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::lower;
use stratus_engine::passes::micro_batch::micro_batches;
use stratus_engine::passes::tile::tile;
use stratus_engine::passes::update::{update, update_joined};
use stratus_engine::program::{Mode, Origin};
use stratus_engine::{Kernel, Precision, Program, Role, ValueId};
use stratus_graph::Graph;

const DECAY: f64 = 0.5;

fn differentiated(graph: &Graph) -> Program {
    differentiate(&fuse(&lower(graph, Mode::Train, Precision::F64, 8).unwrap()).unwrap()).unwrap()
}

/// Values with their averages.
fn averages(program: &Program) -> Vec<(ValueId, ValueId)> {
    let values = program.values.iter().enumerate();
    let average = |(id, value): (usize, &stratus_engine::Value)| match value.origin {
        Some(Origin::Average(of)) => Some((of, ValueId(id))),
        _ => None,
    };
    values.filter_map(average).collect()
}

#[test]
fn everything_that_changes_is_averaged_once_and_last() {
    let mut frozen = published_digits();
    frozen.freeze(&["layer1"]).unwrap();
    for (graph, buffers) in [(published_digits(), 6), (frozen, 4)] {
        let whole = differentiated(&graph);
        let parts = micro_batches(&whole, 2).unwrap();
        let tiled = tile(&whole, 1 << 16, 2).unwrap();
        for program in [whole, parts, tiled] {
            let program = average(&update_joined(&program, sgd(), 0).unwrap(), DECAY).unwrap();
            let pairs = averages(&program);
            let parameters = program.values.iter().filter(|value| value.role == Role::Parameter).count();
            assert_eq!(pairs.len(), parameters + buffers, "{}", program.dump());
            for (of, average) in pairs {
                assert_eq!(program.value(average).name, format!("{}:average", program.value(of).name));
                let steps = |is: &dyn Fn(&stratus_engine::Step) -> bool| -> Vec<usize> {
                    (0..program.steps.len()).filter(|&step| is(&program.steps[step])).collect()
                };
                let taken = steps(&|step| step.updates.contains(&average));
                let changed = steps(&|step| step.updates.contains(&of) || step.outputs.contains(&of));
                assert_eq!(taken.len(), 1);
                assert!(changed.last() < taken.first() && program.section_of(taken[0]).is_none());
                assert!(
                    matches!(program.steps[taken[0]].kernel, Kernel::EmaUpdate(ema) if ema.decay == DECAY)
                );
            }
        }
    }
}

#[test]
fn averages_follow_the_weights_and_change_nothing_else() {
    let updated = update(&differentiated(&digits([2, 9, 8], 4, 3)), sgd()).unwrap();
    let averaged = average(&updated, DECAY).unwrap();
    let (mut plain, mut probe) = (Probe::filled(&updated), Probe::filled(&averaged));
    let pairs = averages(&averaged);
    let name = |id: ValueId| averaged.value(id).name.clone();
    let mut expected: Vec<Vec<f64>> = pairs.iter().map(|&(_, average)| probe.read(&name(average))).collect();
    let [rate, _, low, high] = HYPER;
    for iteration in [0.0, 1.0, 2.0, 50.0] {
        for probe in [&mut plain, &mut probe] {
            probe.write("hyper", &[rate, iteration, low, high]);
            probe.loss();
        }
        let gain = EmaUpdate { decay: DECAY }.gain(iteration);
        for (&(of, average), expected) in pairs.iter().zip(&mut expected) {
            let now = probe.read(&name(of));
            assert!(now == plain.read(&name(of)), "{}", name(of));
            expected.iter_mut().zip(now).for_each(|(average, now)| *average += gain * (now - *average));
            assert!(probe.read(&name(average)) == *expected, "{} {iteration}", name(average));
        }
    }
}

#[test]
fn weights_and_averages_change_places() {
    let program = average(&update(&differentiated_f32(), sgd()).unwrap(), DECAY).unwrap();
    let mut probe = Probe::filled(&program);
    let [weights, average] = ["fc.weight", "fc.weight:average"].map(|name| probe.session.read(name).unwrap());
    assert!(weights != average);
    probe.session.swap("fc.weight", "fc.weight:average").unwrap();
    let swapped = ["fc.weight:average", "fc.weight"].map(|name| probe.session.read(name).unwrap());
    assert!(swapped == [weights, average]);
    assert!(probe.session.swap("fc.weight", "fc.bias").is_err());
    assert!(probe.session.swap("fc.weight", "fc.weights").is_err());
    let state: Vec<_> = probe.session.state().filter(|value| value.role == Role::Average).collect();
    assert!(state.iter().any(|value| value.average_of == Some("fc.weight")));
}

fn differentiated_f32() -> Program {
    let forward = lower(&digits([2, 9, 8], 4, 3), Mode::Train, Precision::F32, 8).unwrap();
    differentiate(&fuse(&forward).unwrap()).unwrap()
}
