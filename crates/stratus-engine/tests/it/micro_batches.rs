//! Micro-batches: the results of the whole batch, except for batch statistics, which are those of each part,
//! in less memory.

use crate::common::{
    CheckCounts, TestSession, branches, check_gradient, digits, fuse, numbers, published_digits, sgd,
};
use stratus_engine::ops::{CLASS_WEIGHTS, FULL_SHARE, MIXED_LABEL_LEN};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::{
    LossFunction, lower, with_class_weights, with_label_smoothing, with_loss, with_mixed_labels,
};
use stratus_engine::passes::micro_batch::split_into_micro_batches;
use stratus_engine::passes::parts::{BatchParts, split_into_parts as in_tree};
use stratus_engine::passes::recompute::recompute;
use stratus_engine::passes::tile::tile;
use stratus_engine::passes::update::update;
use stratus_engine::program::Mode;
use stratus_engine::{Phase, Precision, Program, Role, ValueId};
use stratus_graph::{Graph, layer_file};

const BATCH: usize = 12;

/// Layers that process samples independently, with dropout and a shared sum of gradients.
const INDEPENDENT: &str = r#"
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
    split_into_micro_batches(&differentiated(graph, Precision::F64, BATCH / count), count).unwrap()
}

fn gradients(program: &Program) -> Vec<String> {
    let parameters = (0..program.values.len()).map(ValueId);
    let parameters = parameters.filter(|&id| program.value(id).role == Role::Parameter);
    parameters.map(|id| program.value(program.gradient_of(id).unwrap()).name.clone()).collect()
}

fn expect_near(expected: &[f64], got: &[f64], context: &str) {
    stratus_conformance::compare(expected, got, 1e-12)
        .unwrap_or_else(|problem| panic!("{context}: {problem}"));
}

/// Dropout masks are drawn for a sample of the batch, whatever its part.
#[test]
fn parts_of_independent_samples_change_nothing() {
    let graph = layer_file::parse(INDEPENDENT).unwrap();
    let whole = differentiated(&graph, Precision::F64, BATCH);
    let mut expected = TestSession::filled(&whole);
    let loss = expected.loss();
    let counts = expected.read("metrics");
    assert_eq!(gradients(&whole).len(), 8);
    for count in [1, 2, 3, BATCH] {
        let program = in_parts(&graph, count);
        assert_eq!(program.sections.len(), usize::from(count > 1));
        let mut got = TestSession::filled(&program);
        assert!((got.loss() - loss).abs() < 1e-13, "{count}");
        expect_near(&counts, &got.read("metrics"), "metrics");
        for name in gradients(&whole) {
            expect_near(&expected.read(&name), &got.read(&name), &format!("{name} in {count} parts"));
        }
    }
}

/// Two convolutions that process samples independently, with per-pixel classes.
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

/// Labels are distributed unevenly over the parts: some parts have few, one has none, classes have different
/// weights.
#[test]
fn unevenly_labelled_parts_match_the_whole_batch() {
    type Change = fn(Program) -> Program;
    let plain: Change = |program| program;
    let weighted: Change = |program| with_class_weights(program).unwrap();
    let smoothed: Change = |program| with_class_weights(with_label_smoothing(program, 0.1).unwrap()).unwrap();
    let mixed: Change = |program| with_mixed_labels(with_class_weights(program).unwrap()).unwrap();
    let labels: Change = |program| with_loss(program, LossFunction::BinaryCrossEntropy).unwrap();
    let weighted_labels: Change = |program| {
        let labels = with_loss(program, LossFunction::BinaryCrossEntropy).unwrap();
        with_class_weights(with_label_smoothing(labels, 0.1).unwrap()).unwrap()
    };
    let squares: Change = |program| with_loss(program, LossFunction::SquaredError).unwrap();
    let hubers: Change =
        |program| with_class_weights(with_loss(program, LossFunction::Huber).unwrap()).unwrap();
    let (independent, pixels) = (layer_file::parse(INDEPENDENT).unwrap(), layer_file::parse(PIXELS).unwrap());
    let mask = layer_file::parse(&PIXELS.replace("out_channels = 3", "out_channels = 1")).unwrap();
    let networks = [
        ("samples", &independent, plain, 1),
        ("weighted samples", &independent, weighted, 1),
        ("weighted smoothed samples", &independent, smoothed, 1),
        ("weighted mixed samples", &independent, mixed, MIXED_LABEL_LEN),
        ("pixels", &pixels, plain, 1),
        ("weighted pixels", &pixels, weighted, 1),
        ("weighted smoothed pixels", &pixels, smoothed, 1),
        ("labels", &independent, labels, 1),
        ("weighted smoothed labels", &independent, weighted_labels, 1),
        ("squared errors", &independent, squares, 1),
        ("weighted Huber losses", &independent, hubers, 1),
        ("pixels of two classes", &mask, labels, 1),
        ("weighted smoothed pixels of two classes", &mask, weighted_labels, 1),
    ];
    for (context, graph, change, numbers_each) in networks {
        let forward = |batch| change(lower(graph, Mode::Train, Precision::F64, batch).unwrap());
        let differentiated = |batch| differentiate(&forward(batch)).unwrap();
        let results = |program: &Program| {
            let mut test = TestSession::filled(program);
            let labels: Vec<f64> = (0..test.read("labels").len() / numbers_each)
                .flat_map(|n| {
                    let is_in_first_third = 3 * n * numbers_each < test.read("labels").len();
                    let is_missing = is_in_first_third || n % 5 == 0;
                    let label = match test.has_targets() {
                        true if is_missing => f64::NAN,
                        true => (n % 3) as f64 / 2.0,
                        false if is_missing => -1.0,
                        false => (n * n % 3) as f64,
                    };
                    [label, 1.0, f64::from(FULL_SHARE) / 4.0].into_iter().take(numbers_each)
                })
                .collect();
            test.write("labels", &labels);
            if test.has(CLASS_WEIGHTS) {
                let count = test.read(CLASS_WEIGHTS).len();
                let weights: Vec<f64> = [0.25, 3.0, 1.5, 7.0, 2.0].into_iter().cycle().take(count).collect();
                test.write(CLASS_WEIGHTS, &weights);
            }
            let loss = test.loss();
            let gradients = gradients(program);
            (loss, test.read("metrics"), gradients.iter().map(|name| test.read(name)).collect::<Vec<_>>())
        };
        let whole = results(&differentiated(BATCH));
        assert!(whole.0 > 0.1, "{context}");
        let parts = |count: usize| {
            let parts = BatchParts {
                count,
                workers: 1,
                bucket_bytes: 1 << 20,
                synchronise_batch_norm: false,
                gradients: Default::default(),
            };
            in_tree(&differentiated(BATCH / count), parts).unwrap()
        };
        let micro = |count: usize| split_into_micro_batches(&differentiated(BATCH / count), count).unwrap();
        for program in [micro(2), micro(3), micro(6), micro(BATCH), parts(2), parts(4)] {
            let (loss, metrics, gradients) = results(&program);
            assert!((loss - whole.0).abs() < 1e-12, "{context}: {loss} and {}", whole.0);
            expect_near(&whole.1, &metrics, context);
            whole.2.iter().zip(&gradients).for_each(|(whole, sum)| expect_near(whole, sum, context));
        }
    }
}

