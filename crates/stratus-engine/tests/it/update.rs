//! The optimiser's steps: large layers are updated in the step of their gradient, with the same results.

use crate::common::{TestSession, branches, digits, fuse, numbers, sgd};
use std::collections::HashMap;
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::lower;
use stratus_engine::passes::micro_batch::split_into_micro_batches;
use stratus_engine::passes::recompute::{live_bytes, recompute};
use stratus_engine::passes::tile::tile;
use stratus_engine::passes::update::{Optimiser, Optimisers, update_with_threshold};
use stratus_engine::program::Mode;
use stratus_engine::{Kernel, Precision, Program, Role, Value, ValueId};
use stratus_graph::{Graph, zoo};

const BATCH: usize = 6;

fn differentiated(graph: &Graph, precision: Precision) -> Program {
    differentiate(&fuse(&lower(graph, Mode::Train, precision, BATCH).unwrap()).unwrap()).unwrap()
}

fn vgg() -> Graph {
    let scalars = zoo::ModelConfig { input: [3, 32, 32], classes: 4, width: Some(2) };
    (zoo::find("vgg11").unwrap().build)(&scalars).unwrap()
}

/// Every parameter, velocity and copy after one iteration, starting from [`initial_state`].
fn state(program: &Program) -> Vec<(String, Vec<f64>)> {
    let mut test = TestSession::filled(program);
    let initial_state = initial_state(program);
    for (name, values) in &initial_state {
        test.write(name, values);
    }
    test.loss();
    initial_state.into_iter().map(|(name, _)| (name.clone(), test.read(&name))).collect()
}

