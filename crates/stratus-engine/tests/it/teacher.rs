//! Distillation: programs that also run a teacher, and learn from its logits.

use crate::common::{
    CheckCounts, TestSession, branches, check_gradient, decoder, digits, fuse, numbers, results, sgd,
};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::{
    LossFunction, lower, refresh_copies, with_class_weights, with_loss, with_mixed_labels,
};
use stratus_engine::passes::micro_batch::split_into_micro_batches;
use stratus_engine::passes::parts::{BatchParts, split_into_parts};
use stratus_engine::passes::recompute::recompute;
use stratus_engine::passes::teacher::{Distillation, teacher_name, with_teacher};
use stratus_engine::passes::tile::tile;
use stratus_engine::passes::update::update;
use stratus_engine::program::Mode;
use stratus_engine::{EngineError, Phase, Precision, Program, Role, Step, ValueId};
use stratus_graph::{Graph, layer_file};

const BATCH: usize = 12;

const HALF: Distillation = Distillation { weight: 0.4, temperature: 3.0 };

/// A smaller and a larger network for the same images and classes.
fn networks() -> [[Graph; 2]; 2] {
    [[digits([2, 8, 6], 4, 3), digits([2, 8, 6], 4, 5)], [pixels(4), pixels(7)]]
}

/// A network of convolutions with per-pixel classes, some of whose samples have no label in tests.
fn pixels(channels: usize) -> Graph {
    maps(channels, 4)
}

/// [`pixels`] with a number of classes, or one logit.
fn maps(channels: usize, classes: usize) -> Graph {
    let text = format!(
        r#"
name = "pixels"
input = [2, 8, 6]
output = "conv2"

[[layer]]
name = "conv1"
op = "conv2d"
out_channels = {channels}
kernel = 3
padding = 1

[[layer]]
name = "relu1"
op = "relu"

[[layer]]
name = "conv2"
op = "conv2d"
out_channels = {classes}
kernel = 1
"#
    );
    layer_file::parse(&text).unwrap()
}

fn student(graph: &Graph, precision: Precision, batch: usize) -> Program {
    fuse(&lower(graph, Mode::Train, precision, batch).unwrap()).unwrap()
}

fn teacher(graph: &Graph, precision: Precision, batch: usize) -> Program {
    fuse(&lower(graph, Mode::Evaluate, precision, batch).unwrap()).unwrap()
}

/// The differentiated program of a network that learns from another one.
fn distilled(graphs: &[Graph; 2], distillation: Distillation, batch: usize) -> Program {
    distilled_with(graphs, LossFunction::CrossEntropy, distillation, batch)
}

/// [`distilled`] with another loss.
fn distilled_with(
    [graph, other]: &[Graph; 2],
    loss: LossFunction,
    distillation: Distillation,
    batch: usize,
) -> Program {
    let lowered = |graph, mode| with_loss(lower(graph, mode, Precision::F64, batch).unwrap(), loss).unwrap();
    let [student, teacher] = [lowered(graph, Mode::Train), lowered(other, Mode::Evaluate)];
    let [student, teacher] = [fuse(&student).unwrap(), fuse(&teacher).unwrap()];
    differentiate(&with_teacher(&student, &teacher, distillation).unwrap()).unwrap()
}

/// The differentiated program without a teacher.
fn plain(graph: &Graph, batch: usize) -> Program {
    plain_with(graph, LossFunction::CrossEntropy, batch)
}

/// [`plain`] with another loss.
fn plain_with(graph: &Graph, loss: LossFunction, batch: usize) -> Program {
    let lowered = with_loss(lower(graph, Mode::Train, Precision::F64, batch).unwrap(), loss).unwrap();
    differentiate(&fuse(&lowered).unwrap()).unwrap()
}

/// Networks whose outputs are compared one by one: labels, numbers, and pixels of two classes. Without batch
/// norms, whose statistics are those of a part.
fn compared_by_output() -> [([Graph; 2], LossFunction); 3] {
    let vector = |channels: usize| {
        let text = format!(
            r#"
name = "vector"
input = [2, 8, 6]
output = "fc"

[[layer]]
name = "conv1"
op = "conv2d"
out_channels = {channels}
kernel = 3

[[layer]]
name = "conv2"
op = "conv2d"
out_channels = 2
kernel = 2

[[layer]]
name = "flatten"
op = "flatten"

[[layer]]
name = "fc"
op = "linear"
out_features = 4
"#
        );
        layer_file::parse(&text).unwrap()
    };
    [
        ([vector(3), vector(5)], LossFunction::BinaryCrossEntropy),
        ([vector(4), vector(2)], LossFunction::Huber),
        ([maps(4, 1), maps(7, 1)], LossFunction::BinaryCrossEntropy),
    ]
}

