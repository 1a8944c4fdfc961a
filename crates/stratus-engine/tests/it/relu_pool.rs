//! Pooling that masks the gradient of the preceding ReLU output.

use crate::common::{CheckCounts, TestSession, check_gradient, fuse, numbers};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::lower;
use stratus_engine::program::Mode;
use stratus_engine::{Kernel, Precision, Program, Role, Step};
use stratus_graph::ops::{
    AdaptiveAvgPool2d, Add, AvgPool2d, Conv2d, Flatten, Linear, MaxPool2d, Relu, Relu6,
};
use stratus_graph::zoo::{self, ModelConfig};
use stratus_graph::{Graph, GraphBuilder, Op, Shape};

/// VGG-11, with the numbers of its convolutions and of those that are pooled, and AlexNet, whose windows
/// overlap.
fn networks() -> [(Graph, usize, usize); 2] {
    let network = |name: &str, side: usize| {
        let scalars = ModelConfig { input: [3, side, side], classes: 4, width: Some(2) };
        (zoo::find(name).unwrap().build)(&scalars).unwrap()
    };
    [(network("vgg11", 32), 8, 5), (network("alexnet", 63), 5, 3)]
}

fn forward(graph: &Graph, mode: Mode, precision: Precision, fused: bool) -> Program {
    let forward = lower(graph, mode, precision, 2).unwrap();
    if fused { fuse(&forward).unwrap() } else { forward }
}

/// Returns whether a step is a masking pooling.
fn masks_relu(step: &Step) -> bool {
    matches!(step.kernel, Kernel::MaxPoolForward(pool) if pool.mask_relu)
}

/// The steps that mask the gradient of a map.
fn masks(program: &Program) -> usize {
    let is_map = |step: &Step| program.value(step.inputs[0]).shape.len() == 4;
    program.steps.iter().filter(|step| matches!(step.kernel, Kernel::ReluBackward(_)) && is_map(step)).count()
}

/// A session of the differentiated program, filled with values that do not depend on their order.
fn test_session(graph: &Graph, forward: &Program) -> TestSession {
    let mut test = TestSession::filled(&differentiate(forward).unwrap());
    for (index, parameter) in graph.parameters.iter().enumerate() {
        test.write(&parameter.name, &numbers(parameter.elements(), 10 + index as u64, 0.5));
    }
    test
}

/// The loss, and all gradients of parameters with their names.
fn results(mut test: TestSession) -> Vec<(String, Vec<f64>)> {
    let loss = test.loss();
    let gradients = trained(&test).into_iter().map(|name| {
        let gradient = test.read_gradient(&name);
        assert!(gradient.iter().any(|number| *number != 0.0), "{name}");
        (name, gradient)
    });
    std::iter::once(("loss".to_owned(), vec![loss])).chain(gradients).collect()
}

fn trained(test: &TestSession) -> Vec<String> {
    let parameters = test.program.values.iter().filter(|value| value.role == Role::Parameter);
    parameters.map(|value| value.name.clone()).collect()
}

/// The mask is bitwise equal to that of a separate pass.
#[test]
fn pooling_masks_like_a_separate_pass() {
    for (graph, maps, pooled) in networks() {
        for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
            let fused = forward(&graph, Mode::Train, precision, true);
            assert_eq!(fused.steps.iter().filter(|step| masks_relu(step)).count(), pooled, "{}", graph.name);
            let mut separate = fused.clone();
            for step in &mut separate.steps {
                if let Kernel::MaxPoolForward(pool) = &mut step.kernel {
                    pool.mask_relu = false;
                }
            }
            let [fused, separate] = [fused, separate].map(|forward| test_session(&graph, &forward));
            assert_eq!(
                [masks(&fused.program), masks(&separate.program)],
                [maps - pooled, maps],
                "{}",
                graph.name
            );
            let bits = |test: TestSession| {
                let bits =
                    |numbers: Vec<f64>| numbers.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
                results(test).into_iter().map(|(name, numbers)| (name, bits(numbers))).collect::<Vec<_>>()
            };
            assert!(bits(fused) == bits(separate), "{} {precision}", graph.name);
        }
    }
}