/// The initial parameters, velocities and copies, which depend only on their names.
fn initial_state(program: &Program) -> Vec<(String, Vec<f64>)> {
    let kept = program.values.iter().filter(|value| value.role.is_persistent() && value.name != "hyper");
    let fill = |value: &Value| {
        let offset = if value.name.ends_with("running_var") { 1.0 } else { 0.0 };
        let seed =
            value.name.bytes().fold(0u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        let values = numbers(value.elements(), seed, 0.5).iter().map(|x| x + offset).collect();
        (value.name.clone(), values)
    };
    let mut initial_state: Vec<(String, Vec<f64>)> = kept.map(fill).collect();
    initial_state.sort_by(|(one, _), (other, _)| one.cmp(other));
    initial_state
}

fn fused(program: &Program) -> usize {
    program.steps.iter().filter(|step| matches!(step.kernel, Kernel::LinearUpdate(_))).count()
}

#[test]
fn fused_updates_give_the_same_results() {
    for (graph, layers) in [(digits([2, 9, 8], 4, 3), 1), (branches(), 3), (vgg(), 3)] {
        // In double precision nothing is rounded between the two steps.
        for precision in [Precision::F64, Precision::Bf16] {
            let program = differentiated(&graph, precision);
            let separate = update_with_threshold(&program, sgd(), usize::MAX).unwrap();
            let together = update_with_threshold(&program, sgd(), 0).unwrap();
            assert_eq!([fused(&separate), fused(&together)], [0, layers], "{}", graph.name);
            let gradients = |program: &Program| {
                let ids = (0..program.values.len()).map(ValueId);
                ids.filter(|&id| {
                    program.value(id).role == Role::Parameter && program.gradient_of(id).is_some()
                })
                .count()
            };
            assert_eq!(gradients(&separate) - gradients(&together), layers, "{}", graph.name);
            for ((name, separate), (other, together)) in state(&separate).into_iter().zip(state(&together)) {
                assert_eq!(name, other);
                let exact = precision == Precision::F64;
                let near = |(a, b): (&f64, &f64)| {
                    if exact { a == b } else { (a - b).abs() <= 1e-2 * a.abs() + 1e-6 }
                };
                assert!(separate.iter().zip(&together).all(near), "{} {precision} {name}", graph.name);
            }
        }
    }
}

#[test]
fn only_large_layers_are_fused_and_need_less_memory() {
    let program = differentiated(&vgg(), Precision::F32);
    let sizes: Vec<usize> = program
        .values
        .iter()
        .filter(|value| value.name.starts_with("classifier") && value.name.ends_with("weight"))
        .map(Value::elements)
        .collect();
    let largest = *sizes.iter().max().unwrap();
    let [none, one] =
        [largest + 1, largest].map(|large| update_with_threshold(&program, sgd(), large).unwrap());
    assert_eq!([fused(&none), fused(&one)], [0, sizes.iter().filter(|&&size| size == largest).count()]);
    assert!(live_bytes(&one) < live_bytes(&none), "{} {}", live_bytes(&one), live_bytes(&none));
}

/// If weights are still read after their gradient, or a tile computes a part of it, the update has to wait.
#[test]
fn fused_updates_respect_other_passes() {
    for graph in [branches(), vgg()] {
        let whole = differentiated(&graph, Precision::F64);
        let expected = state(&update_with_threshold(&whole, sgd(), 0).unwrap());
        let again = update_with_threshold(&recompute(&whole, 0).unwrap(), sgd(), 0).unwrap();
        assert!(state(&again) == expected, "{}", graph.name);
        let tiled = update_with_threshold(&tile(&whole, 1, 1).unwrap(), sgd(), 0).unwrap();
        for ((name, got), (_, expected)) in state(&tiled).into_iter().zip(expected) {
            let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9 * b.abs() + 1e-12;
            assert!(got.iter().zip(&expected).all(near), "{} {name}", graph.name);
        }
    }
}

#[test]
fn biases_have_their_own_learning_rate_and_the_same_decay() {
    const FACTOR: f64 = 4.0;
    for graph in [digits([2, 9, 8], 4, 3), branches()] {
        let program = differentiated(&graph, Precision::F64);
        let Optimiser::Sgd(plain) = sgd() else { panic!("{:?}", sgd()) };
        let [decay, rate] = [f64::from(plain.weight_decay), crate::common::ITERATION_SCALARS[0]];
        let usual = update_with_threshold(&program, sgd(), 0).unwrap();
        let faster = Optimisers { biases: sgd().with_scaled_rate(FACTOR), ..Optimisers::from(sgd()) };
        let faster = update_with_threshold(&program, faster, 0).unwrap();
        let before = initial_state(&usual);
        let mut biases = 0;
        for (((name, usual), (_, faster)), (_, before)) in
            state(&usual).into_iter().zip(state(&faster)).zip(before)
        {
            if !name.contains(".bias") {
                assert_eq!(usual, faster, "{name}");
            } else if name.ends_with(".bias") {
                biases += 1;
                for ((&usual, &faster), &before) in usual.iter().zip(&faster).zip(&before) {
                    let shrunk = before - rate * decay * before;
                    let [step, larger] = [shrunk - usual, shrunk - faster];
                    // Weight decay is rounded to f32.
                    assert!((larger - FACTOR * step).abs() < 1e-9, "{name}: {step} {larger}");
                    assert!(step.abs() > 1e-6, "{name} does not move");
                }
            }
        }
        assert!(biases >= 2, "{}", graph.name);
    }
}

/// Freezes the weight or bias of a convolution, a linear layer or a batch norm; the rest of the layer trains
/// as before.
#[test]
fn single_frozen_parameters_stay_and_others_train_as_before() {
    const FROZEN: [&str; 6] =
        ["conv2.weight", "conv3.bias", "conv4.weight", "bn1.weight", "bn2.bias", "fc1.weight"];
    let mut some = branches();
    some.freeze(&FROZEN).unwrap();
    let programs = |graph: &Graph| {
        let whole = differentiated(graph, Precision::F64);
        let part = fuse(&lower(graph, Mode::Train, Precision::F64, BATCH / 2).unwrap()).unwrap();
        let parts = split_into_micro_batches(&differentiate(&part).unwrap(), 2).unwrap();
        let programs = [recompute(&whole, 0).unwrap(), tile(&whole, 1, 1).unwrap(), parts, whole];
        programs.map(|program| update_with_threshold(&program, sgd(), 0).unwrap())
    };
    for (all, some) in programs(&branches()).iter().zip(&programs(&some)) {
        let learnt: HashMap<String, Vec<f64>> = state(all).into_iter().collect();
        let before: HashMap<String, Vec<f64>> = initial_state(some).into_iter().collect();
        assert_eq!(learnt.len() - before.len(), FROZEN.len());
        for (name, got) in state(some) {
            let stays = FROZEN.contains(&name.as_str());
            assert_eq!(&got, if stays { &before[&name] } else { &learnt[&name] }, "{name}");
            assert_eq!(stays, before[&name] == got, "{name}");
        }
    }
}
