//! Tiling: equal results in less memory, and valid sections.

use crate::common::{TestSession, branches, decoder, digits, fuse, inception, published_digits, sgd};
use std::collections::{BTreeMap, HashSet};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::lower;
use stratus_engine::passes::stage::{PipelinePartition, StageMemory};
use stratus_engine::passes::step_costs::StepCosts;
use stratus_engine::passes::tile::{tile, tile_stage};
use stratus_engine::passes::update::update;
use stratus_engine::program::{Mode, Phase};
use stratus_engine::{Kernel, Precision, Program, Role, Section, Session, ValueId};
use stratus_graph::Graph;

const BATCH: usize = 12;

/// A network, forward and backward, in tiles that fit `cache_bytes`.
fn tiled(graph: &Graph, cache_bytes: usize, precision: Precision) -> Program {
    let forward = fuse(&lower(graph, Mode::Train, precision, BATCH).unwrap()).unwrap();
    tile(&differentiate(&forward).unwrap(), cache_bytes, 1).unwrap()
}

/// The digits network for small images.
fn network(cache_bytes: usize, precision: Precision) -> Program {
    tiled(&digits([2, 9, 8], 4, 3), cache_bytes, precision)
}

/// Compares a tiled network with the whole batch; returns the numbers of tiles.
fn compare_tiles(graph: &Graph, results: usize, caches: [usize; 4]) -> Vec<usize> {
    let whole = tiled(graph, usize::MAX, Precision::F64);
    assert!(whole.sections.is_empty());
    let mut expected = TestSession::filled(&whole);
    let loss = expected.loss();
    let mut tile_counts = Vec::new();
    // From large tiles to single samples.
    for cache_bytes in caches {
        let tiled = tiled(graph, cache_bytes, Precision::F64);
        tile_counts.extend(tiled.sections.iter().map(|section| section.tiles));
        let mut got = TestSession::filled(&tiled);
        let difference = (got.loss() - loss).abs();
        assert!(difference < 1e-13, "{difference} with {cache_bytes} bytes\n{}", tiled.dump());
        let mut compared = 0;
        for name in crate::common::results(&whole) {
            stratus_conformance::compare(&expected.read(&name), &got.read(&name), 1e-12)
                .unwrap_or_else(|problem| panic!("{name} with {cache_bytes} bytes: {problem}"));
            compared += 1;
        }
        assert_eq!(compared, results, "parameters and running statistics");
    }
    tile_counts.sort_unstable();
    tile_counts.dedup();
    tile_counts
}

#[test]
fn tiles_change_neither_loss_nor_gradients_nor_statistics() {
    let small = [60_000, 30_000, 16_000, 5_000];
    for (graph, results, caches) in [
        (digits([2, 9, 8], 4, 3), 11 + 6, small),
        // With a stem.
        (digits([1, 24, 20], 4, 8), 11 + 6, [400_000, 200_000, 100_000, 60_000]),
        (branches(), 20 + 4, small),
        // Two of its convolutions are fused, which adds a gradient of the joined weights.
        (inception(), 30 + 18, small),
        (decoder(), 15 + 6, [60_000, 30_000, 12_000, 3_000]),
    ] {
        let tile_counts = compare_tiles(&graph, results, caches);
        assert!(tile_counts.len() >= 3 && tile_counts.contains(&BATCH), "{tile_counts:?}");
    }
}

/// Checks that one pass of a layer is tiled and the other is not, so that the test above detects masks that
/// are not counted over the whole batch.
#[test]
fn dropout_is_tiled_only_backward() {
    let program = tiled(&branches(), 5_000, Precision::F64);
    let tiles = (0..program.steps.len())
        .filter(|&step| matches!(program.steps[step].kernel, Kernel::Dropout(_)))
        .map(|step| program.tiles(step));
    assert_eq!(tiles.collect::<Vec<_>>(), [1, 1, 1, BATCH], "{}", program.dump());
}

#[test]
fn spatial_dropout_is_tiled_both_ways() {
    let program = tiled(&decoder(), 3_000, Precision::F64);
    let tiles = (0..program.steps.len())
        .filter(|&step| matches!(program.steps[step].kernel, Kernel::Dropout2d(_)))
        .map(|step| program.tiles(step));
    assert_eq!(tiles.collect::<Vec<_>>(), [BATCH, BATCH], "{}", program.dump());
}

#[test]
fn training_program_in_tiles() {
    let forward = fuse(&lower(&published_digits(), Mode::Train, Precision::F32, 64).unwrap()).unwrap();
    let tiled = tile(&differentiate(&forward).unwrap(), 1 << 20, 1).unwrap();
    insta::assert_snapshot!(update(&tiled, sgd()).unwrap().dump());
}

#[test]
fn tiled_evaluation_needs_memory_for_one_tile() {
    // A width without stem fusion, with which the largest map would need no memory.
    let graph = digits([1, 28, 28], 10, 6);
    let program = fuse(&lower(&graph, Mode::Evaluate, Precision::F32, 1000).unwrap()).unwrap();
    let tiled = tile(&program, 1 << 20, 1).unwrap();
    let bytes = |program: &Program| crate::common::session(program).plan(0).transient_bytes;
    assert!(bytes(&tiled) * 20 < bytes(&program), "{} of {}", bytes(&tiled), bytes(&program));
}

