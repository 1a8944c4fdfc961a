//! Every backward kernel of the reference against central differences of the forward kernel, alone and
//! through whole networks.

use crate::common::{
    CheckCounts, ITERATION_SCALARS, TestSession, branches, check_gradient, check_gradient_in, decoder,
    digits, fuse, inception, numbers, residual,
};
use stratus_conformance::{Case, Fill, cases};
use stratus_engine::ops::{
    BatchNormAddApply, BatchNormApply, BatchNormStatistics, KernelSpec, LinearForward, METRICS_FIELDS,
    SoftmaxCrossEntropy, StemApply, StemStatistics,
};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::lower;
use stratus_engine::program::{Layer, Mode, Origin};
use stratus_engine::{DType, Kernel, Phase, Precision, Program, Role, Step, ValueId};
use stratus_graph::ops::{BatchNorm2d, Conv2d, Flatten, Linear};
use stratus_graph::zoo::{self, ModelConfig};
use stratus_graph::{Graph, GraphBuilder, Shape};

const CLASSES: usize = 3;

/// A double-precision program with no steps.
fn empty(batch: usize) -> Program {
    Program {
        network: "gradients".to_owned(),
        mode: Mode::Train,
        precision: Precision::F64,
        batch,
        batch_parts: 1,
        stage: None,
        layers: vec![Layer { name: "layer".to_owned(), kind: "test".to_owned() }],
        values: Vec::new(),
        steps: Vec::new(),
        sections: Vec::new(),
    }
}

/// Inserts the statistics before a program that applies them, so that its derivative includes both.
fn prepend_statistics(program: &mut Program) {
    let (kernel, channels, sums): (Kernel, usize, _) = match program.steps[0].kernel {
        Kernel::BatchNormApply(BatchNormApply { norm, .. }) => {
            (BatchNormStatistics { norm, offset: None }.into(), norm.channels, [2, norm.channels])
        }
        Kernel::BatchNormAddApply(BatchNormAddApply { norm, .. }) => {
            (BatchNormStatistics { norm, offset: None }.into(), norm.channels, [2, norm.channels])
        }
        Kernel::StemApply(StemApply { stem }) => {
            (StemStatistics { stem }.into(), stem.norm.channels, [stem.taps() + 1, stem.taps()])
        }
        _ => return,
    };
    // The normalised value, or its source, precedes the parameters of the norm; the statistics follow them,
    // and the term to add comes last.
    let added = usize::from(matches!(program.steps[0].kernel, Kernel::BatchNormAddApply(_)));
    let inputs = &program.steps[0].inputs;
    let [inputs @ .., _, _, mean, inverse_deviation] = &inputs[..inputs.len() - added] else {
        panic!("inputs")
    };
    let (inputs, statistics) = (inputs.to_vec(), [*mean, *inverse_deviation]);
    let mut value = |name: &str, shape: &[usize]| program.add_value(name, shape, DType::F64, Role::Buffer);
    let updates = vec![value("running_mean", &[channels]), value("running_var", &[channels])];
    let outputs = statistics.into_iter().chain([value("sums", &sums)]).collect();
    let (phase, layers) = (Phase::Forward, vec![0]);
    program.steps.insert(0, Step { kernel, phase, layers, inputs, updates, outputs });
}

fn push(
    program: &mut Program,
    kernel: impl Into<Kernel>,
    phase: Phase,
    inputs: &[ValueId],
    outputs: &[ValueId],
) {
    program.steps.push(Step {
        kernel: kernel.into(),
        phase,
        layers: vec![0],
        inputs: inputs.to_vec(),
        updates: vec![],
        outputs: outputs.to_vec(),
    });
}

