//! Every backward kernel of the reference against central differences of the forward one, alone and through a
//! whole network.

use crate::common::{
    Checked, HYPER, Probe, branches, check_gradient, check_gradient_in, decoder, digits, fuse, inception,
    numbers, residual,
};
use stratus_conformance::{Case, Fill, cases};
use stratus_engine::ops::{
    BatchNormAddApply, BatchNormApply, BatchNormStatistics, LinearForward, METRICS, SoftmaxCrossEntropy,
    StemApply, StemStatistics,
};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::lower;
use stratus_engine::program::{Layer, Mode, Origin};
use stratus_engine::{DType, Kernel, Phase, Precision, Program, Role, Step, ValueId};
use stratus_graph::ops::{BatchNorm2d, Conv2d, Flatten, Linear};
use stratus_graph::zoo::{self, Hyperparameters};
use stratus_graph::{Graph, GraphBuilder, Shape};

const CLASSES: usize = 3;

/// A double-precision program with no steps.
fn empty(batch: usize) -> Program {
    Program {
        network: "gradients".to_owned(),
        mode: Mode::Train,
        precision: Precision::F64,
        batch,
        parts: 1,
        stage: None,
        layers: vec![Layer { name: "layer".to_owned(), kind: "test".to_owned() }],
        values: Vec::new(),
        steps: Vec::new(),
        sections: Vec::new(),
    }
}

