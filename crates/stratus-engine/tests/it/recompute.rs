//! Recomputed activations: bitwise equal results in less memory.

use crate::common::{TestSession, branches, decoder, digits, fuse, inception, session, sgd};
use stratus_engine::ops::{KernelSpec, Tiling};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::lower;
use stratus_engine::passes::recompute::{live_bytes, recompute};
use stratus_engine::passes::tile::tile;
use stratus_engine::passes::update::update;
use stratus_engine::program::Mode;
use stratus_engine::{Kernel, Phase, Precision, Program, Step, ValueId};
use stratus_graph::{Graph, zoo};

const BATCH: usize = 6;

fn network(name: &str, side: usize, width: usize) -> Graph {
    let scalars = zoo::ModelConfig { input: [3, side, side], classes: 4, width: Some(width) };
    (zoo::find(name).unwrap().build)(&scalars).unwrap()
}

fn differentiated(graph: &Graph, precision: Precision) -> Program {
    differentiate(&fuse(&lower(graph, Mode::Train, precision, BATCH).unwrap()).unwrap()).unwrap()
}

/// All results of an iteration: the loss, gradients of parameters, running statistics.
fn results(program: &Program) -> Vec<(String, Vec<f64>)> {
    let mut test = TestSession::filled(program);
    let loss = test.loss();
    let mut results = vec![("loss".to_owned(), vec![loss])];
    results.extend(crate::common::results(program).into_iter().map(|name| (name.clone(), test.read(&name))));
    results
}

/// The recomputed values with their originals.
fn recomputed(program: &Program) -> impl Iterator<Item = (ValueId, ValueId)> + '_ {
    let ids = (0..program.values.len()).map(ValueId);
    ids.filter_map(|id| Some((id, program.recomputed_from(id)?)))
}

fn recomputed_count(program: &Program) -> usize {
    recomputed(program).count()
}

#[test]
fn recomputation_is_bitwise_equal() {
    let graphs = [
        digits([2, 9, 8], 4, 3),
        branches(),
        inception(),
        decoder(),
        network("resnet18_cifar", 8, 2),
        network("vgg11", 32, 2),
        network("mobilenet_v2", 32, 2),
        network("alexnet", 63, 2),
    ];
    for graph in graphs {
        let whole = differentiated(&graph, Precision::F32);
        let (expected, bytes) = (results(&whole), live_bytes(&whole));
        let planned = |program: &Program| session(&update(program, sgd()).unwrap()).plan(0).transient_bytes;
        let mut counts = Vec::new();
        for share in [0.9, 0.75, 0.0] {
            let less = recompute(&whole, (share * bytes as f64) as usize).unwrap();
            counts.push(recomputed_count(&less));
            assert!(live_bytes(&less) <= bytes, "{}", graph.name);
            assert_eq!(
                results(&less),
                expected,
                "{} with {share} of the memory\n{}",
                graph.name,
                less.dump()
            );
            assert!(planned(&less) <= planned(&whole), "{} with {share} of the memory", graph.name);
        }
        assert!(counts[2] > 0 && counts.is_sorted(), "{}: {counts:?}", graph.name);
    }
}

/// In VGG-11, the gradient of one weight is 87 % of the live memory. Its pooled maps are recomputed together
/// with the maps that only the poolings read.
#[test]
fn live_memory_shrinks_to_the_limit() {
    for (graph, least) in [(network("resnet18_cifar", 32, 8), 0.55), (network("vgg11", 64, 8), 0.9)] {
        let whole = differentiated(&graph, Precision::F32);
        let bytes = live_bytes(&whole);
        for share in [0.95, least] {
            let limit = (share * bytes as f64) as usize;
            let less = recompute(&whole, limit).unwrap();
            assert!(live_bytes(&less) <= limit, "{}: {} of {bytes}", graph.name, live_bytes(&less));
        }
    }
}

#[test]
fn programs_within_the_limit_are_unchanged() {
    let program = differentiated(&digits([2, 9, 8], 4, 3), Precision::Bf16);
    assert_eq!(recompute(&program, live_bytes(&program)).unwrap(), program);
    assert_eq!(recompute(&program, usize::MAX).unwrap(), program);
}

#[test]
fn statistics_are_not_recomputed() {
    let program = recompute(&differentiated(&network("resnet18_cifar", 8, 2), Precision::F32), 0).unwrap();
    for (position, step) in program.steps.iter().enumerate() {
        let again = step.outputs.iter().any(|&id| program.recomputed_from(id).is_some());
        assert!(!again || step.phase == Phase::BackwardData, "step {position}");
        assert!(!again || !matches!(step.kernel, Kernel::BatchNormStatistics(_)), "step {position}");
    }
}

#[test]
fn recomputed_steps_run_in_tiles() {
    for graph in [branches(), inception(), decoder()] {
        let whole = differentiated(&graph, Precision::F64);
        let less = recompute(&whole, 0).unwrap();
        let tiled = tile(&less, 5_000, 1).unwrap();
        assert!(!tiled.sections.is_empty());
        for ((name, expected), (_, got)) in results(&whole).iter().zip(results(&tiled)) {
            stratus_conformance::compare(expected, &got, 1e-12)
                .unwrap_or_else(|problem| panic!("{} {name}: {problem}", graph.name));
        }
    }
}

/// A concatenated map is recomputed by all its producers.
#[test]
fn concatenated_maps_are_recomputed_by_all_producers() {
    let less = recompute(&differentiated(&inception(), Precision::F32), 0).unwrap();
    let writers = |value: ValueId| {
        let writes = |step: &&Step| step.outputs.iter().chain(&step.updates).any(|&id| id == value);
        less.steps.iter().filter(writes).count()
    };
    let mut in_parts = 0;
    for (again, first) in recomputed(&less) {
        let before = writers(first);
        assert_eq!(writers(again), before, "{}\n{}", less.value(again).name, less.dump());
        in_parts += usize::from(before > 1);
    }
    assert!(in_parts > 0, "{}", less.dump());
}

/// The number of tiles of each sum over the batch.
fn tiles_of_sums(program: &Program) -> Vec<(String, usize)> {
    let sums =
        program.steps.iter().enumerate().filter(|(_, step)| step.kernel.tiling() == Tiling::PartialSums);
    let mut sums: Vec<(String, usize)> = sums
        .map(|(position, step)| {
            let tiles = program.section_of(position).map_or(1, |section| section.tiles);
            (format!("{:?} of {}", step.kernel, program.layer_name(step)), tiles)
        })
        .collect();
    sums.sort();
    sums
}

#[test]
fn sums_have_the_same_tiles_with_recomputation() {
    let (mut tiled, mut compared) = (0, 0);
    let graphs = [network("resnet18_cifar", 8, 8), network("vgg11", 32, 4), network("mobilenet_v2", 32, 2)];
    for program in graphs.map(|graph| differentiated(&graph, Precision::F64)) {
        let peak = live_bytes(&program);
        for kib in [4, 16, 64, 256] {
            let expected = tiles_of_sums(&tile(&program, kib << 10, 1).unwrap());
            tiled += expected.iter().filter(|(_, tiles)| *tiles > 1).count();
            for share in [9, 8, 7, 6, 5] {
                let less = recompute(&program, peak / 10 * share).unwrap();
                assert_eq!(tiles_of_sums(&tile(&less, kib << 10, 1).unwrap()), expected, "{kib} {share}");
                compared += recomputed_count(&less);
            }
        }
    }
    assert!(tiled > 20 && compared > 20, "{tiled} {compared}");
}