/// Adds a fixed linear layer on `y` and a loss, whose value names start with `name`.
fn push_loss(program: &mut Program, y: ValueId, name: &str) {
    let shape = program.value(y).shape.clone();
    let (batch, in_features) = (shape[0], shape[1..].iter().product());
    let value = |program: &mut Program, part: &str, shape: &[usize], dtype, role| {
        program.add_value(format!("{name}{part}"), shape, dtype, role)
    };
    let weight = value(program, "weight", &[CLASSES, in_features], DType::F64, Role::Buffer);
    let logits = value(program, "logits", &[batch, CLASSES], DType::F64, Role::Transient);
    let labels = value(program, "labels", &[batch], DType::I32, Role::Buffer);
    let metrics = value(program, "metrics", &[METRICS_FIELDS.len()], DType::F64, Role::Metrics);
    let gradient = program.add_derived(Origin::Gradient(logits), DType::F64, Role::Transient);
    let linear = Linear { in_features, out_features: CLASSES, bias: false };
    push(program, LinearForward { linear }, Phase::Forward, &[y, weight], &[logits]);
    push(program, SoftmaxCrossEntropy::default(), Phase::Loss, &[logits, labels], &[metrics, gradient]);
}

fn fill_loss(test: &mut TestSession, name: &str) {
    let weight = test.read(&format!("{name}weight")).len();
    let batch = test.read(&format!("{name}labels")).len();
    // Logits of about one, because a saturated softmax has no gradient to check.
    test.write(&format!("{name}weight"), &numbers(weight, 1, (3.0 * CLASSES as f64 / weight as f64).sqrt()));
    test.write(&format!("{name}labels"), &(0..batch).map(|n| (n % CLASSES) as f64).collect::<Vec<_>>());
}

/// The inputs of forward kernels that have no gradient: statistics, an iteration's constants, and images. All
/// others are checked.
const CONSTANT_INPUTS: [&str; 4] = ["hyper", "images", "inverse_deviation", "mean"];

/// Checks all gradients of a forward case; returns false for other cases.
fn check_case(case: &Case, into: &mut CheckCounts) -> bool {
    let differentiable = match &case.kernel {
        // The first input is `x` for a transposed convolution, but not for a convolution's gradient.
        Kernel::Conv2dForward(_) | Kernel::Conv2dBackwardData(_) => case.inputs[0].name == "x",
        // Without an index the pooling has no derivative; with `mask_relu` its gradient includes that of the
        // preceding ReLU.
        Kernel::MaxPoolForward(pool) => case.outputs.len() == 2 && !pool.mask_relu,
        Kernel::BatchNormInference(norm) if norm.offsets.x.is_none() => {
            norm.pool.is_none() || case.outputs.len() == 2
        }
        // The gradient of a channel slice is written in slices, which tests of whole networks check.
        Kernel::BatchNormApply(norm) => norm.offsets.x.is_none(),
        // Updates, and sums over parts, tiles and workers.
        Kernel::Accumulate(_)
        | Kernel::AdaptiveUpdate(_)
        | Kernel::AddTiles(_)
        | Kernel::AdjustLossScale(_)
        | Kernel::AllReduceBucket(_)
        | Kernel::ClipFactor(_)
        | Kernel::EmaUpdate(_)
        | Kernel::FindOverflow(_)
        | Kernel::LinearUpdate(_)
        | Kernel::SgdUpdate(_)
        | Kernel::StageTransfer(_)
        | Kernel::SumOfSquares(_)
        | Kernel::TreeSum(_) => false,
        // Losses, which every check uses or which have separate tests.
        Kernel::CountLabels(_)
        | Kernel::DistillationLoss(_)
        | Kernel::PixelCrossEntropy(_)
        | Kernel::SoftmaxCrossEntropy(_)
        | Kernel::TargetLoss(_) => false,
        // Copies, inputs, statistics, inference, and a pooling norm without index.
        Kernel::AddBias(_)
        | Kernel::BatchNormStatistics(_)
        | Kernel::BatchNormStatisticsFromSums(_)
        | Kernel::BatchNormSums(_)
        | Kernel::Convert(_)
        | Kernel::Flatten(_)
        | Kernel::NormalisePixels(_)
        | Kernel::Reorder(_)
        | Kernel::ScatterChannels(_)
        | Kernel::StemInference(_)
        | Kernel::StemStatistics(_)
        | Kernel::BatchNormInference(_) => false,
        // All others, except gradients, have derivatives.
        kernel => !["backward", "gradient"].iter().any(|part| kernel.name().contains(part)),
    };
    // Equal inputs are kinks with several valid gradients.
    let ties = case.inputs.iter().any(|input| matches!(input.fill, Fill::Integers { .. }));
    if !differentiable || !case.has_gradients || ties {
        return false;
    }
    let mut program = case.program(Precision::F64).unwrap();
    // A normalisation by running statistics is a frozen layer, whose parameters are not trained.
    let frozen = matches!(case.kernel, Kernel::BatchNormInference(_));
    let trained: Vec<&str> = case
        .inputs
        .iter()
        .filter(|input| if frozen { input.name == "x" } else { !CONSTANT_INPUTS.contains(&input.name) })
        .map(|input| input.name)
        .collect();
    for value in &mut program.values {
        if trained.contains(&value.name.as_str()) {
            value.role = Role::Parameter;
        }
    }
    let step = &program.steps[0];
    let y = step.outputs.first().copied().unwrap_or_else(|| step.updates[0]);
    prepend_statistics(&mut program);
    push_loss(&mut program, y, "head.");
    let mut test = TestSession::new(&differentiate(&program).unwrap());
    fill_loss(&mut test, "head.");
    for (operand, contents) in case.inputs.iter().chain(&case.updates).zip(case.generate_inputs()) {
        test.write(operand.name, &contents);
    }
    assert!(!trained.is_empty(), "{}: nothing to check", case.name);
    for name in trained {
        let zero = into.zero;
        check_gradient(&mut test, name, 6, into);
        // One pixel of one sample has no variance, so only the bias has a gradient; it may also be dropped.
        let shape = &case.inputs[0].shape;
        let single = shape.iter().product::<usize>() == shape[1];
        // ReLU may mask all of a few outputs, whatever the batch statistics.
        let few = frozen && case.results().next().is_some_and(|y| y.shape.iter().product::<usize>() <= 4);
        assert!(into.zero == zero || single || few, "{}: the gradient of `{name}` is zero", case.name);
    }
    true
}