/// A session with values that depend only on names, so that programs with and without a teacher have the
/// same.
fn session(program: &Program) -> TestSession {
    let mut test = TestSession::filled(program);
    for value in program.values.iter().filter(|value| value.role.is_persistent()) {
        let name = value.name.as_str();
        if !matches!(value.role, Role::Parameter | Role::Teacher | Role::Buffer) {
            continue;
        }
        let seed = name.bytes().fold(7_u64, |seed, byte| seed.wrapping_mul(31) + u64::from(byte));
        let offset = if name.ends_with("running_var") { 1.0 } else { 0.0 };
        let values = numbers(value.elements(), seed, 0.5).iter().map(|x| x + offset).collect::<Vec<_>>();
        test.write(name, &values);
    }
    // One sample, pixel or target in five has no label.
    let labels = test.read("labels").len();
    let classes = test.program.value(loss_input(&test.program, 0)).shape[1].max(2);
    let label = |n: usize| match test.has_targets() {
        true if n.is_multiple_of(5) => f64::NAN,
        true => (n % 5) as f64 / 4.0,
        false => ((n % 5) as f64 - 1.0).min(classes as f64 - 1.0),
    };
    let labels: Vec<f64> = (0..labels).map(label).collect();
    test.write("labels", &labels);
    test
}

/// An input of the program's first loss.
fn loss_input(program: &Program, position: usize) -> ValueId {
    let is_loss = |step: &&Step| step.phase == Phase::Loss && step.inputs.len() > 1;
    program.steps.iter().find(is_loss).unwrap().inputs[position]
}

fn expect_near(expected: &[f64], got: &[f64], context: &str) {
    stratus_conformance::compare(expected, got, 1e-12)
        .unwrap_or_else(|problem| panic!("{context}: {problem}"));
}

#[test]
fn gradients_with_a_teacher_match_differences() {
    for pair in networks() {
        let mut test = session(&distilled(&pair, HALF, 3));
        let names: Vec<String> = test
            .program
            .values
            .iter()
            .filter(|value| value.role == Role::Parameter)
            .map(|value| value.name.clone())
            .collect();
        let mut checked = CheckCounts::default();
        for name in names {
            check_gradient(&mut test, &name, 12, &mut checked);
        }
        assert!(checked.agreed > 30 && checked.kinks * 10 < checked.agreed, "{checked:?}");
        assert_eq!(checked.zero, 0);
    }
}

/// The loss is the mean of both, and a teacher with the network's own logits adds nothing.
#[test]
fn the_loss_is_a_mean_of_two() {
    for pair in networks() {
        let own = session(&plain(&pair[0], 4)).loss();
        let both = |weight: f32| session(&distilled(&pair, Distillation { weight, ..HALF }, 4)).loss();
        let (half, whole) = (both(0.5), both(1.0));
        assert!((half - 0.5 * (own + whole)).abs() < 1e-12, "{half} {own} {whole}");
        assert!(whole > 1e-3 && (whole - own).abs() > 1e-3);
        // Networks without batch norm are equal in training and in inference.
        let same = [pixels(4), pixels(4)];
        let mut test = session(&distilled(&same, Distillation { weight: 1.0, ..HALF }, 4));
        for name in ["conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias"] {
            let values = test.read(name);
            test.write(&teacher_name(name), &values);
        }
        assert!(test.loss().abs() < 1e-13);
        assert!(test.read_gradient("conv1.weight").iter().all(|slope| slope.abs() < 1e-13));
    }
}

/// Labels, counts and hits are those of the labels, whatever the teacher says.
#[test]
fn counts_and_hits_stay() {
    for pair in networks() {
        let (mut own, mut taught) = (session(&plain(&pair[0], 5)), session(&distilled(&pair, HALF, 5)));
        own.loss();
        taught.loss();
        assert_eq!(own.read("metrics")[1..], taught.read("metrics")[1..]);
    }
}

