//! Images as bytes: the program makes of the pixels what it was given before, and all else is the same to the
//! bit.

use crate::common::{Probe, branches, digits, fuse, inception, published_digits, session, sgd};
use stratus_engine::ops::{KernelSpec, MOST_CHANNELS, NormalisePixels};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::images::images_as_bytes;
use stratus_engine::passes::lower::{lower, refresh};
use stratus_engine::passes::micro_batch::micro_batches;
use stratus_engine::passes::recompute::recompute;
use stratus_engine::passes::tile::tile;
use stratus_engine::passes::update::update;
use stratus_engine::program::{Layer, Mode, Origin};
use stratus_engine::{DType, EngineError, Phase, Precision, Program, Role};
use stratus_graph::Graph;

const BATCH: usize = 12;
const LINES: [[f32; 2]; MOST_CHANNELS] = [[0.0171, -2.118], [0.0123, -1.9], [0.02, 0.3], [0.004, -0.1]];

/// What is done to a forward program.
type Passes = fn(&Program) -> Program;

fn forward(graph: &Graph, precision: Precision, batch: usize) -> Program {
    lower(graph, Mode::Train, precision, batch).unwrap()
}

fn bytes(program: &Program) -> Program {
    images_as_bytes(program.clone(), LINES).unwrap()
}

fn pixels(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 151 % 256) as u8).collect()
}

/// The loss, gradients and running statistics of one run on the same pixels, as bytes or converted before.
fn results(program: &Program) -> Vec<(String, Vec<f64>)> {
    let mut probe = Probe::filled(program);
    let images = program.value(program.find("images").unwrap()).clone();
    let pixels = pixels(images.elements());
    if images.dtype == DType::U8 {
        probe.write("images", &pixels.iter().map(|&pixel| f64::from(pixel)).collect::<Vec<_>>());
    } else {
        let [_, channels, height, width] = images.shape[..] else { panic!("{:?}", images.shape) };
        let of = |(at, &pixel): (usize, &u8)| {
            let [scale, offset] = LINES[at / (height * width) % channels];
            let product = f32::from(pixel) * scale;
            f64::from(product + offset)
        };
        probe.write("images", &pixels.iter().enumerate().map(of).collect::<Vec<_>>());
    }
    let loss = probe.loss();
    let mut results: Vec<_> =
        crate::common::results(program).into_iter().map(|name| (name.clone(), probe.read(&name))).collect();
    results.sort_by(|(a, _), (b, _)| a.cmp(b));
    results.extend([("loss".to_owned(), vec![loss]), ("metrics".to_owned(), probe.read("metrics"))]);
    results
}

/// Compares two results to the bit.
fn expect_same(with: &Program, without: &Program, what: &str) {
    let (with, without) = (results(with), results(without));
    assert_eq!(with.len(), without.len(), "{what}");
    for ((name, got), (other, expected)) in with.iter().zip(&without) {
        let bits = |numbers: &[f64]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(name == other && bits(got) == bits(expected), "{what}: `{name}` and `{other}` differ");
    }
}

/// Whatever comes before or behind it.
#[test]
fn nothing_else_changes_a_bit() {
    let passes: [(&str, Passes, Passes); 5] = [
        (
            "behind fusion",
            |program| differentiate(&fuse(program).unwrap()).unwrap(),
            |program| differentiate(&bytes(&fuse(program).unwrap())).unwrap(),
        ),
        (
            "before fusion",
            |program| differentiate(&without_stems(program)).unwrap(),
            |program| differentiate(&without_stems(&bytes(program))).unwrap(),
        ),
        (
            "behind differentiation",
            |program| differentiate(&fuse(program).unwrap()).unwrap(),
            |program| bytes(&differentiate(&fuse(program).unwrap()).unwrap()),
        ),
        (
            "made again",
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
            |program| micro_batches(&differentiate(&fuse(program).unwrap()).unwrap(), 3).unwrap(),
            |program| micro_batches(&differentiate(&bytes(&fuse(program).unwrap())).unwrap(), 3).unwrap(),
        ),
    ];
    let graphs = [digits([3, 9, 8], 4, 3), published_digits(), branches(), inception()];
    for (graph, precision) in graphs.iter().flat_map(|graph| {
        [Precision::F32, Precision::Bf16, Precision::F16].map(|precision| (graph, precision))
    }) {
        for (what, without, with) in passes {
            let program = forward(graph, precision, 4);
            let (without, with) = (without(&program), with(&program));
            expect_same(&with, &without, &format!("{} {precision} {what}", graph.name));
            // What was planned and placed is sound.
            session(&update(&with, sgd()).unwrap());
        }
    }
}