#[test]
fn gradients_of_every_forward_case_match_differences() {
    let (mut checked, mut count) = (CheckCounts::default(), 0);
    for case in cases::for_precision(Precision::F64) {
        count += usize::from(check_case(&case, &mut checked));
    }
    assert!(count > 100, "only {count} cases were checked");
    assert!(checked.kinks * 50 < checked.agreed, "{checked:?}");
    assert!(checked.zero < 20, "{checked:?}");
}

#[test]
fn gradients_of_losses_match_differences() {
    let mut checked = CheckCounts::default();
    for case in cases::for_precision(Precision::F64) {
        let is_loss = matches!(
            case.kernel,
            Kernel::SoftmaxCrossEntropy(_) | Kernel::PixelCrossEntropy(_) | Kernel::TargetLoss(_)
        );
        let (input, name) = match case.kernel {
            Kernel::TargetLoss(_) => ("outputs", "gradient"),
            _ => ("logits", "dlogits"),
        };
        let has_gradient = case.outputs.iter().any(|output| output.name == name);
        // The difference of two losses of thousands has no digits left.
        let is_huge = case
            .inputs
            .first()
            .is_some_and(|input| matches!(input.fill, Fill::Uniform { high, .. } if high > 1e3));
        // An auxiliary loss is added to `metrics`, which each run would change.
        if !is_loss || !has_gradient || is_huge || !case.updates.is_empty() {
            continue;
        }
        let mut program = case.program(Precision::F64).unwrap();
        program.values.iter_mut().filter(|v| v.name == name).for_each(|v| v.role = Role::Buffer);
        let mut test = TestSession::new(&program);
        for (operand, contents) in case.inputs.iter().zip(case.generate_inputs()) {
            test.write(operand.name, &contents);
        }
        check_gradient_in(&mut test, input, name, 30, &mut checked);
    }
    assert!(checked.agreed > 150 && checked.kinks == 0, "{checked:?}");
}

