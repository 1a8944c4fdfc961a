//! Images as bytes: the program normalises pixels itself, and all results are bitwise equal.

use crate::common::{TestSession, branches, digits, fuse, inception, published_digits, session, sgd};
use stratus_engine::fusions::Fusions;
use stratus_engine::ops::{KernelSpec, MAX_IMAGE_CHANNELS, NormalisePixels};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::images::with_byte_images;
use stratus_engine::passes::lower::{lower, refresh_copies};
use stratus_engine::passes::micro_batch::split_into_micro_batches;
use stratus_engine::passes::recompute::recompute;
use stratus_engine::passes::tile::tile;
use stratus_engine::passes::update::update;
use stratus_engine::program::{Layer, Mode, Origin};
use stratus_engine::{DType, EngineError, Phase, Precision, Program, Role};
use stratus_graph::Graph;

const BATCH: usize = 12;
const SCALE_SHIFT: [[f32; 2]; MAX_IMAGE_CHANNELS] =
    [[0.0171, -2.118], [0.0123, -1.9], [0.02, 0.3], [0.004, -0.1]];

/// Passes applied to a forward program.
type Passes = fn(&Program) -> Program;

fn forward(graph: &Graph, precision: Precision, batch: usize) -> Program {
    lower(graph, Mode::Train, precision, batch).unwrap()
}

fn bytes(program: &Program) -> Program {
    with_byte_images(program.clone(), SCALE_SHIFT).unwrap()
}

fn pixels(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 151 % 256) as u8).collect()
}

/// The loss, gradients and running statistics of one run on the same pixels, given as bytes or already
/// normalised.
fn results(program: &Program) -> Vec<(String, Vec<f64>)> {
    let mut test = TestSession::filled(program);
    let images = program.value(program.find("images").unwrap()).clone();
    let pixels = pixels(images.elements());
    if images.dtype == DType::U8 {
        test.write("images", &pixels.iter().map(|&pixel| f64::from(pixel)).collect::<Vec<_>>());
    } else {
        let [_, channels, height, width] = images.shape[..] else { panic!("{:?}", images.shape) };
        let normalised = |(at, &pixel): (usize, &u8)| {
            let [scale, offset] = SCALE_SHIFT[at / (height * width) % channels];
            let product = f32::from(pixel) * scale;
            f64::from(product + offset)
        };
        test.write("images", &pixels.iter().enumerate().map(normalised).collect::<Vec<_>>());
    }
    let loss = test.loss();
    let mut results: Vec<_> =
        crate::common::results(program).into_iter().map(|name| (name.clone(), test.read(&name))).collect();
    results.sort_by(|(a, _), (b, _)| a.cmp(b));
    results.extend([("loss".to_owned(), vec![loss]), ("metrics".to_owned(), test.read("metrics"))]);
    results
}

/// Checks that two results are bitwise equal.
fn expect_same(with: &Program, without: &Program, context: &str) {
    let (with, without) = (results(with), results(without));
    assert_eq!(with.len(), without.len(), "{context}");
    for ((name, got), (other, expected)) in with.iter().zip(&without) {
        let bits = |numbers: &[f64]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(name == other && bits(got) == bits(expected), "{context}: `{name}` and `{other}` differ");
    }
}

/// The order of passes does not matter.
#[test]
fn byte_images_are_bitwise_equal_with_all_passes() {
    let passes: [(&str, Passes, Passes); 5] = [
        (
            "after fusion",
            |program| differentiate(&fuse(program).unwrap()).unwrap(),
            |program| differentiate(&bytes(&fuse(program).unwrap())).unwrap(),
        ),
        (
            "before fusion",
            |program| differentiate(&without_stems(program)).unwrap(),
            |program| differentiate(&without_stems(&bytes(program))).unwrap(),
        ),
        (
            "after differentiation",
            |program| differentiate(&fuse(program).unwrap()).unwrap(),
            |program| bytes(&differentiate(&fuse(program).unwrap()).unwrap()),
        ),
        (
            "recomputed",
            |program| recompute(&differentiate(&fuse(program).unwrap()).unwrap(), 0).unwrap(),
            |program| {
                let program = differentiate(&bytes(&fuse(program).unwrap())).unwrap();
                let program = recompute(&program, 0).unwrap();
                let images = program.find_role(Role::Images).unwrap();
                let normalised = program.derived(Origin::Normalised(images)).unwrap();
                assert!(program.derived(Origin::Recomputed(normalised)).is_some(), "{}", program.dump());
                program
            },
        ),
        (
            "in micro-batches",
            |program| split_into_micro_batches(&differentiate(&fuse(program).unwrap()).unwrap(), 3).unwrap(),
            |program| {
                split_into_micro_batches(&differentiate(&bytes(&fuse(program).unwrap())).unwrap(), 3).unwrap()
            },
        ),
    ];
    let graphs = [digits([3, 9, 8], 4, 3), published_digits(), branches(), inception()];
    for (graph, precision) in graphs.iter().flat_map(|graph| {
        [Precision::F32, Precision::Bf16, Precision::F16].map(|precision| (graph, precision))
    }) {
        for (passes_applied, without, with) in passes {
            let program = forward(graph, precision, 4);
            let (without, with) = (without(&program), with(&program));
            expect_same(&with, &without, &format!("{} {precision} {passes_applied}", graph.name));
            // The plan verifies.
            session(&update(&with, sgd()).unwrap());
        }
    }
}

