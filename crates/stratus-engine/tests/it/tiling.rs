//! Tiling: the same numbers in less memory, and sections only where they may be.

use crate::common::{Probe, branches, decoder, digits, fuse, inception, published_digits, sgd};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::lower;
use stratus_engine::passes::tile::tile;
use stratus_engine::passes::update::update;
use stratus_engine::program::Mode;
use stratus_engine::{Kernel, Precision, Program, Role, Section, Session, ValueId};
use stratus_graph::Graph;

const BATCH: usize = 12;

/// A network, forward and backward, in tiles that fit so many bytes.
fn tiled(graph: &Graph, cache_bytes: usize, precision: Precision) -> Program {
    let forward = fuse(&lower(graph, Mode::Train, precision, BATCH).unwrap()).unwrap();
    tile(&differentiate(&forward).unwrap(), cache_bytes, 1).unwrap()
}

/// The digits network for small images.
fn network(cache_bytes: usize, precision: Precision) -> Program {
    tiled(&digits([2, 9, 8], 4, 3), cache_bytes, precision)
}

/// Compares a network in tiles with the whole batch at once; returns how many tiles there were.
fn compare_tiles(graph: &Graph, results: usize, caches: [usize; 4]) -> Vec<usize> {
    let whole = tiled(graph, usize::MAX, Precision::F64);
    assert!(whole.sections.is_empty());
    let mut expected = Probe::filled(&whole);
    let loss = expected.loss();
    let mut tile_counts = Vec::new();
    // From large parts of the batch to one sample at a time.
    for cache_bytes in caches {
        let tiled = tiled(graph, cache_bytes, Precision::F64);
        tile_counts.extend(tiled.sections.iter().map(|section| section.tiles));
        let mut got = Probe::filled(&tiled);
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
        // Two of its convolutions are one, whose weights' gradient is one more.
        (inception(), 30 + 18, small),
        (decoder(), 15 + 6, [60_000, 30_000, 12_000, 3_000]),
    ] {
        let tile_counts = compare_tiles(&graph, results, caches);
        assert!(tile_counts.len() >= 3 && tile_counts.contains(&BATCH), "{tile_counts:?}");
    }
}

/// Otherwise the test above would not show that masks count over the whole batch: here one pass of a layer is
/// cut and the other is not.
#[test]
fn dropout_runs_whole_forward_and_in_tiles_backward() {
    let program = tiled(&branches(), 5_000, Precision::F64);
    let tiles = (0..program.steps.len())
        .filter(|&step| matches!(program.steps[step].kernel, Kernel::Dropout(_)))
        .map(|step| program.tiles(step));
    assert_eq!(tiles.collect::<Vec<_>>(), [1, 1, 1, BATCH], "{}", program.dump());
}

#[test]
fn spatial_dropout_runs_in_tiles_both_ways() {
    let program = tiled(&decoder(), 3_000, Precision::F64);
    let tiles = (0..program.steps.len())
        .filter(|&step| matches!(program.steps[step].kernel, Kernel::Dropout2d(_)))
        .map(|step| program.tiles(step));
    assert_eq!(tiles.collect::<Vec<_>>(), [BATCH, BATCH], "{}", program.dump());
}

#[test]
fn a_training_program_in_tiles() {
    let forward = fuse(&lower(&published_digits(), Mode::Train, Precision::F32, 64).unwrap()).unwrap();
    let tiled = tile(&differentiate(&forward).unwrap(), 1 << 20, 1).unwrap();
    insta::assert_snapshot!(update(&tiled, sgd()).unwrap().dump());
}

#[test]
fn an_evaluation_in_tiles_needs_memory_for_one_tile() {
    // Of a width that makes no stem, whose largest map needs no memory at all.
    let graph = digits([1, 28, 28], 10, 6);
    let program = fuse(&lower(&graph, Mode::Evaluate, Precision::F32, 1000).unwrap()).unwrap();
    let tiled = tile(&program, 1 << 20, 1).unwrap();
    let bytes = |program: &Program| crate::common::session(program).plan(0).transient_bytes;
    assert!(bytes(&tiled) * 20 < bytes(&program), "{} of {}", bytes(&tiled), bytes(&program));
}