/// Puts the statistics before a program that applies them: its derivative goes through both.
fn prepend_statistics(program: &mut Program) {
    let (kernel, channels, sums): (Kernel, usize, _) = match program.steps[0].kernel {
        Kernel::BatchNormApply(BatchNormApply { norm, .. }) => {
            (BatchNormStatistics { norm, part: None }.into(), norm.channels, [2, norm.channels])
        }
        Kernel::BatchNormAddApply(BatchNormAddApply { norm, .. }) => {
            (BatchNormStatistics { norm, part: None }.into(), norm.channels, [2, norm.channels])
        }
        Kernel::StemApply(StemApply { stem }) => {
            (StemStatistics { stem }.into(), stem.norm.channels, [stem.taps() + 1, stem.taps()])
        }
        _ => return,
    };
    // What is normalised, or made from what comes before the parameters of the norm; the statistics come
    // behind these, and last what is added.
    let added = usize::from(matches!(program.steps[0].kernel, Kernel::BatchNormAddApply(_)));
    let inputs = &program.steps[0].inputs;
    let [inputs @ .., _, _, mean, inverse_deviation] = &inputs[..inputs.len() - added] else {
        panic!("inputs")
    };
    let (inputs, made) = (inputs.to_vec(), [*mean, *inverse_deviation]);
    let mut value = |name: &str, shape: &[usize]| program.add_value(name, shape, DType::F64, Role::Buffer);
    let updates = vec![value("running_mean", &[channels]), value("running_var", &[channels])];
    let outputs = made.into_iter().chain([value("sums", &sums)]).collect();
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

/// Adds a fixed linear layer over `y` and a loss; their values' names begin with `name`.
fn push_loss(program: &mut Program, y: ValueId, name: &str) {
    let shape = program.value(y).shape.clone();
    let (batch, in_features) = (shape[0], shape[1..].iter().product());
    let value = |program: &mut Program, part: &str, shape: &[usize], dtype, role| {
        program.add_value(format!("{name}{part}"), shape, dtype, role)
    };
    let weight = value(program, "weight", &[CLASSES, in_features], DType::F64, Role::Buffer);
    let logits = value(program, "logits", &[batch, CLASSES], DType::F64, Role::Transient);
    let labels = value(program, "labels", &[batch], DType::I32, Role::Buffer);
    let metrics = value(program, "metrics", &[METRICS.len()], DType::F64, Role::Metrics);
    let gradient = program.add_derived(Origin::Gradient(logits), DType::F64, Role::Transient);
    let linear = Linear { in_features, out_features: CLASSES, bias: false };
    push(program, LinearForward { linear }, Phase::Forward, &[y, weight], &[logits]);
    push(program, SoftmaxCrossEntropy::default(), Phase::Loss, &[logits, labels], &[metrics, gradient]);
}

fn fill_loss(probe: &mut Probe, name: &str) {
    let weight = probe.read(&format!("{name}weight")).len();
    let batch = probe.read(&format!("{name}labels")).len();
    // Logits of about one: a saturated softmax has no gradient to check.
    probe.write(&format!("{name}weight"), &numbers(weight, 1, (3.0 * CLASSES as f64 / weight as f64).sqrt()));
    probe.write(&format!("{name}labels"), &(0..batch).map(|n| (n % CLASSES) as f64).collect::<Vec<_>>());
}

/// Whether a case's forward kernel passes a gradient to an input of this name.
fn is_trained(name: &str) -> bool {
    let number = ["x", "weight"].iter().find_map(|list| name.strip_prefix(list));
    number.is_some_and(|number| number.parse::<usize>().is_ok())
        || ["a", "b", "x", "factors", "weight", "bias", "norm_weight", "norm_bias"].contains(&name)
}

/// Checks all gradients of one case's forward kernel; false where it is not one.
fn check_case(case: &Case, into: &mut Checked) -> bool {
    let differentiable = match &case.kernel {
        // Of a transposed convolution, rather than a convolution's gradient.
        Kernel::Conv2dForward(_) | Kernel::Conv2dBackwardData(_) => case.inputs[0].name == "x",
        Kernel::BatchNormAddApply(_)
        | Kernel::JoinWeights(_)
        | Kernel::AvgPoolForward(_)
        | Kernel::ChannelScale(_)
        | Kernel::SelectChannels(_)
        | Kernel::GeluForward(_)
        | Kernel::HardSigmoidForward(_)
        | Kernel::HardSwishForward(_)
        | Kernel::ReluForward(_)
        | Kernel::ResizeForward(_)
        | Kernel::Scale(_)
        | Kernel::SigmoidForward(_)
        | Kernel::SiluForward(_)
        | Kernel::LayerScale(_)
        | Kernel::LrnForward(_)
        | Kernel::AddForward(_)
        | Kernel::ConcatForward(_)
        | Kernel::Dropout(_)
        | Kernel::Dropout2d(_)
        | Kernel::LinearForward(_)
        | Kernel::StemApply(_) => true,
        // Of one channel it puts out its bias alone.
        Kernel::LayerNormForward(layer) => layer.norm.channels > 1,
        // Without its index it is not trained through; where it cuts, its gradient is that of the rectifier
        // before it too.
        Kernel::MaxPoolForward(pool) => case.outputs.len() == 2 && !pool.cut,
        Kernel::BatchNormInference(norm) if norm.parts.x.is_none() => {
            norm.pool.is_none() || case.outputs.len() == 2
        }
        // Of a part of a map alone the gradient is made: whole networks show what its other parts' norms make
        // of it.
        Kernel::BatchNormApply(norm) => norm.parts.x.is_none(),
        _ => false,
    };
    // Equal inputs are kinks: the gradient is one of several.
    let ties = case.inputs.iter().any(|input| matches!(input.fill, Fill::Whole { .. }));
    if !differentiable || ties {
        return false;
    }
    let mut program = case.program(Precision::F64).unwrap();
    // A normalisation by running statistics is that of a frozen layer: its parameters are not trained.
    let frozen = matches!(case.kernel, Kernel::BatchNormInference(_));
    let trained: Vec<&str> = case
        .inputs
        .iter()
        .filter(|input| if frozen { input.name == "x" } else { is_trained(input.name) })
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
    let mut probe = Probe::new(&differentiate(&program).unwrap());
    fill_loss(&mut probe, "head.");
    for (operand, contents) in case.inputs.iter().chain(&case.updates).zip(case.draw()) {
        probe.write(operand.name, &contents);
    }
    assert!(!trained.is_empty(), "{}: nothing to check", case.name);
    for name in trained {
        let zero = into.zero;
        check_gradient(&mut probe, name, 6, into);
        // One pixel of one sample has no variance, its batch norm no gradient but the bias's; and it may be
        // dropped.
        let shape = &case.inputs[0].shape;
        let single = shape.iter().product::<usize>() == shape[1];
        // A handful of outputs may all be cut off by the rectifier, whatever the statistics of their batch.
        let few = frozen && case.results().next().is_some_and(|y| y.shape.iter().product::<usize>() <= 4);
        assert!(into.zero == zero || single || few, "{}: the gradient of `{name}` is zero", case.name);
    }
    true
}

#[test]
fn every_forward_case_has_the_gradient_of_its_differences() {
    let (mut checked, mut count) = (Checked::default(), 0);
    for case in cases::of(Precision::F64) {
        count += usize::from(check_case(&case, &mut checked));
    }
    assert!(count > 100, "only {count} cases were checked");
    assert!(checked.kinks * 50 < checked.agreed, "{checked:?}");
    assert!(checked.zero < 20, "{checked:?}");
}

#[test]
fn the_loss_has_the_gradient_of_its_differences() {
    let mut checked = Checked::default();
    for case in cases::of(Precision::F64) {
        let is_loss = matches!(case.kernel, Kernel::SoftmaxCrossEntropy(_) | Kernel::PixelCrossEntropy(_));
        let has_gradient = case.outputs.iter().any(|output| output.name == "dlogits");
        // An auxiliary loss is added to what `metrics` holds, which each run would change.
        if !is_loss || !has_gradient || !case.updates.is_empty() {
            continue;
        }
        let mut program = case.program(Precision::F64).unwrap();
        program.values.iter_mut().filter(|v| v.name == "dlogits").for_each(|v| v.role = Role::Buffer);
        let mut probe = Probe::new(&program);
        for (operand, contents) in case.inputs.iter().zip(case.draw()) {
            probe.write(operand.name, &contents);
        }
        check_gradient_in(&mut probe, "logits", "dlogits", 30, &mut checked);
    }
    assert!(checked.agreed > 150 && checked.kinks == 0, "{checked:?}");
}

/// A network with gradients of everything, the images included.
fn network(graph: &Graph, fused: bool) -> Probe {
    let mut forward = lower(graph, Mode::Train, Precision::F64, 3).unwrap();
    forward.values[0].role = Role::Parameter;
    if fused {
        forward = fuse(&forward).unwrap();
    }
    probe(graph, &forward)
}

/// The differentiated network, with numbers in everything that it reads.
fn probe(graph: &Graph, forward: &Program) -> Probe {
    let mut probe = Probe::new(&differentiate(forward).unwrap());
    let images = probe.read("images").len();
    probe.write("images", &numbers(images, 5, 1.0));
    probe.write("labels", &[2.0, -1.0, 1.0]);
    probe.write("hyper", &HYPER);
    for (index, parameter) in graph.parameters.iter().enumerate() {
        let offset = f64::from(u8::from(parameter.name.ends_with("running_var")));
        let contents = numbers(parameter.elements(), 10 + index as u64, 0.5);
        probe.write(&parameter.name, &contents.iter().map(|x| x + offset).collect::<Vec<_>>());
    }
    probe
}

/// The digits network, one whose values have several readers, one of residual blocks, one of maps one behind
/// the other, and one that makes its maps larger again.
fn graphs() -> [Graph; 5] {
    [digits([2, 9, 8], 4, 3), branches(), residual(), inception(), decoder()]
}

/// The names of the values whose gradient the network makes.
fn differentiated(probe: &Probe) -> Vec<String> {
    let values = probe.program.values.iter();
    values
        .filter(|value| value.role == Role::Parameter && probe.gradient(&value.name).is_some())
        .map(|value| value.name.clone())
        .collect()
}

#[test]
fn a_whole_network_has_the_gradient_of_its_differences() {
    for (graph, parameters) in graphs().iter().zip([12, 21, 25, 30, 16]) {
        for fused in [false, true] {
            let mut probe = network(graph, fused);
            let names = differentiated(&probe);
            assert_eq!(names.len(), parameters, "{names:?}");
            let mut checked = Checked::default();
            for name in names {
                check_gradient(&mut probe, &name, 12, &mut checked);
            }
            assert!(
                checked.agreed > 90 && checked.kinks * 20 < checked.agreed && checked.zero == 0,
                "{checked:?}"
            );
        }
    }
}

/// Frozen layers between trained ones: gradients pass their running statistics, and nothing of them has a
/// gradient of its own.
#[test]
fn a_partly_frozen_network_has_the_gradient_of_its_differences() {
    let mut graph = digits([2, 9, 8], 4, 3);
    graph.freeze(&["layer2", "fc"]).unwrap();
    for fused in [false, true] {
        let mut probe = network(&graph, fused);
        let names = differentiated(&probe);
        assert_eq!(names.len(), 7, "{names:?}");
        assert!(names.iter().all(|name| !name.starts_with("layer2") && !name.starts_with("fc")), "{names:?}");
        let mut checked = Checked::default();
        for name in names {
            check_gradient(&mut probe, &name, 12, &mut checked);
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

/// The sum of a residual block is one step with the norm before it and the rectifier behind it. Backward, the
/// gradient is cut off in its place, with the last addition to it, but where another's gradient is the same
/// value and still to be read.
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

/// Batch norms write where their channels belong, and their gradients are read from there; what others make
/// is copied.
#[test]
fn maps_are_put_one_behind_the_other_by_what_makes_them() {
    let program = network(&inception(), true).program;
    let count = |is: &dyn Fn(&Step) -> bool| program.steps.iter().filter(|step| is(step)).count();
    let copies = |step: &Step| matches!(step.kernel, Kernel::ConcatForward(_) | Kernel::ConcatBackward(_));
    assert_eq!(count(&copies), 2 + 4, "{}", program.dump());
    let parts = |step: &Step| match step.kernel {
        Kernel::BatchNormApply(norm) => norm.parts.y.is_some(),
        _ => false,
    };
    assert_eq!(count(&|step| parts(step) && step.outputs.len() == 1), 2, "{}", program.dump());
    assert_eq!(count(&|step| parts(step) && step.updates.len() == 1), 3, "{}", program.dump());
}

/// Convolutions of one tap that read the same map are one, where norms over the batch read them, all is
/// trained, and the loss is a function of each.
#[test]
fn siblings_are_one_convolution() {
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
    // What the loss is no function of has no gradient: of the map with both, a part would not be written.
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

/// Of the three convolutions of one tap that read the input of an inception block those are joined whose
/// channels fill lines of a cache.
#[test]
fn the_siblings_of_googlenet_are_joined() {
    let hyper = Hyperparameters { input: [3, 64, 64], classes: 10, width: None };
    let graph = (zoo::find("googlenet").unwrap().build)(&hyper).unwrap();
    for (precision, expected) in
        [(Precision::F32, vec![3, 3, 3, 2, 2, 3, 3, 3, 3]), (Precision::Bf16, vec![2, 3, 2, 2, 3, 3, 2])]
    {
        let program = fuse(&lower(&graph, Mode::Train, precision, 2).unwrap()).unwrap();
        let joined = program.steps.iter().filter_map(|step| match step.kernel {
            Kernel::JoinWeights(_) => Some(step.inputs.len()),
            _ => None,
        });
        assert_eq!(joined.collect::<Vec<_>>(), expected, "{precision}");
        // Small maps stay in a cache from one reader to the next.
        let program =
            stratus_engine::passes::fuse::fuse(&lower(&graph, Mode::Train, precision, 2).unwrap()).unwrap();
        assert!(!program.steps.iter().any(|step| matches!(step.kernel, Kernel::JoinWeights(_))));
    }
}

/// A network that begins with a stem, fused and not: the images are constants.
#[test]
fn a_stem_changes_neither_loss_nor_gradients() {
    for input in [[1, 9, 8], [1, 8, 11]] {
        let graph = digits(input, 4, 8);
        let [mut plain, mut fused] = [false, true].map(|fused| {
            let mut forward = lower(&graph, Mode::Train, Precision::F64, 3).unwrap();
            if fused {
                forward = fuse(&forward).unwrap();
                assert!(matches!(forward.steps[0].kernel, Kernel::StemStatistics(_)), "{}", forward.dump());
            }
            probe(&graph, &forward)
        });
        assert!((plain.loss() - fused.loss()).abs() < 1e-12);
        for name in differentiated(&plain) {
            stratus_conformance::compare(&plain.read_gradient(&name), &fused.read_gradient(&name), 1e-11)
                .unwrap_or_else(|problem| panic!("the gradient of {name}: {problem}"));
        }
        for name in ["layer1.1.running_mean", "layer1.1.running_var"] {
            stratus_conformance::compare(&plain.read(name), &fused.read(name), 1e-12).unwrap();
        }
        let mut checked = Checked::default();
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
    let mut probe = Probe::new(&program);
    ["a.", "b.", "c."].iter().for_each(|reader| fill_loss(&mut probe, reader));
    probe.write("x", &numbers(20, 3, 1.0));
    let mut checked = Checked::default();
    check_gradient(&mut probe, "x", 20, &mut checked);
    assert_eq!((checked.agreed, checked.zero), (20, 0));
}
