//! Every network against PyTorch: logits, losses, all gradients of a step, and everything trained after five.
//!
//! The fixtures are summaries in double precision, made by `scripts/fixtures/parity.py`, for segmentation by
//! `segmentation.py`. Their headers define the weights and batches that are generated here too. A tensor
//! agrees if the error of its projections and elements is at most `TOLERANCE` of its norm, or a multiple of
//! the error of PyTorch's f32 if that is more: where a sum cancels or a rectifier switches, no two f32
//! programs agree.

use crate::common::{
    AS_PYTORCH, Summary, TOLERANCE, Worst, check, check_change, check_loss, cuda, fnv1a64, inputs_of,
    numbers, onednn, run, session, splitmix64,
};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use stratus_cuda::Cuda;
use stratus_engine::backend::step_key;
use stratus_engine::ops::{CLASS_WEIGHTS, SgdUpdate};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::fuse::{Fusions, LARGE_MAP, fuse_as};
use stratus_engine::passes::lower::{lower, weigh_classes};
use stratus_engine::passes::tile::tile;
use stratus_engine::passes::update::{Optimiser, update};
use stratus_engine::plan::{Persistent, Plan};
use stratus_engine::program::Mode;
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::session::Hyper;
use stratus_engine::{Backend, Choices, Kernel, Phase, Precision, Program, Role, Step, ValueId};
use stratus_graph::ops::{Conv2d, Op, ParameterKind};
use stratus_graph::zoo::{self, Hyperparameters};
use stratus_graph::{Graph, Parameter};