/// Kernels may round differently for other numbers of samples, so a step has the same tiles in any stage.
#[test]
fn stages_have_the_tiles_of_the_whole_network() {
    let memory = StageMemory { bytes_per_parameter_byte: 4, limit_bytes: usize::MAX, recomputes: false };
    let mut counts = HashSet::new();
    for graph in [published_digits(), branches(), inception(), decoder()] {
        let [train, evaluate] = [Mode::Train, Mode::Evaluate]
            .map(|mode| fuse(&lower(&graph, mode, Precision::F32, 64).unwrap()).unwrap());
        let train = differentiate(&train).unwrap();
        for kib in [16, 64, 256, 512, 1024] {
            let tiles_of_values = |program: &Program| -> BTreeMap<String, Vec<usize>> {
                let mut found: BTreeMap<String, Vec<usize>> = BTreeMap::new();
                let steps = program.steps.iter().enumerate();
                for (position, step) in steps.filter(|(_, step)| step.phase != Phase::Communication) {
                    let tiles = program.section_or_single(position).tiles;
                    for id in &step.outputs {
                        found.entry(program.value(*id).name.clone()).or_default().push(tiles);
                    }
                }
                found
            };
            let whole = tiles_of_values(&tile(&evaluate, kib << 10, 4).unwrap());
            counts.extend(whole.values().flatten().copied());
            for count in [1, 2, 3, 4] {
                let costs = StepCosts::estimated();
                let cut = PipelinePartition::balanced(&train, &evaluate, count, memory, &costs).unwrap();
                let mut of_stages = BTreeMap::new();
                for index in 0..count {
                    let stage = cut.stage(&evaluate, index).unwrap();
                    of_stages.extend(tiles_of_values(&tile_stage(&stage, &evaluate, kib << 10, 4).unwrap()));
                }
                assert_eq!(of_stages, whole, "{} in {count} stages, {kib} KiB", graph.name);
            }
        }
    }
    assert!(counts.len() > 3, "{counts:?}");
}

#[test]
fn batches_without_divisors_are_not_tiled() {
    // A prime batch has no tiles except single samples.
    let forward = fuse(&lower(&published_digits(), Mode::Train, Precision::F32, 127).unwrap()).unwrap();
    let tiled = tile(&differentiate(&forward).unwrap(), 1 << 20, 1).unwrap();
    assert!(tiled.sections.is_empty());
}

/// Moves values onto others, one at a time: verification rejects the plan, or results are unchanged.
#[test]
fn verify_detects_overlapping_placements() {
    let program = TestSession::visible(&network(8_000, Precision::F64));
    let is_transient = |value: &usize| program.values[*value].role == Role::Transient;
    let values: Vec<usize> = (0..program.values.len()).filter(is_transient).collect();
    let values_and_ids = program.values.iter().zip((0..).map(ValueId));
    let results: Vec<&str> = values_and_ids
        .filter(|(_, id)| program.is_gradient(*id))
        .map(|(value, _)| value.name.as_str())
        .collect();
    let mut expected = TestSession::filled(&program);
    let loss = expected.loss();
    let (mut harmless, mut rejected) = (0, 0);
    for (&moved, &onto) in values.iter().flat_map(|moved| values.iter().map(move |onto| (moved, onto))) {
        let (mut prepared, persistent) = crate::common::prepared(&program);
        let placements = &mut prepared.plan.placements;
        if moved == onto || placements[moved].location == placements[onto].location {
            continue;
        }
        placements[moved].location = placements[onto].location;
        if let Err(error) = prepared.plan.verify() {
            rejected += usize::from(error.to_string().contains(" reads `"));
            continue;
        }
        let mut test = TestSession {
            session: Session::new(vec![prepared], persistent).unwrap(),
            program: program.clone(),
        };
        test.fill();
        assert_eq!(test.loss().to_bits(), loss.to_bits(), "{moved} placed at {onto}");
        for name in &results {
            assert_eq!(test.read(name), expected.read(name), "{name} with {moved} placed at {onto}");
        }
        harmless += 1;
    }
    assert!(harmless > 10 && rejected > 10, "{harmless} harmless, {rejected} rejected");
}

#[test]
fn verification_rejects_invalid_sections() {
    let broken = |change: &dyn Fn(&mut Program)| {
        let mut program = network(8_000, Precision::F32);
        assert!(program.sections.len() > 2, "{}", program.dump());
        change(&mut program);
        program.verify("test").unwrap_err().to_string()
    };
    let unequal = broken(&|program| program.sections[0].tiles = 5);
    let overlapping = broken(&|program| program.sections[1].first -= 1);
    let out_of_range = broken(&|program| {
        program.sections.push(Section {
            first: 100,
            count: 2,
            tiles: 2,
            micro_batches: false,
            reversed: false,
            in_flight: 1,
        });
    });
    let reversed = broken(&|program| {
        let first = &mut program.sections[0];
        (first.micro_batches, first.reversed) = (true, true);
    });
    // The statistics and the step that applies them.
    let early = broken(&|program| {
        program.sections[0].count += 1;
        program.sections[1].first += 1;
        program.sections[1].count -= 1;
    });
    let loss = broken(&|program| {
        let position = program.steps.iter().position(|step| step.phase == Phase::Loss).unwrap();
        program.sections = vec![Section { tiles: 2, ..Section::once(position, 1) }];
        program.values.iter_mut().filter(|value| value.per_sample).for_each(|value| value.shape[0] = BATCH);
    });
    insta::assert_snapshot!([unequal, overlapping, out_of_range, reversed, early, loss].join("\n"));
}