#[test]
fn micro_batches_and_parts_change_nothing() {
    // Without batch norms, whose statistics are those of a part.
    for graphs in [[pixels(4), pixels(7)], [pixels(5), pixels(3)]] {
        let whole = distilled(&graphs, HALF, BATCH);
        let mut expected = session(&whole);
        let loss = expected.loss();
        for count in [2, 3, 4] {
            let part = distilled(&graphs, HALF, BATCH / count);
            let mut programs = vec![split_into_micro_batches(&part, count).unwrap()];
            if count.is_power_of_two() {
                let parts = BatchParts {
                    count,
                    workers: 1,
                    bucket_bytes: 1 << 20,
                    synchronise_batch_norm: false,
                    gradients: Default::default(),
                };
                programs.push(split_into_parts(&part, parts).unwrap());
            }
            for program in programs {
                let mut got = session(&program);
                assert!((got.loss() - loss).abs() < 1e-13, "{count}");
                expect_near(&expected.read("metrics"), &got.read("metrics"), "metrics");
                for name in ["conv1.weight", "conv2.bias"] {
                    expect_near(&expected.read_gradient(name), &got.read_gradient(name), name);
                }
            }
        }
    }
}

/// Gradients, the mean of both losses, counts, and micro-batches with missing targets.
#[test]
fn outputs_are_compared_one_by_one() {
    for (graphs, loss) in compared_by_output() {
        let distilled = |distillation, batch| distilled_with(&graphs, loss, distillation, batch);
        let whole = distilled(HALF, BATCH);
        let mut expected = session(&whole);
        let total = expected.loss();
        let mut checked = CheckCounts::default();
        let parameters = whole.values.iter().filter(|value| value.role == Role::Parameter);
        for value in parameters {
            check_gradient(&mut expected, &value.name, 12, &mut checked);
        }
        assert!(checked.agreed > 20 && checked.kinks * 10 < checked.agreed, "{checked:?}");
        assert_eq!(checked.zero, 0);

        let mut own = session(&plain_with(&graphs[0], loss, BATCH));
        let taught = session(&distilled(Distillation { weight: 1.0, ..HALF }, BATCH)).loss();
        let mean = 0.6 * own.loss() + 0.4 * taught;
        assert!((total - mean).abs() < 1e-7 && taught > 1e-3, "{total} {mean} {taught}");
        assert_eq!(own.read("metrics")[1..], expected.read("metrics")[1..]);

        for count in [2, 4] {
            let part = distilled(HALF, BATCH / count);
            let parts = BatchParts {
                count,
                workers: 1,
                bucket_bytes: 1 << 20,
                synchronise_batch_norm: false,
                gradients: Default::default(),
            };
            for program in
                [split_into_micro_batches(&part, count).unwrap(), split_into_parts(&part, parts).unwrap()]
            {
                let mut got = session(&program);
                assert!((got.loss() - total).abs() < 1e-13, "{loss:?} in {count}");
                expect_near(&expected.read("metrics"), &got.read("metrics"), "metrics");
                for name in ["conv1.weight", "conv2.bias"] {
                    expect_near(&expected.read_gradient(name), &got.read_gradient(name), name);
                }
            }
        }
    }
}

#[test]
fn tiles_and_recomputation_change_nothing() {
    for pair in networks() {
        let program = distilled(&pair, HALF, BATCH);
        let mut expected = session(&program);
        let loss = expected.loss();
        let recomputed = recompute(&program, 0).unwrap();
        let is_teacher =
            |program: &Program| program.steps.iter().filter(|step| step.phase == Phase::Teacher).count();
        assert!(recomputed.steps.len() > program.steps.len());
        assert_eq!(is_teacher(&recomputed), is_teacher(&program), "the teacher is not recomputed");
        for program in [recomputed, tile(&program, 2 << 10, 1).unwrap()] {
            let mut got = session(&program);
            assert!((got.loss() - loss).abs() < 1e-13);
            for name in results(&expected.program).iter().filter(|name| got.has(name)) {
                expect_near(&expected.read(name), &got.read(name), name);
            }
        }
    }
}

