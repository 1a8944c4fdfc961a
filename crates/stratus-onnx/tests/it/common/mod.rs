//! Helpers of the tests and the example: every network of the zoo at a size that the reference backend
//! computes quickly, weights, and outputs.

use stratus_engine::passes::fuse::fuse;
use stratus_engine::passes::lower::lower;
use stratus_engine::plan::{Persistent, Plan};
use stratus_engine::program::Mode;
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::{Choices, Clock, Phase, Precision, Role, Session};
use stratus_graph::zoo::{self, ModelConfig};
use stratus_graph::{Graph, Op, Parameter};
use stratus_optimise::prune::{Importance, Target, choose, remove};
use stratus_random::{Purpose, Stream};
use stratus_weights::{Tensor, TensorRef, Values};

/// The batch size.
pub const BATCH: usize = 2;

/// A network, its width, and the height and width of its images. The sizes for AlexNet and VGG give adaptive
/// pooling bins of different and of equal sizes.
pub const CASES: &[(&str, usize, [usize; 2])] = &[
    ("digits", 4, [28, 28]),
    ("alexnet", 8, [95, 127]),
    ("alexnet", 8, [223, 223]),
    ("alexnet_bn", 8, [95, 127]),
    ("alexnet_lrn", 8, [127, 95]),
    ("vgg11", 4, [96, 32]),
    ("vgg11_bn", 4, [64, 64]),
    ("vgg13", 4, [32, 32]),
    ("vgg13_bn", 4, [32, 32]),
    ("vgg16", 4, [224, 224]),
    ("vgg16_bn", 4, [32, 32]),
    ("vgg19", 4, [32, 32]),
    ("vgg19_bn", 4, [32, 32]),
    ("googlenet", 8, [65, 70]),
    ("inception_v3", 4, [299, 299]),
    ("resnet18", 8, [64, 64]),
    ("resnet34", 8, [64, 64]),
    ("resnet50", 8, [64, 64]),
    ("resnet101", 8, [32, 32]),
    ("resnet152", 8, [32, 32]),
    ("resnet18_cifar", 8, [32, 32]),
    ("resnext50_32x4d", 8, [64, 64]),
    ("densenet121", 8, [64, 64]),
    ("squeezenet1_1", 8, [67, 70]),
    ("mobilenet_v2", 8, [64, 64]),
    ("mobilenet_v3_small", 8, [64, 64]),
    ("mobilenet_v3_large", 8, [64, 64]),
    ("efficientnet_b0", 8, [64, 64]),
    ("convnext_tiny", 8, [64, 64]),
    ("fcn_resnet18", 8, [35, 50]),
    ("deeplabv3plus_resnet18", 8, [48, 35]),
    ("deeplabv3plus_resnet18_os8", 8, [32, 32]),
    ("erfnet", 4, [40, 48]),
    ("erfnet", 4, [33, 47]),
    ("erfnet_encoder", 4, [40, 48]),
];

/// A network of [`CASES`] with ten classes.
pub fn network(name: &str, width: usize, [height, image_width]: [usize; 2]) -> Graph {
    let network = zoo::find(name).unwrap();
    let channels = (network.defaults)().input[0];
    let input = [channels, height, image_width];
    (network.build)(&ModelConfig { input, classes: 10, width: Some(width) }).unwrap()
}

/// The network without 30 % of its multiply-adds, chosen at random, and its weights.
pub fn pruned(graph: &Graph, weights: &[Tensor]) -> (Graph, Vec<Tensor>) {
    let values = weights.iter().map(|tensor| match &tensor.values {
        Values::F32(values) => (tensor.name.clone(), values.clone()),
        _ => panic!("{} is not f32", tensor.name),
    });
    let model = stratus_optimise::Model { graph: graph.clone(), values: values.collect() };
    let scores = Importance::Random { seed: 3 }.scores(&model).unwrap();
    let target = Target { granularity: 1, ..Target::new(0.3) };
    let mut pruned = remove(&model, &choose(graph, &scores, &target).unwrap()).unwrap();
    let tensor = |parameter: &Parameter| {
        let (name, shape) = (parameter.name.clone(), parameter.shape.clone());
        Tensor { values: Values::F32(pruned.values.remove(&name).unwrap()), name, shape }
    };
    let weights = pruned.graph.parameters.iter().map(tensor).collect();
    (pruned.graph, weights)
}

