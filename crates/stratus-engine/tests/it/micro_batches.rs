//! Micro-batches: the numbers of the whole batch where nothing is taken over a batch, else those of its
//! parts, in less memory.

use crate::common::{Checked, Probe, branches, check_gradient, digits, fuse, numbers, published_digits, sgd};
use stratus_engine::ops::{CLASS_WEIGHTS, MIXED, WHOLE_SHARE};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::{lower, mix_labels, smooth_labels, weigh_classes};
use stratus_engine::passes::micro_batch::micro_batches;
use stratus_engine::passes::parts::{Parts, parts as in_tree};
use stratus_engine::passes::recompute::recompute;
use stratus_engine::passes::tile::tile;
use stratus_engine::passes::update::update;
use stratus_engine::program::Mode;
use stratus_engine::{Phase, Precision, Program, Role, ValueId};
use stratus_graph::{Graph, layer_file};

const BATCH: usize = 12;

/// Layers that see every sample alone, dropout and a shared sum of gradients among them.
const ALONE: &str = r#"
name = "alone"
input = [2, 7, 6]
output = "fc2"

[[layer]]
name = "conv1"
op = "conv2d"
out_channels = 4
kernel = 3

[[layer]]
name = "relu1"
op = "relu"

[[layer]]
name = "conv2"
op = "conv2d"
out_channels = 4
kernel = 1

[[layer]]
name = "sum"
op = "add"
inputs = ["relu1", "conv2"]

[[layer]]
name = "norm"
op = "local_response_norm"
size = 3

[[layer]]
name = "pool"
op = "max_pool2d"
kernel = 2

[[layer]]
name = "flatten"
op = "flatten"

[[layer]]
name = "dropout"
op = "dropout"
p = 0.4

[[layer]]
name = "fc1"
op = "linear"
out_features = 9

[[layer]]
name = "fc2"
op = "linear"
out_features = 4
"#;

fn differentiated(graph: &Graph, precision: Precision, batch: usize) -> Program {
    differentiate(&fuse(&lower(graph, Mode::Train, precision, batch).unwrap()).unwrap()).unwrap()
}

/// A network in `count` micro-batches.
fn in_parts(graph: &Graph, count: usize) -> Program {
    micro_batches(&differentiated(graph, Precision::F64, BATCH / count), count).unwrap()
}

fn gradients(program: &Program) -> Vec<String> {
    let parameters = (0..program.values.len()).map(ValueId);
    let parameters = parameters.filter(|&id| program.value(id).role == Role::Parameter);
    parameters.map(|id| program.value(program.gradient_of(id).unwrap()).name.clone()).collect()
}

fn expect_near(expected: &[f64], got: &[f64], what: &str) {
    stratus_conformance::compare(expected, got, 1e-12).unwrap_or_else(|problem| panic!("{what}: {problem}"));
}

/// Masks too: they are drawn for a sample of the batch, whatever part it is in.
#[test]
fn where_samples_are_seen_alone_parts_change_nothing() {
    let graph = layer_file::parse(ALONE).unwrap();
    let whole = differentiated(&graph, Precision::F64, BATCH);
    let mut expected = Probe::filled(&whole);
    let loss = expected.loss();
    let counts = expected.read("metrics");
    assert_eq!(gradients(&whole).len(), 8);
    for count in [1, 2, 3, BATCH] {
        let program = in_parts(&graph, count);
        assert_eq!(program.sections.len(), usize::from(count > 1));
        let mut got = Probe::filled(&program);
        assert!((got.loss() - loss).abs() < 1e-13, "{count}");
        expect_near(&counts, &got.read("metrics"), "metrics");
        for name in gradients(&whole) {
            expect_near(&expected.read(&name), &got.read(&name), &format!("{name} in {count} parts"));
        }
    }
}

/// Two convolutions that see every sample alone, and end with a class for each pixel.
const PIXELS: &str = r#"
name = "pixels"
input = [2, 5, 4]
output = "conv2"

[[layer]]
name = "conv1"
op = "conv2d"
out_channels = 6
kernel = 3
padding = 1