#[test]
fn mixed_labels_and_class_weights_concern_the_labels_only() {
    let [pair, _] = networks();
    let [graph, other] = &pair;
    let teacher = teacher(other, Precision::F64, 5);
    let weighted = with_class_weights(lower(graph, Mode::Train, Precision::F64, 5).unwrap()).unwrap();
    let distilled = |student: &Program| {
        let whole = Distillation { weight: 1.0, ..HALF };
        differentiate(&with_teacher(student, &teacher, whole).unwrap()).unwrap()
    };
    let mut plain = session(&distilled(&lower(graph, Mode::Train, Precision::F64, 5).unwrap()));
    let mut weighted = session(&distilled(&weighted));
    let loss = plain.loss();
    assert!((weighted.loss() - loss).abs() < 1e-13);
    expect_near(&plain.read_gradient("fc.weight"), &weighted.read_gradient("fc.weight"), "fc.weight");
    let mixed = with_mixed_labels(lower(graph, Mode::Train, Precision::F64, 5).unwrap()).unwrap();
    let mut mixed = session(&distilled(&mixed));
    let own = plain.read("labels");
    mixed.write("labels", &own.iter().flat_map(|&label| [label, 1.0, 9e6]).collect::<Vec<_>>());
    assert!((mixed.loss() - loss).abs() < 1e-13);
}

/// The teacher's parameters are neither differentiated nor updated, and have copies in bf16.
#[test]
fn the_teacher_is_not_trained() {
    let [pair, _] = networks();
    let [student, teacher] = [student(&pair[0], Precision::Bf16, 4), teacher(&pair[1], Precision::Bf16, 4)];
    let program = with_teacher(&student, &teacher, HALF).unwrap();
    let program = update(&differentiate(&program).unwrap(), sgd()).unwrap();
    let of_teacher: Vec<_> = (0..program.values.len())
        .map(ValueId)
        .filter(|&id| program.value(id).role == Role::Teacher)
        .collect();
    assert!(of_teacher.len() >= 8);
    for &id in &of_teacher {
        assert!(program.value(id).name.starts_with("teacher:"));
        assert_eq!(program.gradient_of(id), None);
        let changes = |step: &&Step| step.updates.contains(&id) || step.outputs.contains(&id);
        assert_eq!(program.steps.iter().find(changes), None);
    }
    let refreshed = refresh_copies(&program).unwrap();
    let copies = refreshed.steps.iter().filter(|step| refreshed.value(step.inputs[0]).role == Role::Teacher);
    assert!(copies.count() >= 3);
    let checkpoint: Vec<_> =
        stratus_engine::session::checkpoint_values([&program].into_iter()).map(|value| value.name).collect();
    assert!(checkpoint.contains(&"fc.weight") && checkpoint.iter().all(|name| !name.contains("teacher")));
}

#[test]
fn a_teacher_of_other_images_or_classes_is_refused() {
    let own = student(&digits([2, 8, 6], 4, 3), Precision::F32, 4);
    let refused = |graph: Graph, batch: usize| {
        let error = with_teacher(&own, &teacher(&graph, Precision::F32, batch), HALF).unwrap_err();
        assert!(matches!(error, EngineError::InvalidRequest(_)), "{error}");
        error.to_string()
    };
    for (graph, batch, what) in [
        (digits([2, 8, 8], 4, 3), 4, "images"),
        (digits([1, 8, 6], 4, 3), 4, "images"),
        (digits([2, 8, 6], 5, 3), 4, "logits"),
        (digits([2, 8, 6], 4, 3), 3, "images"),
        (pixels(4), 4, "logits"),
    ] {
        assert!(refused(graph, batch).contains(&format!("differ in {what}")), "{what}");
    }
    let evaluation = teacher(&digits([2, 8, 6], 4, 3), Precision::F32, 4);
    assert!(with_teacher(&evaluation, &evaluation, HALF).is_err());
}

/// Auxiliary losses are added after the teacher's.
#[test]
fn auxiliary_losses_are_not_distilled() {
    let graphs = [branches(), branches()];
    let auxiliary = graphs[0].auxiliary.len();
    assert_eq!(auxiliary, 1);
    let program = distilled(&graphs, HALF, 3);
    let losses: Vec<&str> = program
        .steps
        .iter()
        .filter(|step| step.phase == Phase::Loss)
        .map(|step| stratus_engine::ops::KernelSpec::name(&step.kernel))
        .collect();
    assert_eq!(losses.len(), 2 + auxiliary);
    assert_eq!(losses[..2], ["softmax_cross_entropy", "distillation_loss"]);
    let mut test = session(&program);
    let loss = test.loss();
    assert!(loss.is_finite());
    // A network in training form may be taught by itself in inference form.
    let decoders = [decoder(), decoder()];
    assert!(session(&distilled(&decoders, HALF, 3)).loss().is_finite());
}