/// A network with gradients of all values, including the images.
pub fn network(graph: &Graph, fused: bool) -> TestSession {
    let mut forward = lower(graph, Mode::Train, Precision::F64, 3).unwrap();
    forward.values[0].role = Role::Parameter;
    if fused {
        forward = fuse(&forward).unwrap();
    }
    test_session(graph, &forward)
}

/// A session of the differentiated network, with values in everything that it reads.
fn test_session(graph: &Graph, forward: &Program) -> TestSession {
    let mut test = TestSession::new(&differentiate(forward).unwrap());
    let images = test.read("images").len();
    test.write("images", &numbers(images, 5, 1.0));
    test.write("labels", &[2.0, -1.0, 1.0]);
    test.write("hyper", &ITERATION_SCALARS);
    for (index, parameter) in graph.parameters.iter().enumerate() {
        let offset = f64::from(u8::from(parameter.name.ends_with("running_var")));
        let contents = numbers(parameter.elements(), 10 + index as u64, 0.5);
        test.write(&parameter.name, &contents.iter().map(|x| x + offset).collect::<Vec<_>>());
    }
    test
}

/// The digits network, and networks with several readers per value, residual blocks, concatenated maps, and
/// upsampling.
fn graphs() -> [Graph; 5] {
    [digits([2, 9, 8], 4, 3), branches(), residual(), inception(), decoder()]
}

/// The names of the values with a gradient.
pub fn differentiated(test: &TestSession) -> Vec<String> {
    let values = test.program.values.iter();
    values
        .filter(|value| value.role == Role::Parameter && test.gradient(&value.name).is_some())
        .map(|value| value.name.clone())
        .collect()
}

#[test]
fn gradients_of_whole_networks_match_differences() {
    for (graph, parameters) in graphs().iter().zip([12, 21, 25, 30, 16]) {
        for fused in [false, true] {
            let mut test = network(graph, fused);
            let names = differentiated(&test);
            assert_eq!(names.len(), parameters, "{names:?}");
            let mut checked = CheckCounts::default();
            for name in names {
                check_gradient(&mut test, &name, 12, &mut checked);
            }
            assert!(
                checked.agreed > 90 && checked.kinks * 20 < checked.agreed && checked.zero == 0,
                "{checked:?}"
            );
        }
    }
}

/// Frozen layers between trained ones: gradients pass through their running statistics, and their parameters
/// have no gradients.
#[test]
fn gradients_of_partly_frozen_networks_match_differences() {
    let mut graph = digits([2, 9, 8], 4, 3);
    graph.freeze(&["layer2", "fc"]).unwrap();
    for fused in [false, true] {
        let mut test = network(&graph, fused);
        let names = differentiated(&test);
        assert_eq!(names.len(), 7, "{names:?}");
        assert!(names.iter().all(|name| !name.starts_with("layer2") && !name.starts_with("fc")), "{names:?}");
        let mut checked = CheckCounts::default();
        for name in names {
            check_gradient(&mut test, &name, 12, &mut checked);
        }
        assert!(
            checked.agreed > 60 && checked.kinks * 20 < checked.agreed && checked.zero == 0,
            "{checked:?}"
        );
    }
}

#[test]
fn fusion_changes_neither_loss_nor_gradients() {
    for graph in graphs() {
        let (mut plain, mut fused) = (network(&graph, false), network(&graph, true));
        assert!(fused.program.steps.len() < plain.program.steps.len());
        let (a, b) = (plain.loss(), fused.loss());
        assert!((a - b).abs() < 1e-13, "{a} {b}");
        for name in differentiated(&plain) {
            stratus_conformance::compare(&plain.read_gradient(&name), &fused.read_gradient(&name), 1e-12)
                .unwrap_or_else(|problem| panic!("the gradient of {name}: {problem}"));
        }
        let statistics = |name: &&String| name.ends_with("running_mean") || name.ends_with("running_var");
        let names: Vec<String> = graph.parameters.iter().map(|parameter| parameter.name.clone()).collect();
        for name in names.iter().filter(statistics) {
            stratus_conformance::compare(&plain.read(name), &fused.read(name), 1e-13).unwrap();
        }
    }
}