[[layer]]
name = "conv2"
op = "conv2d"
out_channels = 3
kernel = 1
"#;

/// Labels are spread unevenly over the parts: some parts have few, one has none, classes differ in weight.
#[test]
fn unevenly_labelled_parts_have_the_loss_and_gradients_of_the_whole_batch() {
    type Change = fn(Program) -> Program;
    let plain: Change = |program| program;
    let weighted: Change = |program| weigh_classes(program).unwrap();
    let smoothed: Change = |program| weigh_classes(smooth_labels(program, 0.1).unwrap()).unwrap();
    let mixed: Change = |program| mix_labels(weigh_classes(program).unwrap()).unwrap();
    let (alone, pixels) = (layer_file::parse(ALONE).unwrap(), layer_file::parse(PIXELS).unwrap());
    let networks = [
        ("samples", &alone, plain, 1),
        ("weighted samples", &alone, weighted, 1),
        ("weighted smoothed samples", &alone, smoothed, 1),
        ("weighted mixed samples", &alone, mixed, MIXED),
        ("pixels", &pixels, plain, 1),
        ("weighted pixels", &pixels, weighted, 1),
        ("weighted smoothed pixels", &pixels, smoothed, 1),
    ];
    for (what, graph, change, numbers_each) in networks {
        let forward = |batch| change(lower(graph, Mode::Train, Precision::F64, batch).unwrap());
        let differentiated = |batch| differentiate(&forward(batch)).unwrap();
        let results = |program: &Program| {
            let mut probe = Probe::filled(program);
            let labels: Vec<f64> = (0..probe.read("labels").len() / numbers_each)
                .flat_map(|n| {
                    let of_batch = 3 * n * numbers_each < probe.read("labels").len();
                    let label = if of_batch || n % 5 == 0 { -1.0 } else { (n * n % 3) as f64 };
                    [label, 1.0, f64::from(WHOLE_SHARE) / 4.0].into_iter().take(numbers_each)
                })
                .collect();
            probe.write("labels", &labels);
            if probe.has(CLASS_WEIGHTS) {
                let classes = probe.read(CLASS_WEIGHTS).len();
                probe.write(CLASS_WEIGHTS, &[0.25, 3.0, 1.5, 7.0][..classes]);
            }
            let loss = probe.loss();
            let gradients = gradients(program);
            (loss, probe.read("metrics"), gradients.iter().map(|name| probe.read(name)).collect::<Vec<_>>())
        };
        let whole = results(&differentiated(BATCH));
        assert!(whole.0 > 0.1, "{what}");
        let parts = |count: usize| {
            let parts = Parts { count, workers: 1, bucket_bytes: 1 << 20 };
            in_tree(&differentiated(BATCH / count), parts).unwrap()
        };
        let micro = |count: usize| micro_batches(&differentiated(BATCH / count), count).unwrap();
        for program in [micro(2), micro(3), micro(6), micro(BATCH), parts(2), parts(4)] {
            let (loss, metrics, gradients) = results(&program);
            assert!((loss - whole.0).abs() < 1e-12, "{what}: {loss} and {}", whole.0);
            expect_near(&whole.1, &metrics, what);
            whole.2.iter().zip(&gradients).for_each(|(whole, sum)| expect_near(whole, sum, what));
        }
    }
}

/// Batch norm: each part by itself, one after the other, is what the parts of a batch are.
#[test]
fn statistics_are_those_of_each_part() {
    let graph = digits([2, 9, 8], 4, 3);
    for count in [2, 4, 6] {
        let program = in_parts(&graph, count);
        let mut got = Probe::filled(&program);
        let (images, labels) = (got.read("images"), got.read("labels"));
        let loss = got.loss();

        let part = differentiated(&graph, Precision::F64, BATCH / count);
        let mut alone = Probe::filled(&part);
        let names = gradients(&part);
        let mut losses = 0.0;
        let mut sums: Vec<Vec<f64>> = names.iter().map(|name| vec![0.0; alone.read(name).len()]).collect();
        for (images, labels) in images.chunks(images.len() / count).zip(labels.chunks(BATCH / count)) {
            alone.write("images", images);
            alone.write("labels", labels);
            losses += alone.loss() / count as f64;
            for (sum, name) in sums.iter_mut().zip(&names) {
                sum.iter_mut().zip(alone.read(name)).for_each(|(sum, part)| *sum += part / count as f64);
            }
        }
        assert!((losses - loss).abs() < 1e-13, "{count}: {losses} and {loss}");
        for (sum, name) in sums.iter().zip(&names) {
            expect_near(sum, &got.read(name), &format!("{name} in {count} parts"));
        }
        let running = part.values.iter().filter(|value| value.name.contains("running_"));
        let mut compared = 0;
        for value in running {
            expect_near(&alone.read(&value.name), &got.read(&value.name), &value.name);
            compared += 1;
        }
        assert_eq!(compared, 6);
    }
}