/// Weights that keep the variance of a signal, and running statistics that differ from the initial ones.
pub fn weights(graph: &Graph) -> Vec<Tensor> {
    let mut tensors = Vec::new();
    for (position, parameter) in graph.parameters.iter().enumerate() {
        let mut stream = Stream::new(11, Purpose::Test, position as u64, 0);
        let mut draw = |low: f32, high: f32| -> Vec<f32> {
            (0..parameter.elements()).map(|_| stream.uniform_between(low, high)).collect()
        };
        let (module, part) = parameter.name.rsplit_once('.').unwrap();
        let normalises =
            graph.nodes.iter().any(|node| node.name == module && matches!(node.op, Op::BatchNorm2d(_)));
        let fan_in: usize = parameter.shape[1..].iter().product();
        let spread = (6.0 / fan_in as f32).sqrt();
        let values = match (normalises, part) {
            (true, "weight") => draw(0.5, 1.5),
            (true, "running_var") => draw(0.5, 2.0),
            (_, "bias" | "running_mean") => draw(-0.3, 0.3),
            _ => draw(-spread, spread),
        };
        let (name, shape) = (parameter.name.clone(), parameter.shape.clone());
        tensors.push(Tensor { name, shape, values: Values::F32(values) });
    }
    tensors
}

pub fn refs(tensors: &[Tensor]) -> Vec<TensorRef<'_>> {
    tensors.iter().map(Tensor::as_ref).collect()
}

/// A batch of [`BATCH`] random images.
pub fn images(graph: &Graph) -> Vec<f32> {
    let mut stream = Stream::new(12, Purpose::Test, 0, 0);
    (0..BATCH * graph.input_shape().elements()).map(|_| stream.uniform_between(-2.0, 2.0)).collect()
}

/// The logits of a batch, computed by the reference backend in inference.
pub fn logits(graph: &Graph, weights: &[Tensor], images: &[f32]) -> Vec<f32> {
    let batch = images.len() / graph.input_shape().elements();
    let mut program = fuse(&lower(graph, Mode::Evaluate, Precision::F32, batch).unwrap()).unwrap();
    let loss = program.steps.iter().find(|step| step.phase == Phase::Loss).unwrap();
    let logits = loss.inputs[0];
    // Only a buffer can be read after the run.
    program.values[logits.0].role = Role::Buffer;
    let name = program.value(logits).name.clone();
    let mut persistent = Persistent::default();
    let plan =
        Plan::prepare(&ReferenceBackend, &program, Choices::default(), false, &mut persistent).unwrap();
    let mut session = Session::new(vec![plan], persistent).unwrap();
    let known: Vec<String> = session.state().map(|value| value.name.to_owned()).collect();
    for tensor in weights.iter().filter(|tensor| known.contains(&tensor.name)) {
        let Values::F32(values) = &tensor.values else { panic!("{} is not f32", tensor.name) };
        session.write(&tensor.name, values).unwrap();
    }
    let mut inputs = session.inputs(0).unwrap();
    inputs.images.as_mut_slice().copy_from_slice(bytemuck::cast_slice(images));
    let mut clock = Clock::disabled(program.steps.len());
    session.run(0, inputs.images.as_mut_slice(), inputs.labels.as_mut_slice(), &mut clock, 0).unwrap();
    session.read(&name).unwrap()
}

/// The largest difference, relative to the largest value.
pub fn relative_difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    assert!(largest > 1e-3 && found.iter().all(|value| value.is_finite()));
    found.iter().zip(expected).fold(0.0f32, |max, (a, b)| max.max((a - b).abs())) / largest
}