/// The sum of a residual block is fused with the preceding norm and the following ReLU. Backward, the
/// gradient is masked in place, together with its last addition, unless it is still needed as the gradient of
/// another value.
#[test]
fn residual_blocks_are_fused_forward_and_backward() {
    let program = network(&residual(), true).program;
    let count = |is: &dyn Fn(&Step) -> bool| program.steps.iter().filter(|step| is(step)).count();
    let sums = |rectified: bool| {
        count(&|step| match step.kernel {
            Kernel::BatchNormAddApply(BatchNormAddApply { relu, .. }) => relu == rectified,
            _ => false,
        })
    };
    assert_eq!([sums(true), sums(false)], [4, 1], "{}", program.dump());
    assert_eq!(count(&|step| matches!(step.kernel, Kernel::AddForward(_))), 1, "{}", program.dump());
    let gradients = |inputs: usize| {
        let is = |step: &Step| matches!(step.kernel, Kernel::BatchNormAddReluGradients(_));
        count(&|step| is(step) && step.inputs.len() == inputs)
    };
    assert_eq!([gradients(4), gradients(5)], [0, 3], "{}", program.dump());
    assert_eq!(count(&|step| matches!(step.kernel, Kernel::ReluBackward(_))), 1, "{}", program.dump());
}

/// Batch norms write into their channel slices and read gradients from there; the outputs of other layers are
/// copied.
#[test]
fn batch_norms_write_into_concatenated_maps() {
    let program = network(&inception(), true).program;
    let count = |is: &dyn Fn(&Step) -> bool| program.steps.iter().filter(|step| is(step)).count();
    let copies = |step: &Step| matches!(step.kernel, Kernel::ConcatForward(_) | Kernel::ConcatBackward(_));
    assert_eq!(count(&copies), 2 + 4, "{}", program.dump());
    let parts = |step: &Step| match step.kernel {
        Kernel::BatchNormApply(norm) => norm.offsets.y.is_some(),
        _ => false,
    };
    assert_eq!(count(&|step| parts(step) && step.outputs.len() == 1), 2, "{}", program.dump());
    assert_eq!(count(&|step| parts(step) && step.updates.len() == 1), 3, "{}", program.dump());
}

/// Pointwise convolutions of one map are fused if batch norms read them, all are trained, and the loss
/// depends on each.
#[test]
fn pointwise_convolutions_of_one_map_are_fused_horizontally() {
    let joined = |graph: &Graph| {
        let program = network(graph, true).program;
        let weights = program.steps.iter().filter_map(|step| match step.kernel {
            Kernel::JoinWeights(_) => Some(step.inputs.iter().map(|&id| program.value(id).name.clone())),
            _ => None,
        });
        weights.flatten().collect::<Vec<_>>()
    };
    let graph = inception();
    assert_eq!(joined(&graph), ["conv_a.weight", "conv_b1.weight"]);
    for frozen in ["conv_a", "bn_b1"] {
        let mut graph = graph.clone();
        graph.freeze(&[frozen]).unwrap();
        assert!(joined(&graph).is_empty(), "{frozen}");
    }
    // A branch without influence on the loss has no gradient: its slice of the joint gradient would not be
    // written.
    let (mut unread, images) = GraphBuilder::new("unread", Shape(vec![3, 4, 4]));
    let [read, _] = ["read", "unread"].map(|name| {
        let y = unread.add(&format!("{name}.conv"), Conv2d::new(3, 16, 1, 1, 0), &[images]).unwrap();
        unread.add(&format!("{name}.bn"), BatchNorm2d::new(16), &[y]).unwrap()
    });
    let y = unread.add("flatten", Flatten, &[read]).unwrap();
    let fc = Linear { in_features: 16 * 4 * 4, out_features: CLASSES, bias: true };
    let y = unread.add("fc", fc, &[y]).unwrap();
    assert!(joined(&unread.finish(y).unwrap()).is_empty());
}