/// With everything at once: several readers, dropout, an auxiliary loss, batch norm.
#[test]
fn the_loss_of_parts_has_the_gradient_of_its_differences() {
    for count in [2, 4] {
        let program = in_parts(&branches(), count);
        let mut probe = Probe::filled(&program);
        // Other numbers for the samples of each part.
        let images = numbers(probe.read("images").len(), 77, 1.0);
        probe.write("images", &images);
        let mut checked = Checked::default();
        let parameters = program.values.iter().filter(|value| value.role == Role::Parameter);
        for value in parameters {
            check_gradient(&mut probe, &value.name, 4, &mut checked);
        }
        assert!(checked.agreed > 60 && checked.kinks * 10 < checked.agreed, "{checked:?}");
    }
}

#[test]
fn activations_need_memory_for_one_part() {
    let bytes = |count: usize| {
        let part = differentiated(&published_digits(), Precision::F32, 256 / count);
        let program = update(&micro_batches(&part, count).unwrap(), sgd()).unwrap();
        crate::common::session(&program).plan(0).transient_bytes
    };
    let (whole, parts) = (bytes(1), bytes(8));
    assert!(parts * 5 < whole, "{parts} of {whole}");
}

#[test]
fn parts_make_activations_again_too() {
    let graph = branches();
    let part = differentiated(&graph, Precision::F64, BATCH / 3);
    let results = |program: &Program| {
        let mut probe = Probe::filled(program);
        let loss = probe.loss();
        (loss, gradients(program).iter().map(|name| probe.read(name)).collect::<Vec<_>>())
    };
    let less = recompute(&part, 0).unwrap();
    assert!(less.steps.len() > part.steps.len());
    assert_eq!(results(&micro_batches(&less, 3).unwrap()), results(&micro_batches(&part, 3).unwrap()));
}

#[test]
fn a_training_program_in_micro_batches() {
    let part = differentiated(&digits([1, 12, 12], 10, 4), Precision::Bf16, 16);
    insta::assert_snapshot!(update(&micro_batches(&part, 4).unwrap(), sgd()).unwrap().dump());
}

#[test]
fn what_cannot_be_repeated_is_refused() {
    let graph = published_digits();
    let part = differentiated(&graph, Precision::F32, 64);
    let tiled = tile(&part, 1 << 20, 1).unwrap();
    let refused = micro_batches(&tiled, 2).unwrap_err().to_string();
    assert!(refused.contains("a program in tiles cannot be repeated"), "{refused}");

    // An update behind the section that takes the gradient of the last part for that of the batch.
    let mut wrong = update(&micro_batches(&part, 2).unwrap(), sgd()).unwrap();
    let of_part = (0..wrong.values.len()).find(|&id| wrong.is_share(ValueId(id))).unwrap();
    let name = wrong.values[of_part].name.clone();
    let shape = wrong.values[of_part].shape.clone();
    let update = wrong
        .steps
        .iter()
        .position(|step| step.phase == Phase::Update && wrong.value(step.inputs[0]).shape == shape);
    wrong.steps[update.unwrap()].inputs[0].0 = of_part;
    let refused = wrong.verify("test").unwrap_err().to_string();
    assert!(
        refused.contains(&format!("it reads `{name}`, of which there is one for each micro-batch")),
        "{refused}"
    );
}