#[test]
fn what_does_not_divide_stays_whole() {
    // A prime batch has no tiles but single samples.
    let forward = fuse(&lower(&published_digits(), Mode::Train, Precision::F32, 127).unwrap()).unwrap();
    let tiled = tile(&differentiate(&forward).unwrap(), 1 << 20, 1).unwrap();
    assert!(tiled.sections.is_empty());
}

/// Values are put where others lie, one at a time: verification refuses it, or nothing comes of it.
#[test]
fn what_lies_where_it_must_not_is_found() {
    let program = Probe::visible(&network(8_000, Precision::F64));
    let is_transient = |value: &usize| program.values[*value].role == Role::Transient;
    let values: Vec<usize> = (0..program.values.len()).filter(is_transient).collect();
    let values_and_ids = program.values.iter().zip((0..).map(ValueId));
    let results: Vec<&str> = values_and_ids
        .filter(|(_, id)| program.is_gradient(*id))
        .map(|(value, _)| value.name.as_str())
        .collect();
    let mut expected = Probe::filled(&program);
    let loss = expected.loss();
    let (mut harmless, mut in_the_way) = (0, 0);
    for (&moved, &onto) in values.iter().flat_map(|moved| values.iter().map(move |onto| (moved, onto))) {
        let (mut prepared, persistent) = crate::common::prepared(&program);
        let placements = &mut prepared.plan.placements;
        if moved == onto || placements[moved].location == placements[onto].location {
            continue;
        }
        placements[moved].location = placements[onto].location;
        if let Err(error) = prepared.plan.verify() {
            in_the_way += usize::from(error.to_string().contains(" reads `"));
            continue;
        }
        let mut probe =
            Probe { session: Session::new(vec![prepared], persistent).unwrap(), program: program.clone() };
        probe.fill();
        assert_eq!(probe.loss().to_bits(), loss.to_bits(), "{moved} where {onto} lies");
        for name in &results {
            assert_eq!(probe.read(name), expected.read(name), "{name} with {moved} where {onto} lies");
        }
        harmless += 1;
    }
    assert!(harmless > 10 && in_the_way > 10, "{harmless} harmless, {in_the_way} in the way");
}

#[test]
fn sections_that_cannot_be_are_refused() {
    let broken = |change: &dyn Fn(&mut Program)| {
        let mut program = network(8_000, Precision::F32);
        assert!(program.sections.len() > 2, "{}", program.dump());
        change(&mut program);
        program.verify("test").unwrap_err().to_string()
    };
    let unequal = broken(&|program| program.sections[0].tiles = 5);
    let overlapping = broken(&|program| program.sections[1].first -= 1);
    let behind = broken(&|program| {
        program.sections.push(Section {
            first: 100,
            count: 2,
            tiles: 2,
            micro_batches: false,
            from_last: false,
            ahead: 1,
        });
    });
    let turned = broken(&|program| {
        let first = &mut program.sections[0];
        (first.micro_batches, first.from_last) = (true, true);
    });
    // The statistics and what applies them.
    let early = broken(&|program| {
        program.sections[0].count += 1;
        program.sections[1].first += 1;
        program.sections[1].count -= 1;
    });
    let loss = broken(&|program| {
        let position =
            program.steps.iter().position(|step| step.phase == stratus_engine::Phase::Loss).unwrap();
        program.sections = vec![Section { tiles: 2, ..Section::once(position, 1) }];
        program.values.iter_mut().filter(|value| value.per_sample).for_each(|value| value.shape[0] = BATCH);
    });
    insta::assert_snapshot!([unequal, overlapping, behind, turned, early, loss].join("\n"));
}