/// A stem is one of the images: what is made of them is none.
fn without_stems(program: &Program) -> Program {
    let fusions = stratus_engine::passes::fuse::Fusions { large: 0, stems: false };
    stratus_engine::passes::fuse::fuse_as(program, fusions).unwrap()
}

#[test]
fn in_tiles_the_pixels_of_a_tile_are_converted_with_it() {
    for graph in [digits([2, 9, 8], 4, 3), digits([1, 24, 20], 4, 8)] {
        let mut counts = Vec::new();
        for cache_bytes in [400_000, 100_000, 60_000, 16_000, 5_000] {
            let program = fuse(&forward(&graph, Precision::F64, BATCH)).unwrap();
            let whole = tile(&differentiate(&program).unwrap(), cache_bytes, 1).unwrap();
            let tiled = tile(&differentiate(&bytes(&program)).unwrap(), cache_bytes, 1).unwrap();
            counts.push(tiled.tiles(0));
            // Other tiles add up in another order.
            for ((name, got), (_, expected)) in results(&tiled).iter().zip(&results(&whole)) {
                stratus_conformance::compare(expected, got, 1e-12)
                    .unwrap_or_else(|problem| panic!("{name}: {problem}"));
            }
            // Behind it the whole batch is converted before the first tile.
            let behind = bytes(&whole);
            assert_eq!(behind.tiles(0), 1);
            expect_same(&behind, &whole, &graph.name);
        }
        assert!(counts.iter().any(|&tiles| tiles > 1), "{counts:?}");
    }
}

#[test]
fn evaluation_counts_the_same() {
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        for graph in [published_digits(), inception()] {
            let program = fuse(&lower(&graph, Mode::Evaluate, precision, BATCH).unwrap()).unwrap();
            expect_same(&bytes(&program), &program, &format!("{} {precision}", graph.name));
        }
    }
}

#[test]
fn the_first_step_is_a_layer_of_its_own() {
    let before = forward(&published_digits(), Precision::Bf16, 4);
    let program = bytes(&before);
    let images = program.value(program.find_role(Role::Images).unwrap());
    assert_eq!((images.dtype, &images.shape[..]), (DType::U8, &[4, 1, 28, 28][..]));
    let step = &program.steps[0];
    assert_eq!((program.layer_name(step), step.phase), ("images".to_owned(), Phase::Forward));
    let layer = Layer { name: "images".to_owned(), kind: "normalise_pixels".to_owned() };
    assert_eq!(program.layers.iter().filter(|own| **own == layer).count(), 1);
    let made = program.value(step.outputs[0]);
    assert_eq!((made.dtype, made.role, made.per_sample), (DType::Bf16, Role::Transient, true));
    assert_eq!(program.readers(step.inputs[0]).collect::<Vec<_>>(), [0]);
    assert_eq!(program.steps.len(), before.steps.len() + 1);
    let named: Vec<_> = program.steps[1..].iter().map(|step| program.layer_name(step)).collect();
    assert_eq!(named, before.steps.iter().map(|step| before.layer_name(step)).collect::<Vec<_>>());
}

#[test]
fn what_has_no_pixels_is_refused() {
    let told = |program: Program, lines| images_as_bytes(program, lines).unwrap_err().to_string();
    let program = forward(&published_digits(), Precision::Bf16, 4);
    let copies = refresh(&program).unwrap();
    assert_eq!(told(copies, LINES), "a program of `digits` that takes no images cannot take them as bytes");
    let again = told(bytes(&program), LINES);
    assert_eq!(again, "a program of `digits` takes its images as bytes already");
    let many = told(forward(&digits([5, 9, 8], 4, 3), Precision::F32, 4), LINES);
    assert!(many.contains("`images` has 5 channels, it takes 1 to 4"), "{many}");
    let mut lines = LINES;
    lines[0][1] = f32::NAN;
    let nowhere = images_as_bytes(program, lines).unwrap_err();
    assert!(matches!(nowhere, EngineError::Invalid { pass: "images_as_bytes", step: 0, .. }), "{nowhere}");
    // Those of a channel that there is not do not matter.
    lines = LINES;
    lines[2][0] = f32::INFINITY;
    assert!(images_as_bytes(forward(&digits([2, 9, 8], 4, 3), Precision::F32, 4), lines).is_ok());
}

#[test]
fn products_and_sums_are_rounded_one_by_one() {
    let kernel = NormalisePixels { scale_shift: LINES };
    assert_eq!(kernel.name(), "normalise_pixels");
    let apart = (0..=u8::MAX).filter(|&pixel| {
        let [scale, offset] = LINES[0];
        kernel.of(0, pixel) != f32::from(pixel).mul_add(scale, offset)
    });
    assert!(apart.count() > 10, "fused or not, the numbers are the same: the tests would see nothing");
}
