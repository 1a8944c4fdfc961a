//! Layers whose operands have another shape or type than their kernels take, or occur twice.

use crate::common::{TestSession, fuse};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::lower;
use stratus_engine::program::Mode;
use stratus_engine::{DType, Kernel, Precision, Program};
use stratus_graph::layer_file;

/// The training program of a layer file's layers for images of a shape, without updates.
fn program(input: [usize; 3], layers: &str, precision: Precision, is_fused: bool) -> Program {
    let text = format!("name = 'test'\ninput = {input:?}\n{layers}");
    let graph = layer_file::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let forward = lower(&graph, Mode::Train, precision, 3).unwrap_or_else(|error| panic!("{error}\n{text}"));
    // Dropout aliases its input in evaluation.
    lower(&graph, Mode::Evaluate, precision, 3).unwrap();
    differentiate(&if is_fused { fuse(&forward).unwrap() } else { forward }).unwrap()
}

/// The loss and the gradients of parameters.
fn step(program: &Program) -> (f64, Vec<Vec<f64>>) {
    let mut test = TestSession::filled(program);
    let loss = test.loss();
    let parameters = program.values.iter().filter(|value| test.gradient(&value.name).is_some());
    let gradients = parameters.filter(|value| value.role == stratus_engine::Role::Parameter);
    let gradients: Vec<Vec<f64>> = gradients.map(|value| test.read_gradient(&value.name)).collect();
    assert!(loss.is_finite() && gradients.iter().any(|gradient| gradient.iter().any(|&g| g != 0.0)));
    (loss, gradients)
}

fn layer(name: &str, op: &str, attributes: &str) -> String {
    format!("[[layer]]\nname = '{name}'\nop = '{op}'\n{attributes}\n")
}

/// A map of 3x2x2 that is flattened is a vector of 12 features, as is one of 12x1x1: every operation on
/// vectors computes the same from both.
#[test]
fn operations_on_a_flattened_map_are_those_on_a_vector() {
    let before = layer("slope", "prelu", "") + &layer("flatten", "flatten", "");
    let ops = [
        layer("op", "gelu", ""),
        layer("op", "relu", ""),
        layer("op", "relu6", ""),
        layer("op", "prelu", ""),
        layer("op", "prelu", "per_channel = true"),
        layer("op", "batch_norm2d", ""),
        layer("op", "dropout", "") + &layer("norm", "batch_norm2d", ""),
        layer("op", "scale", "factor = 0.5") + &layer("more", "prelu", "per_channel = true"),
        layer("op", "tanh", "") + &layer("sum", "add", "inputs = ['flatten', 'op']"),
        layer("op", "linear", "out_features = 12") + &layer("sum", "add", "inputs = ['flatten', 'op']"),
        layer("sum", "add", "inputs = ['flatten', 'flatten']"),
    ];
    let after = layer("fc", "linear", "out_features = 4");
    for (op, after) in ops.iter().flat_map(|op| [(op, &after[..]), (op, "")]) {
        let layers = format!("{before}{op}{after}");
        for precision in [Precision::F64, Precision::Bf16] {
            let [map, vector] =
                [[3, 2, 2], [12, 1, 1]].map(|input| step(&program(input, &layers, precision, true)));
            assert_eq!(map, vector, "{precision} {layers}");
        }
    }
}

/// The outputs of linear layers have the master precision, the inputs of linear layers the compute precision.
#[test]
fn linear_layers_read_the_compute_precision() {
    let layers = layer("flatten", "flatten", "")
        + &layer("fc1", "linear", "out_features = 6")
        + &layer("half", "scale", "factor = 0.5")
        + &layer("fc2", "linear", "out_features = 5")
        + &layer("fc3", "linear", "out_features = 4");
    let program = program([2, 2, 2], &layers, Precision::Bf16, true);
    let mut count = 0;
    for step in &program.steps {
        if matches!(step.kernel, Kernel::LinearForward(_) | Kernel::LinearBackwardWeights(_)) {
            assert_eq!(program.value(step.inputs[0]).dtype, DType::Bf16, "{}", program.dump());
            count += 1;
        }
    }
    assert_eq!(count, 6);
    step(&program);
}

/// Inputs that are one tensor, or become one in evaluation, as those of a dropout, are copied.
#[test]
fn repeated_inputs_are_copied() {
    let conv = layer("conv", "conv2d", "out_channels = 2\nkernel = 3");
    let copy = layer("copy", "scale", "factor = 1.0");
    let end = layer("flatten", "flatten", "") + &layer("fc", "linear", "out_features = 4");
    for op in ["concat", "channel_scale"] {
        let joined = |inputs: &str| layer("joined", op, inputs);
        let with = |inputs: &str, copy: &str| {
            let layers = format!("{conv}{copy}{}{end}", joined(inputs));
            step(&program([1, 3, 3], &layers, Precision::F64, true))
        };
        assert_eq!(with("inputs = ['conv', 'conv']", ""), with("inputs = ['conv', 'copy']", &copy), "{op}");
        let dropout = layer("dropout", "dropout", "p = 0.5");
        with("inputs = ['conv', 'dropout']", &dropout);
    }
}

/// A batch norm whose input is also the other term of the sum stays a step of its own.
#[test]
fn a_norm_is_not_fused_with_a_sum_of_its_own_input() {
    for inputs in ["['conv', 'norm']", "['norm', 'conv']"] {
        let layers = layer("conv", "conv2d", "out_channels = 2\nkernel = 2")
            + &layer("norm", "batch_norm2d", "")
            + &layer("sum", "add", &format!("inputs = {inputs}"))
            + &layer("relu", "relu", "")
            + &layer("flatten", "flatten", "")
            + &layer("fc", "linear", "out_features = 4");
        let [fused, plain] =
            [true, false].map(|is_fused| step(&program([1, 4, 4], &layers, Precision::F64, is_fused)));
        assert_eq!(fused, plain);
    }
}