/// Of the three pointwise convolutions that read the input of an inception block, only those whose channels
/// fill cache lines are fused.
#[test]
fn googlenet_convolutions_are_fused_horizontally() {
    let scalars = ModelConfig { input: [3, 64, 64], classes: 10, width: None };
    let graph = (zoo::find("googlenet").unwrap().build)(&scalars).unwrap();
    for (precision, expected) in
        [(Precision::F32, vec![3, 3, 3, 2, 2, 3, 3, 3, 3]), (Precision::Bf16, vec![2, 3, 2, 2, 3, 3, 2])]
    {
        let program = fuse(&lower(&graph, Mode::Train, precision, 2).unwrap()).unwrap();
        let joined = program.steps.iter().filter_map(|step| match step.kernel {
            Kernel::JoinWeights(_) => Some(step.inputs.len()),
            _ => None,
        });
        assert_eq!(joined.collect::<Vec<_>>(), expected, "{precision}");
        // Small maps stay in a cache from one reader to the next and are not fused.
        let program =
            stratus_engine::passes::fuse::fuse(&lower(&graph, Mode::Train, precision, 2).unwrap()).unwrap();
        assert!(!program.steps.iter().any(|step| matches!(step.kernel, Kernel::JoinWeights(_))));
    }
}

/// A network with a stem, fused and not: the images are constants.
#[test]
fn stem_fusion_changes_neither_loss_nor_gradients() {
    for input in [[1, 9, 8], [1, 8, 11]] {
        let graph = digits(input, 4, 8);
        let [mut plain, mut fused] = [false, true].map(|fused| {
            let mut forward = lower(&graph, Mode::Train, Precision::F64, 3).unwrap();
            if fused {
                forward = fuse(&forward).unwrap();
                assert!(matches!(forward.steps[0].kernel, Kernel::StemStatistics(_)), "{}", forward.dump());
            }
            test_session(&graph, &forward)
        });
        assert!((plain.loss() - fused.loss()).abs() < 1e-12);
        for name in differentiated(&plain) {
            stratus_conformance::compare(&plain.read_gradient(&name), &fused.read_gradient(&name), 1e-11)
                .unwrap_or_else(|problem| panic!("the gradient of {name}: {problem}"));
        }
        for name in ["layer1.1.running_mean", "layer1.1.running_var"] {
            stratus_conformance::compare(&plain.read(name), &fused.read(name), 1e-12).unwrap();
        }
        let mut checked = CheckCounts::default();
        for name in differentiated(&fused) {
            check_gradient(&mut fused, &name, 12, &mut checked);
        }
        assert!(
            checked.agreed > 90 && checked.kinks * 20 < checked.agreed && checked.zero == 0,
            "{checked:?}"
        );
    }
}

#[test]
fn gradients_of_several_readers_add_up() {
    let mut program = empty(4);
    let x = program.add_value("x", &[4, 5], DType::F64, Role::Parameter);
    for reader in ["a.", "b.", "c."] {
        push_loss(&mut program, x, reader);
    }
    let program = differentiate(&program).unwrap();
    let accumulations = program.steps.iter().filter(|step| matches!(step.kernel, Kernel::Accumulate(_)));
    assert_eq!(accumulations.count(), 2, "{}", program.dump());
    let mut test = TestSession::new(&program);
    ["a.", "b.", "c."].iter().for_each(|reader| fill_loss(&mut test, reader));
    test.write("x", &numbers(20, 3, 1.0));
    let mut checked = CheckCounts::default();
    check_gradient(&mut test, "x", 20, &mut checked);
    assert_eq!((checked.agreed, checked.zero), (20, 0));
}