/// Stems read the images directly, so normalised images have none.
fn without_stems(program: &Program) -> Program {
    let fusions = Fusions { min_horizontal_bytes: 0, stem: false, ..Fusions::default() };
    stratus_engine::passes::fuse::fuse_with(program, fusions).unwrap()
}

#[test]
fn pixels_are_normalised_tile_by_tile() {
    for graph in [digits([2, 9, 8], 4, 3), digits([1, 24, 20], 4, 8)] {
        let mut counts = Vec::new();
        for cache_bytes in [400_000, 100_000, 60_000, 16_000, 5_000] {
            let program = fuse(&forward(&graph, Precision::F64, BATCH)).unwrap();
            let whole = tile(&differentiate(&program).unwrap(), cache_bytes, 1).unwrap();
            let tiled = tile(&differentiate(&bytes(&program)).unwrap(), cache_bytes, 1).unwrap();
            counts.push(tiled.tiles(0));
            // Other tiles add up in a different order.
            for ((name, got), (_, expected)) in results(&tiled).iter().zip(&results(&whole)) {
                stratus_conformance::compare(expected, got, 1e-12)
                    .unwrap_or_else(|problem| panic!("{name}: {problem}"));
            }
            // After tiling, the whole batch is normalised before the first tile.
            let after = bytes(&whole);
            assert_eq!(after.tiles(0), 1);
            expect_same(&after, &whole, &graph.name);
        }
        assert!(counts.iter().any(|&tiles| tiles > 1), "{counts:?}");
    }
}

#[test]
fn evaluation_metrics_are_unchanged() {
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        for graph in [published_digits(), inception()] {
            let program = fuse(&lower(&graph, Mode::Evaluate, precision, BATCH).unwrap()).unwrap();
            expect_same(&bytes(&program), &program, &format!("{} {precision}", graph.name));
        }
    }
}

#[test]
fn normalisation_is_a_separate_layer() {
    let before = forward(&published_digits(), Precision::Bf16, 4);
    let program = bytes(&before);
    let images = program.value(program.find_role(Role::Images).unwrap());
    assert_eq!((images.dtype, &images.shape[..]), (DType::U8, &[4, 1, 28, 28][..]));
    let step = &program.steps[0];
    assert_eq!((program.layer_name(step), step.phase), ("images".to_owned(), Phase::Forward));
    let layer = Layer { name: "images".to_owned(), kind: "normalise_pixels".to_owned() };
    assert_eq!(program.layers.iter().filter(|own| **own == layer).count(), 1);
    let normalised = program.value(step.outputs[0]);
    assert_eq!(
        (normalised.dtype, normalised.role, normalised.per_sample),
        (DType::Bf16, Role::Transient, true)
    );
    assert_eq!(program.readers(step.inputs[0]).collect::<Vec<_>>(), [0]);
    assert_eq!(program.steps.len(), before.steps.len() + 1);
    let named: Vec<_> = program.steps[1..].iter().map(|step| program.layer_name(step)).collect();
    assert_eq!(named, before.steps.iter().map(|step| before.layer_name(step)).collect::<Vec<_>>());
}

#[test]
fn rejects_programs_without_suitable_images() {
    let error =
        |program: Program, scale_shift| with_byte_images(program, scale_shift).unwrap_err().to_string();
    let program = forward(&published_digits(), Precision::Bf16, 4);
    let copies = refresh_copies(&program).unwrap();
    assert_eq!(error(copies, SCALE_SHIFT), "the program of `digits` takes no images");
    let again = error(bytes(&program), SCALE_SHIFT);
    assert_eq!(again, "the program of `digits` already takes images as bytes");
    let many = error(forward(&digits([5, 9, 8], 4, 3), Precision::F32, 4), SCALE_SHIFT);
    assert!(many.contains("`images`: expected 1 to 4 channels, got 5"), "{many}");
    let mut scale_shift = SCALE_SHIFT;
    scale_shift[0][1] = f32::NAN;
    let nowhere = with_byte_images(program, scale_shift).unwrap_err();
    assert!(
        matches!(nowhere, EngineError::InvalidProgram { pass: "with_byte_images", step: 0, .. }),
        "{nowhere}"
    );
    // Entries of missing channels are ignored.
    scale_shift = SCALE_SHIFT;
    scale_shift[2][0] = f32::INFINITY;
    assert!(with_byte_images(forward(&digits([2, 9, 8], 4, 3), Precision::F32, 4), scale_shift).is_ok());
}

#[test]
fn products_and_sums_are_rounded_separately() {
    let kernel = NormalisePixels { scale_shift: SCALE_SHIFT };
    assert_eq!(kernel.name(), "normalise_pixels");
    let differing = (0..=u8::MAX).filter(|&pixel| {
        let [scale, offset] = SCALE_SHIFT[0];
        kernel.normalise(0, pixel) != f32::from(pixel).mul_add(scale, offset)
    });
    assert!(differing.count() > 10, "fused multiply-adds give the same values: the test detects nothing");
}