/// With batch norm, the parts of a batch equal separate batches in sequence.
#[test]
fn each_part_has_its_own_statistics() {
    let graph = digits([2, 9, 8], 4, 3);
    for count in [2, 4, 6] {
        let program = in_parts(&graph, count);
        let mut got = TestSession::filled(&program);
        let (images, labels) = (got.read("images"), got.read("labels"));
        let loss = got.loss();

        let part = differentiated(&graph, Precision::F64, BATCH / count);
        let mut alone = TestSession::filled(&part);
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

/// All features at once: several readers, dropout, an auxiliary loss, batch norm.
#[test]
fn gradients_of_parts_match_differences() {
    for count in [2, 4] {
        let program = in_parts(&branches(), count);
        let mut test = TestSession::filled(&program);
        // Different values for the samples of each part.
        let images = numbers(test.read("images").len(), 77, 1.0);
        test.write("images", &images);
        let mut checked = CheckCounts::default();
        let parameters = program.values.iter().filter(|value| value.role == Role::Parameter);
        for value in parameters {
            check_gradient(&mut test, &value.name, 4, &mut checked);
        }
        assert!(checked.agreed > 60 && checked.kinks * 10 < checked.agreed, "{checked:?}");
    }
}

#[test]
fn activations_need_memory_for_one_part() {
    let bytes = |count: usize| {
        let part = differentiated(&published_digits(), Precision::F32, 256 / count);
        let program = update(&split_into_micro_batches(&part, count).unwrap(), sgd()).unwrap();
        crate::common::session(&program).plan(0).transient_bytes
    };
    let (whole, parts) = (bytes(1), bytes(8));
    assert!(parts * 5 < whole, "{parts} of {whole}");
}

#[test]
fn recomputation_works_in_parts() {
    let graph = branches();
    let part = differentiated(&graph, Precision::F64, BATCH / 3);
    let results = |program: &Program| {
        let mut test = TestSession::filled(program);
        let loss = test.loss();
        (loss, gradients(program).iter().map(|name| test.read(name)).collect::<Vec<_>>())
    };
    let less = recompute(&part, 0).unwrap();
    assert!(less.steps.len() > part.steps.len());
    assert_eq!(
        results(&split_into_micro_batches(&less, 3).unwrap()),
        results(&split_into_micro_batches(&part, 3).unwrap())
    );
}

#[test]
fn training_program_in_micro_batches() {
    let part = differentiated(&digits([1, 12, 12], 10, 4), Precision::Bf16, 16);
    insta::assert_snapshot!(update(&split_into_micro_batches(&part, 4).unwrap(), sgd()).unwrap().dump());
}

#[test]
fn rejects_tiled_programs_and_reads_of_one_part() {
    let graph = published_digits();
    let part = differentiated(&graph, Precision::F32, 64);
    let tiled = tile(&part, 1 << 20, 1).unwrap();
    let refused = split_into_micro_batches(&tiled, 2).unwrap_err().to_string();
    assert!(refused.contains("a tiled program cannot be split"), "{refused}");

    // An update that reads the gradient of the last part instead of that of the batch.
    let mut invalid = update(&split_into_micro_batches(&part, 2).unwrap(), sgd()).unwrap();
    let partial_sum = (0..invalid.values.len()).find(|&id| invalid.is_partial_sum(ValueId(id))).unwrap();
    let name = invalid.values[partial_sum].name.clone();
    let shape = invalid.values[partial_sum].shape.clone();
    let update = invalid
        .steps
        .iter()
        .position(|step| step.phase == Phase::Update && invalid.value(step.inputs[0]).shape == shape);
    invalid.steps[update.unwrap()].inputs[0].0 = partial_sum;
    let refused = invalid.verify("test").unwrap_err().to_string();
    assert!(refused.contains(&format!("reads `{name}`, which exists once per micro-batch")), "{refused}");
}
