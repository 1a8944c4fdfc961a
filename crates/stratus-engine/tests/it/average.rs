//! The moving average of weights: every trained parameter and every changing statistic is averaged once per
//! iteration, whatever the other passes.

use crate::common::{ITERATION_SCALARS, TestSession, digits, fuse, published_digits, sgd};
use stratus_engine::ops::EmaUpdate;
use stratus_engine::passes::average::average;
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::lower;
use stratus_engine::passes::micro_batch::split_into_micro_batches;
use stratus_engine::passes::tile::tile;
use stratus_engine::passes::update::{update, update_with_threshold};
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
        Some(Origin::Average(averaged)) => Some((averaged, ValueId(id))),
        _ => None,
    };
    values.filter_map(average).collect()
}

#[test]
fn every_changing_value_is_averaged_once_after_its_last_change() {
    let mut frozen = published_digits();
    frozen.freeze(&["layer1"]).unwrap();
    for (graph, buffers) in [(published_digits(), 6), (frozen, 4)] {
        let whole = differentiated(&graph);
        let parts = split_into_micro_batches(&whole, 2).unwrap();
        let tiled = tile(&whole, 1 << 16, 2).unwrap();
        for program in [whole, parts, tiled] {
            let program = average(&update_with_threshold(&program, sgd(), 0).unwrap(), DECAY).unwrap();
            let pairs = averages(&program);
            let parameters = program.values.iter().filter(|value| value.role == Role::Parameter).count();
            assert_eq!(pairs.len(), parameters + buffers, "{}", program.dump());
            for (averaged, average) in pairs {
                assert_eq!(program.value(average).name, format!("{}:average", program.value(averaged).name));
                let steps = |is: &dyn Fn(&stratus_engine::Step) -> bool| -> Vec<usize> {
                    (0..program.steps.len()).filter(|&step| is(&program.steps[step])).collect()
                };
                let taken = steps(&|step| step.updates.contains(&average));
                let changed =
                    steps(&|step| step.updates.contains(&averaged) || step.outputs.contains(&averaged));
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
fn averaging_follows_the_weights_and_changes_nothing_else() {
    let updated = update(&differentiated(&digits([2, 9, 8], 4, 3)), sgd()).unwrap();
    let averaged = average(&updated, DECAY).unwrap();
    let (mut plain, mut test) = (TestSession::filled(&updated), TestSession::filled(&averaged));
    let pairs = averages(&averaged);
    let name = |id: ValueId| averaged.value(id).name.clone();
    let mut expected: Vec<Vec<f64>> = pairs.iter().map(|&(_, average)| test.read(&name(average))).collect();
    let [rate, _, low, high] = ITERATION_SCALARS;
    for iteration in [0.0, 1.0, 2.0, 50.0] {
        for test in [&mut plain, &mut test] {
            test.write("hyper", &[rate, iteration, low, high]);
            test.loss();
        }
        let gain = EmaUpdate { decay: DECAY }.gain(iteration);
        for (&(averaged, average), expected) in pairs.iter().zip(&mut expected) {
            let now = test.read(&name(averaged));
            assert!(now == plain.read(&name(averaged)), "{}", name(averaged));
            expected.iter_mut().zip(now).for_each(|(average, now)| *average += gain * (now - *average));
            assert!(test.read(&name(average)) == *expected, "{} {iteration}", name(average));
        }
    }
}

#[test]
fn swap_exchanges_weights_and_averages() {
    let program = average(&update(&differentiated_f32(), sgd()).unwrap(), DECAY).unwrap();
    let mut test = TestSession::filled(&program);
    let [weights, average] = ["fc.weight", "fc.weight:average"].map(|name| test.session.read(name).unwrap());
    assert!(weights != average);
    test.session.swap("fc.weight", "fc.weight:average").unwrap();
    let swapped = ["fc.weight:average", "fc.weight"].map(|name| test.session.read(name).unwrap());
    assert!(swapped == [weights, average]);
    assert!(test.session.swap("fc.weight", "fc.bias").is_err());
    assert!(test.session.swap("fc.weight", "fc.weights").is_err());
    let state: Vec<_> = test.session.state().filter(|value| value.role == Role::Average).collect();
    assert!(state.iter().any(|value| value.average_of == Some("fc.weight")));
}

fn differentiated_f32() -> Program {
    let forward = lower(&digits([2, 9, 8], 4, 3), Mode::Train, Precision::F32, 8).unwrap();
    differentiate(&fuse(&forward).unwrap()).unwrap()
}