#[test]
fn masking_pooling_changes_neither_loss_nor_gradients() {
    for (graph, ..) in networks() {
        let [plain, fused] = [false, true]
            .map(|fused| results(test_session(&graph, &forward(&graph, Mode::Train, Precision::F64, fused))));
        assert!(plain.len() > 10 && plain.len() == fused.len());
        for ((name, plain), (_, fused)) in plain.iter().zip(&fused) {
            stratus_conformance::compare(plain, fused, 1e-12)
                .unwrap_or_else(|problem| panic!("{name}: {problem}"));
        }
    }
}

#[test]
fn pooling_without_gradient_does_not_mask() {
    for (mut graph, ..) in networks() {
        assert!(!forward(&graph, Mode::Evaluate, Precision::F32, true).steps.iter().any(masks_relu));
        graph.freeze(&["features"]).unwrap();
        let program = differentiate(&forward(&graph, Mode::Train, Precision::F32, true)).unwrap();
        assert!(!program.steps.iter().any(masks_relu));
    }
}

/// A network of the given layers and a pooling; with `is_read_twice` another layer reads the same map.
fn pooled(before: &[Op], pool: MaxPool2d, is_read_twice: bool) -> Graph {
    let (mut graph, images) = GraphBuilder::new("pooled", Shape(vec![3, 11, 10]));
    let conv = || Conv2d::new(3, 3, 3, 1, 1);
    let mut x = graph.add("conv", conv(), &[images]).unwrap();
    for (number, op) in before.iter().enumerate() {
        let inputs = match op {
            Op::Add(_) => vec![x, graph.add("other", conv(), &[images]).unwrap()],
            _ => vec![x],
        };
        x = graph.add(&format!("before{number}"), op.clone(), &inputs).unwrap();
    }
    let mut y = graph.add("pool", pool, &[x]).unwrap();
    if is_read_twice {
        let small = AvgPool2d::new(pool.kernel[0], pool.stride[0], pool.padding[0]);
        let small = graph.add("small", small, &[x]).unwrap();
        y = graph.add("sum", Add, &[y, small]).unwrap();
    }
    let last: [Op; 4] = [
        conv().into(),
        AdaptiveAvgPool2d { output: [2, 1] }.into(),
        Flatten.into(),
        Linear { in_features: 6, out_features: 4, bias: true }.into(),
    ];
    for (number, op) in last.into_iter().enumerate() {
        y = graph.add(&format!("last{number}"), op, &[y]).unwrap();
    }
    graph.finish(y).unwrap()
}

/// The map is the output of a convolution, a sum or a ReLU. If another step reads the map too, or ReLU has a
/// ceiling, a separate pass masks.
#[test]
fn gradients_of_masking_pooling_match_differences() {
    let (separate, overlapping) = (MaxPool2d::new(2, 2, 0), MaxPool2d::new(3, 2, 1));
    let average: Op = AvgPool2d::new(2, 1, 0).into();
    for (before, pool, is_read_twice, expected) in [
        (vec![Relu.into()], separate, false, true),
        (vec![Relu.into()], overlapping, false, true),
        (vec![Relu.into()], overlapping, true, false),
        (vec![Relu6.into()], overlapping, false, false),
        (vec![Add.into(), Relu.into()], overlapping, false, true),
        (vec![average.clone(), Relu.into()], overlapping, false, true),
        (vec![average, Relu.into()], separate, true, false),
    ] {
        let graph = pooled(&before, pool, is_read_twice);
        let mut test = test_session(&graph, &forward(&graph, Mode::Train, Precision::F64, true));
        let program = &test.program;
        let counts = (program.steps.iter().any(masks_relu), masks(program));
        assert_eq!(counts, (expected, usize::from(!expected)), "{}", program.dump());
        let mut checked = CheckCounts::default();
        for name in trained(&test) {
            check_gradient(&mut test, &name, 12, &mut checked);
        }
        assert!(
            checked.agreed >= 40 && checked.kinks * 20 < checked.agreed && checked.zero == 0,
            "{checked:?}"
        );
    }
}