#[derive(Deserialize)]
struct Fixture {
    network: String,
    batch: String,
    input: [usize; 4],
    classes: usize,
    labels: Labels,
    /// Of the loss of each pixel.
    #[serde(default)]
    class_weights: Vec<f32>,
    #[serde(default)]
    batch_norm_bias: f32,
    learning_rate: f32,
    momentum: f32,
    weight_decay: f32,
    losses: Vec<f64>,
    losses_off: f64,
    logits: BTreeMap<String, Logits>,
    #[serde(default)]
    logits_off: f64,
    gradients: BTreeMap<String, Summary>,
    after: BTreeMap<String, Summary>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Labels {
    /// One for each sample.
    Given(Vec<i32>),
    /// One for each pixel, by this name.
    Named(String),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Logits {
    All(Vec<f64>),
    Summary(Summary),
}

impl Fixture {
    /// So many labels, of samples or pixels.
    fn labels(&self, count: usize) -> Vec<i32> {
        match &self.labels {
            Labels::Given(labels) => labels.clone(),
            Labels::Named(name) => {
                let (hash, classes) = (fnv1a64(name), self.classes as u64);
                let label = |i| splitmix64(hash.wrapping_add(i)) % (classes + 1);
                (0..count as u64)
                    .map(label)
                    .map(|label| if label < classes { label as i32 } else { -1 })
                    .collect()
            }
        }
    }

    /// The batch; of segmentation its images differ in contrast.
    fn pixels(&self) -> Vec<f32> {
        let [samples, ..] = self.input;
        let count: usize = self.input.iter().product();
        let contrast = |pixel: usize| match self.labels {
            Labels::Given(_) => 1.0,
            Labels::Named(_) => (pixel / (count / samples) + 1) as f32 / samples as f32,
        };
        numbers(&self.batch, count).enumerate().map(|(pixel, value)| value * contrast(pixel)).collect()
    }
}

/// A parameter's initial values, as the fixtures define them.
fn values(graph: &Graph, parameter: &Parameter, batch_norm_bias: f32) -> Vec<f32> {
    let (module, part) = parameter.name.rsplit_once('.').unwrap();
    let numbers = numbers(&parameter.name, parameter.elements());
    if parameter.shape.len() >= 2 {
        let fan_in = parameter.elements() / parameter.shape[0];
        let scale = (6.0 / fan_in as f64).sqrt() as f32;
        return numbers.map(|v| scale * v).collect();
    }
    let normalises = graph.parameters.iter().any(|other| other.name == format!("{module}.running_mean"));
    match (normalises, part) {
        (_, "weight") => numbers.map(|v| 0.5 + 0.25 * v).collect(),
        (true, "bias") => numbers.map(|v| batch_norm_bias + 0.25 * v).collect(),
        (true, "running_mean") => vec![0.0; parameter.elements()],
        (true, "running_var") => vec![1.0; parameter.elements()],
        _ => numbers.map(|v| 0.1 * v).collect(),
    }
}

fn load(network: &str) -> Fixture {
    // A test that was built on another machine runs in the root of a checkout.
    let folders = [env!("CARGO_MANIFEST_DIR"), "crates/stratus-train"].map(Path::new);
    let folder = folders.into_iter().find(|folder| folder.is_dir()).unwrap();
    let path = folder.join(format!("tests/fixtures/parity/{network}.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn graph(fixture: &Fixture) -> Graph {
    let [_, channels, height, width] = fixture.input;
    let input = [channels, height, width];
    let hyper = Hyperparameters { input, classes: fixture.classes, width: None };
    let mut graph = (zoo::find(&fixture.network).unwrap().build)(&hyper).unwrap();
    for node in &mut graph.nodes {
        match &mut node.op {
            Op::Dropout(dropout) => dropout.p = 0.0,
            Op::Dropout2d(dropout) => dropout.p = 0.0,
            Op::StochasticDepth(depth) => depth.p = 0.0,
            _ => {}
        }
    }
    graph
}

/// The training program, with its logits and parameter gradients kept for reading.
fn program(fixture: &Fixture, graph: &Graph, tile_bytes: usize, fusions: Fusions) -> Program {
    let mut forward = lower(graph, Mode::Train, Precision::F32, fixture.input[0]).unwrap();
    if !fixture.class_weights.is_empty() {
        forward = weigh_classes(forward).unwrap();
    }
    let forward = fuse_as(&forward, fusions).unwrap();
    let mut program = tile(&differentiate(&forward).unwrap(), tile_bytes, 1).unwrap();
    let logits: Vec<_> =
        program.steps.iter().filter(|step| step.phase == Phase::Loss).map(|step| step.inputs[0]).collect();
    for id in logits {
        program.values[id.0].role = Role::Buffer;
    }
    for parameter in &graph.parameters {
        let parameter = program.find(&parameter.name).unwrap();
        if let Some(gradient) = program.gradient_of(parameter) {
            program.values[gradient.0].role = Role::Buffer;
        }
    }
    let sgd = SgdUpdate {
        momentum: fixture.momentum,
        weight_decay: fixture.weight_decay,
        nesterov: false,
        rate: 1.0,
        scaled: false,
    };
    update(&program, Optimiser::Sgd(sgd)).unwrap()
}

/// Selects minimal filtering for every convolution, and gradient of one, that supports it; returns their
/// number.
fn by_minimal_filtering(backend: &dyn Backend, program: &Program, choices: &mut Choices) -> usize {
    let is_dense = |conv: &Conv2d| conv.kernel == [3; 2] && conv.stride == [1; 2] && conv.groups == 1;
    let mut found = 0;
    for step in &program.steps {
        let dense = match &step.kernel {
            Kernel::Conv2dForward(kernel) => is_dense(&kernel.conv),
            Kernel::Conv2dBackwardData(kernel) => is_dense(&kernel.conv),
            Kernel::Conv2dBackwardWeights(kernel) => is_dense(&kernel.conv),
            _ => false,
        };
        if !dense {
            continue;
        }
        let mut with = choices.clone();
        with.implementations.insert(step_key(program, step), "stratus:winograd:avx512".to_owned());
        if Plan::prepare(backend, program, with.clone(), false, &mut Persistent::default()).is_ok() {
            *choices = with;
            found += 1;
        }
    }
    found
}

/// How a network trains: bytes of a tile, the layout of maps, fusions, and whether convolutions use minimal
/// filtering or plain kernels.
struct Variant<'a> {
    tile_bytes: usize,
    layout: Option<&'a str>,
    fusions: Fusions,
    filtering: bool,
    plain_kernels: bool,
}

const PLAIN: Variant<'static> = Variant {
    tile_bytes: usize::MAX,
    layout: None,
    fusions: Fusions { large: LARGE_MAP, stems: true },
    filtering: false,
    plain_kernels: false,
};

/// Trains five steps on a backend and compares.
fn trains(backend: &dyn Backend, network: &str, variant: &Variant<'_>) {
    let fixture = load(network);
    let graph = graph(&fixture);
    let program = program(&fixture, &graph, variant.tile_bytes, variant.fusions);
    // Images come in no blocks, so what pools them is channels last in any case.
    let pools_images = |step: &&Step| {
        let reads_images = program.value(step.inputs[0]).role == Role::Images;
        matches!(step.kernel, Kernel::MaxPoolForward(_)) && reads_images
    };
    let pools = program.steps.iter().filter(pools_images);
    let pooled: Vec<ValueId> = pools.flat_map(|step| [step.inputs[0], step.outputs[0]]).collect();
    let layouts = variant.layout.map_or_else(BTreeMap::new, |tag| {
        let maps = program.values.iter().enumerate();
        maps.filter(|(_, value)| value.shape.len() == 4 && value.per_sample)
            .map(|(id, value)| {
                let tag = if pooled.contains(&ValueId(id)) { "nhwc" } else { tag };
                (value.name.clone(), tag.to_owned())
            })
            .collect()
    });
    let mut choices = Choices { layouts, ..Choices::default() };
    if variant.filtering {
        let found = by_minimal_filtering(backend, &program, &mut choices);
        println!("{network}: {found} steps by minimal filtering");
        assert!(found > 0, "{network}");
    }
    let is_convolution = |kernel: &Kernel| {
        matches!(
            kernel,
            Kernel::Conv2dForward(_) | Kernel::Conv2dBackwardData(_) | Kernel::Conv2dBackwardWeights(_)
        )
    };
    for step in program.steps.iter().filter(|step| variant.plain_kernels && is_convolution(&step.kernel)) {
        choices.implementations.insert(step_key(&program, step), "stratus:plain".to_owned());
    }
    let mut session = session(backend, &program, choices);
    for parameter in &graph.parameters {
        let values = values(&graph, parameter, fixture.batch_norm_bias);
        session.write(&parameter.name, &values).unwrap();
        for state in program.optimiser_states_of(program.find(&parameter.name).unwrap()) {
            session.write(&program.value(state).name, &vec![0.0; values.len()]).unwrap();
        }
    }
    session.set_hyper(Hyper { learning_rate: fixture.learning_rate, iteration: 0, seed: 0 }).unwrap();
    if !fixture.class_weights.is_empty() {
        session.write(CLASS_WEIGHTS, &fixture.class_weights).unwrap();
    }
    let labels = program.value(program.find("labels").unwrap()).elements();
    let mut inputs = inputs_of(&session, &fixture.pixels(), &fixture.input, &fixture.labels(labels));
    let mut worst = Worst::default();
    for (step, expected) in fixture.losses.iter().enumerate() {
        check_loss(step, run(&mut session, &mut inputs), *expected, fixture.losses_off);
        if step > 0 {
            continue;
        }
        let heads = program.steps.iter().filter(|step| step.phase == Phase::Loss);
        assert_eq!(heads.clone().count(), fixture.logits.len());
        let expected_heads: Vec<&Logits> = fixture.logits.values().collect();
        for head in heads {
            let logits = session.read_value(0, head.inputs[0].0).unwrap();
            // Only networks of one output have a summary.
            if let [Logits::Summary(expected)] = expected_heads[..] {
                let logits: Vec<f32> = logits.iter().map(|&value| value as f32).collect();
                check("logits:main", &logits, expected, &mut worst);
                continue;
            }
            let largest = logits.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
            let allowed = (TOLERANCE * largest).max(AS_PYTORCH * fixture.logits_off);
            let difference = |expected: &Logits| {
                let Logits::All(expected) = expected else { return f64::INFINITY };
                logits.iter().zip(expected).fold(0.0f64, |worst, (a, b)| worst.max((a - b).abs()))
            };
            let nearest = expected_heads.iter().map(|e| difference(e)).fold(f64::INFINITY, f64::min);
            assert!(nearest <= allowed, "logits are off by {nearest}, {allowed} is allowed");
        }
        for (name, expected) in &fixture.gradients {
            let gradient = program.gradient_of(program.find(name).unwrap()).unwrap();
            let got = session.read(&program.value(gradient).name).unwrap();
            check(name, &got, expected, &mut worst);
        }
        assert_eq!(fixture.gradients.len(), trained(&graph));
    }
    for (name, expected) in &fixture.after {
        let got = session.read(name).unwrap();
        check(name, &got, expected, &mut worst);
        let parameter = graph.parameters.iter().find(|p| p.name == *name).unwrap();
        check_change(name, &got, &values(&graph, parameter, fixture.batch_norm_bias), expected);
    }
    assert_eq!(fixture.after.len(), graph.parameters.len());
    println!(
        "{network}: the worst tensor is off by {:.1e} of its norm; {} of {} as PyTorch's own f32: {:?}",
        worst.relative,
        worst.loose.len(),
        fixture.gradients.len() + fixture.after.len(),
        worst.loose.iter().take(8).collect::<Vec<_>>()
    );
}

fn trained(graph: &Graph) -> usize {
    graph.parameters.iter().filter(|p| p.kind == ParameterKind::Trained).count()
}

/// Networks with dense dilated convolutions. For their weight gradients on maps in blocks oneDNN has only its
/// reference, which no plan chooses and which takes minutes.
const DILATED: [&str; 2] = ["fcn_resnet18", "deeplabv3plus_resnet18"];

/// oneDNN: whole batches and tiles, both layouts of maps.
fn on_onednn(network: &str) {
    let Some(backend) = onednn() else { return };
    let in_blocks = if DILATED.contains(&network) { "nhwc" } else { "nChw16c" };
    for (tile_bytes, layout) in [(usize::MAX, "nhwc"), (1 << 20, in_blocks)] {
        trains(&backend, network, &Variant { tile_bytes, layout: Some(layout), ..PLAIN });
    }
}

#[test]
#[ignore = "minutes in oneDNN's reference: `make test-all` runs it"]
fn dilated_networks_in_blocks() {
    let Some(backend) = onednn() else { return };
    for network in DILATED {
        trains(&backend, network, &Variant { tile_bytes: 1 << 20, layout: Some("nChw16c"), ..PLAIN });
    }
}

/// Minimal filtering is normally chosen only if it is measured to be fastest; here it is forced.
fn on_minimal_filtering(network: &str) {
    let Some(backend) = onednn() else { return };
    if !backend.supports(Precision::Bf16) {
        return eprintln!("SKIPPED: minimal filtering is for processors with AVX-512, as bf16 is");
    }
    trains(&backend, network, &Variant { layout: Some("nhwc"), filtering: true, ..PLAIN });
}

/// Convolutions that read the same map are fused horizontally if it is large; here also if it is small.
#[test]
fn googlenet_with_all_siblings_joined() {
    let Some(backend) = onednn() else { return };
    for layout in ["nhwc", "nChw16c"] {
        let fusions = Fusions { large: 0, ..PLAIN.fusions };
        trains(&backend, "googlenet", &Variant { layout: Some(layout), fusions, ..PLAIN });
    }
}

#[test]
fn resnet18_on_minimal_filtering() {
    on_minimal_filtering("resnet18");
}

#[test]
#[ignore = "a large network: `make test-all` runs it"]
fn vgg19_on_minimal_filtering() {
    on_minimal_filtering("vgg19");
}

#[test]
fn the_rule_is_that_of_the_fixtures() {
    assert_eq!(fnv1a64("input0"), 0x49a0_0892_a465_f7d1);
    assert_eq!(splitmix64(fnv1a64("input0")), 0x341e_c14c_00d2_a629);
    let expected = [-0.592_811_465_263_366_7, -0.999_172_449_111_938_5, 0.473_516_702_651_977_54];
    assert_eq!(numbers("input0", 3).map(f64::from).collect::<Vec<_>>(), expected);
}

#[test]
fn the_reference_agrees_with_pytorch_too() {
    trains(&ReferenceBackend, "digits", &PLAIN);
    trains(&ReferenceBackend, "digits", &Variant { tile_bytes: 1 << 14, ..PLAIN });
}

/// A GPU, with the plan of a run.
fn on_cuda(network: &str) {
    let Some(backend) = cuda() else { return };
    trains(&backend, network, &Variant { fusions: backend.fusions(), ..PLAIN });
}

/// A GPU with the native plain convolutions, which accumulate in double precision: shows whether rounding in
/// other kernels explains a disagreement.
fn on_cuda_plain_kernels(network: &str) {
    let Some(backend) = cuda() else { return };
    trains(&backend, network, &Variant { fusions: backend.fusions(), plain_kernels: true, ..PLAIN });
}

/// The native GPU kernels, convolutions and matrix products included, emulated on the CPU.
#[test]
fn digits_on_an_emulated_gpu() {
    let backend = Cuda::emulated().unwrap();
    trains(&backend, "digits", &Variant { fusions: backend.fusions(), ..PLAIN });
}

macro_rules! networks {
    ($($(#[$attribute:meta])* $name:ident;)*) => {
        $($(#[$attribute])* #[test] fn $name() { on_onednn(stringify!($name)); })*
        mod on_a_gpu {
            $(#[test] fn $name() { super::on_cuda(stringify!($name)); })*
            mod plain_kernels {
                $(#[test] fn $name() { super::super::on_cuda_plain_kernels(stringify!($name)); })*
            }
        }
    };
}

networks! {
    alexnet;
    convnext_tiny;
    deeplabv3plus_resnet18;
    #[ignore = "a large network: `make test-all` runs it"]
    densenet121;
    digits;
    efficientnet_b0;
    erfnet;
    erfnet_encoder;
    fcn_resnet18;
    googlenet;
    #[ignore = "a large network: `make test-all` runs it"]
    inception_v3;
    mobilenet_v2;
    #[ignore = "a large network: `make test-all` runs it"]
    mobilenet_v3_large;
    mobilenet_v3_small;
    resnet18;
    #[ignore = "a large network: `make test-all` runs it"]
    resnet34;
    resnet50;
    #[ignore = "a large network: `make test-all` runs it"]
    resnet101;
    #[ignore = "a large network: `make test-all` runs it"]
    resnet152;
    #[ignore = "a large network: `make test-all` runs it"]
    resnext50_32x4d;
    squeezenet1_1;
    #[ignore = "a large network: `make test-all` runs it"]
    vgg11;
    #[ignore = "a large network: `make test-all` runs it"]
    vgg11_bn;
    #[ignore = "a large network: `make test-all` runs it"]
    vgg13;
    #[ignore = "a large network: `make test-all` runs it"]
    vgg13_bn;
    #[ignore = "a large network: `make test-all` runs it"]
    vgg16;
    #[ignore = "a large network: `make test-all` runs it"]
    vgg16_bn;
    #[ignore = "a large network: `make test-all` runs it"]
    vgg19;
    #[ignore = "a large network: `make test-all` runs it"]
    vgg19_bn;
}
