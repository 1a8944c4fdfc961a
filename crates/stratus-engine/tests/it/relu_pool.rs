//! Pooling that masks the gradient of the rectified map before it.

use crate::common::{Checked, Probe, check_gradient, fuse, numbers};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::lower;
use stratus_engine::program::Mode;
use stratus_engine::{Kernel, Precision, Program, Role, Step};
use stratus_graph::ops::{
    AdaptiveAvgPool2d, Add, AvgPool2d, Conv2d, Flatten, Linear, MaxPool2d, Relu, Relu6,
};
use stratus_graph::zoo::{self, Hyperparameters};
use stratus_graph::{Graph, GraphBuilder, Op, Shape};

/// VGG-11, with the convolutions that it has and those that are pooled, and AlexNet, whose windows overlap.
fn networks() -> [(Graph, usize, usize); 2] {
    let network = |name: &str, side: usize| {
        let hyper = Hyperparameters { input: [3, side, side], classes: 4, width: Some(2) };
        (zoo::find(name).unwrap().build)(&hyper).unwrap()
    };
    [(network("vgg11", 32), 8, 5), (network("alexnet", 63), 5, 3)]
}

fn forward(graph: &Graph, mode: Mode, precision: Precision, fused: bool) -> Program {
    let forward = lower(graph, mode, precision, 2).unwrap();
    if fused { fuse(&forward).unwrap() } else { forward }
}

/// Whether a step is a pooling that masks.
fn cuts(step: &Step) -> bool {
    matches!(step.kernel, Kernel::MaxPoolForward(pool) if pool.cut)
}

/// The steps that mask the gradient of a map.
fn masks(program: &Program) -> usize {
    let is_map = |step: &Step| program.value(step.inputs[0]).shape.len() == 4;
    program.steps.iter().filter(|step| matches!(step.kernel, Kernel::ReluBackward(_)) && is_map(step)).count()
}

/// The differentiated program, with numbers in all that it reads, whatever the order of its values.
fn probe(graph: &Graph, forward: &Program) -> Probe {
    let mut probe = Probe::filled(&differentiate(forward).unwrap());
    for (index, parameter) in graph.parameters.iter().enumerate() {
        probe.write(&parameter.name, &numbers(parameter.elements(), 10 + index as u64, 0.5));
    }
    probe
}

/// The loss, and all gradients of parameters with their names.
fn results(mut probe: Probe) -> Vec<(String, Vec<f64>)> {
    let loss = probe.loss();
    let gradients = trained(&probe).into_iter().map(|name| {
        let gradient = probe.read_gradient(&name);
        assert!(gradient.iter().any(|number| *number != 0.0), "{name}");
        (name, gradient)
    });
    std::iter::once(("loss".to_owned(), vec![loss])).chain(gradients).collect()
}

fn trained(probe: &Probe) -> Vec<String> {
    let parameters = probe.program.values.iter().filter(|value| value.role == Role::Parameter);
    parameters.map(|value| value.name.clone()).collect()
}

/// To the bit as a pass of its own masks it.
#[test]
fn pooling_masks_as_the_rectifier_would() {
    for (graph, maps, pooled) in networks() {
        for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
            let fused = forward(&graph, Mode::Train, precision, true);
            assert_eq!(fused.steps.iter().filter(|step| cuts(step)).count(), pooled, "{}", graph.name);
            let mut apart = fused.clone();
            for step in &mut apart.steps {
                if let Kernel::MaxPoolForward(pool) = &mut step.kernel {
                    pool.cut = false;
                }
            }
            let [fused, apart] = [fused, apart].map(|forward| probe(&graph, &forward));
            assert_eq!(
                [masks(&fused.program), masks(&apart.program)],
                [maps - pooled, maps],
                "{}",
                graph.name
            );
            let bits = |probe: Probe| {
                let bits =
                    |numbers: Vec<f64>| numbers.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
                results(probe).into_iter().map(|(name, numbers)| (name, bits(numbers))).collect::<Vec<_>>()
            };
            assert!(bits(fused) == bits(apart), "{} {precision}", graph.name);
        }
    }
}

#[test]
fn loss_and_gradients_are_those_without_fusion() {
    for (graph, ..) in networks() {
        let [plain, fused] = [false, true]
            .map(|fused| results(probe(&graph, &forward(&graph, Mode::Train, Precision::F64, fused))));
        assert!(plain.len() > 10 && plain.len() == fused.len());
        for ((name, plain), (_, fused)) in plain.iter().zip(&fused) {
            stratus_conformance::compare(plain, fused, 1e-12)
                .unwrap_or_else(|problem| panic!("{name}: {problem}"));
        }
    }
}

#[test]
fn nothing_is_masked_where_no_gradient_flows() {
    for (mut graph, ..) in networks() {
        assert!(!forward(&graph, Mode::Evaluate, Precision::F32, true).steps.iter().any(cuts));
        graph.freeze(&["features"]).unwrap();
        let program = differentiate(&forward(&graph, Mode::Train, Precision::F32, true)).unwrap();
        assert!(!program.steps.iter().any(cuts));
    }
}

/// Pooling behind what a network has before it; where `is_read_twice`, another layer reads the same map.
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

/// The map's maker is a convolution, a sum or a rectifier. Where another step reads the map too, or the
/// rectifier has a ceiling, a pass of its own masks.
#[test]
fn what_pooling_masks_has_the_gradient_of_its_differences() {
    let (apart, overlapping) = (MaxPool2d::new(2, 2, 0), MaxPool2d::new(3, 2, 1));
    let average: Op = AvgPool2d::new(2, 1, 0).into();
    for (before, pool, is_read_twice, expected) in [
        (vec![Relu.into()], apart, false, true),
        (vec![Relu.into()], overlapping, false, true),
        (vec![Relu.into()], overlapping, true, false),
        (vec![Relu6.into()], overlapping, false, false),
        (vec![Add.into(), Relu.into()], overlapping, false, true),
        (vec![average.clone(), Relu.into()], overlapping, false, true),
        (vec![average, Relu.into()], apart, true, false),
    ] {
        let graph = pooled(&before, pool, is_read_twice);
        let mut probe = probe(&graph, &forward(&graph, Mode::Train, Precision::F64, true));
        let program = &probe.program;
        let counts = (program.steps.iter().any(cuts), masks(program));
        assert_eq!(counts, (expected, usize::from(!expected)), "{}", program.dump());
        let mut checked = Checked::default();
        for name in trained(&probe) {
            check_gradient(&mut probe, &name, 12, &mut checked);
        }
        assert!(
            checked.agreed >= 40 && checked.kinks * 20 < checked.agreed && checked.zero == 0,
            "{checked:?}"
        );
    }
}
