//! Fine-tuning compared with PyTorch: reads a state dict written by `torch.save`, evaluates it, and trains it
//! with frozen layers.
//!
//! `scripts/fixtures/finetune.py` creates the fixtures; `common` defines the tolerances.

use crate::common::{
    AS_PYTORCH, Summary, TOLERANCE, Worst, check, check_change, check_loss, inputs, onednn, run,
};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use stratus_engine::ops::SgdUpdate;
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::fuse::fuse;
use stratus_engine::passes::lower::lower;
use stratus_engine::passes::tile::tile;
use stratus_engine::passes::update::{Optimiser, update};
use stratus_engine::program::Mode;
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::session::{Inputs, IterationScalars};
use stratus_engine::{Backend, Choices, Phase, Precision, Program, Role, Session};
use stratus_graph::zoo::{self, ModelConfig};
use stratus_graph::{Graph, ParameterKind};
use stratus_run::checkpoint::{Tensor, Values};
use stratus_train::weights::{Pretrained, WeightsPurpose};
use stratus_weights::WeightsFile;

#[derive(Deserialize)]
struct Fixture {
    network: String,
    width: usize,
    batch: String,
    input: [usize; 4],
    classes: usize,
    labels: Vec<i32>,
    learning_rate: f32,
    momentum: f32,
    weight_decay: f32,
    logits: Vec<f64>,
    logits_off: f64,
    frozen: BTreeMap<String, Tuned>,
}

#[derive(Deserialize)]
struct Tuned {
    layers: Vec<String>,
    losses: Vec<f64>,
    losses_off: f64,
    after: BTreeMap<String, Summary>,
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/finetune").join(name)
}

fn load() -> Fixture {
    serde_json::from_slice(&std::fs::read(file("resnet18_narrow.json")).unwrap()).unwrap()
}

fn graph(fixture: &Fixture, classes: usize) -> Graph {
    let [_, channels, height, width] = fixture.input;
    let hyper = ModelConfig { input: [channels, height, width], classes, width: Some(fixture.width) };
    (zoo::find(&fixture.network).unwrap().build)(&hyper).unwrap()
}

/// A session of one program with the weights of the file, and its inputs: the batch of the fixture.
fn session(backend: &dyn Backend, fixture: &Fixture, graph: &Graph, program: &Program) -> (Session, Inputs) {
    let mut session = crate::common::session(backend, program, Choices::default());
    let weights =
        Pretrained::open(&file("resnet18_narrow.pth"), graph, WeightsPurpose::Evaluation, &mut |_| ())
            .unwrap();
    assert_eq!(weights.reinitialised_layers(), None);
    weights.write_to(&mut session).unwrap();
    session
        .set_iteration_scalars(IterationScalars {
            learning_rate: fixture.learning_rate,
            iteration: 0,
            seed: 0,
        })
        .unwrap();
    let inputs = inputs(&session, &fixture.batch, &fixture.input, &fixture.labels);
    (session, inputs)
}

/// Checks that PyTorch's weights give PyTorch's logits in evaluation.
fn check_logits(backend: &dyn Backend) {
    let fixture = load();
    let graph = graph(&fixture, fixture.classes);
    let mut program =
        fuse(&lower(&graph, Mode::Evaluate, Precision::F32, fixture.input[0]).unwrap()).unwrap();
    let logits = program.steps.iter().find(|step| step.phase == Phase::Loss).unwrap().inputs[0];
    program.values[logits.0].role = Role::Buffer;
    let (mut session, mut inputs) = session(backend, &fixture, &graph, &program);
    run(&mut session, &mut inputs);
    let got = session.read_value(0, logits.0).unwrap();
    let largest = fixture.logits.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
    let allowed = (TOLERANCE * largest).max(AS_PYTORCH * fixture.logits_off);
    let off = got.iter().zip(&fixture.logits).fold(0.0f64, |off, (a, b)| off.max((a - b).abs()));
    assert_eq!(got.len(), fixture.logits.len());
    assert!(off <= allowed, "logits are off by {off}, {allowed} is allowed");
}

#[derive(Deserialize)]
struct Published {
    width: usize,
    classes: usize,
    batch: String,
    input: [usize; 4],
    logits: Vec<f64>,
    logits_off: f64,
}

fn segmentation(network: &str, input: [usize; 3], classes: usize, width: usize) -> Graph {
    (zoo::find(network).unwrap().build)(&ModelConfig { input, classes, width: Some(width) }).unwrap()
}

/// The file has the names of ERFNet's published weights: those of a DataParallel network, with a classifier
/// of the encoder that the decoder does not use.
#[test]
fn published_erfnet_weights_give_the_logits_of_pytorch() {
    let text = std::fs::read(file("erfnet_published.json")).unwrap();
    let fixture: Published = serde_json::from_slice(&text).unwrap();
    let [_, channels, height, width] = fixture.input;
    let graph = segmentation("erfnet", [channels, height, width], fixture.classes, fixture.width);
    let path = file("erfnet_published.pth");
    let published = WeightsFile::open(&path).unwrap();
    assert!(published.prefix() == "module." && published.get("encoder.output_conv.weight").is_some());
    let weights = Pretrained::open(&path, &graph, WeightsPurpose::Evaluation, &mut |_| ()).unwrap();
    let mut program = fuse(&lower(&graph, Mode::Evaluate, Precision::F32, 1).unwrap()).unwrap();
    let logits = program.steps.iter().find(|step| step.phase == Phase::Loss).unwrap().inputs[0];
    program.values[logits.0].role = Role::Buffer;
    let mut session = crate::common::session(&ReferenceBackend, &program, Choices::default());
    weights.write_to(&mut session).unwrap();
    let mut inputs = inputs(&session, &fixture.batch, &fixture.input, &vec![0; height * width]);
    run(&mut session, &mut inputs);
    let got = session.read_value(0, logits.0).unwrap();
    assert_eq!(got.len(), fixture.logits.len());
    let largest = fixture.logits.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
    let allowed = (TOLERANCE * largest).max(AS_PYTORCH * fixture.logits_off);
    let off = got.iter().zip(&fixture.logits).fold(0.0f64, |off, (a, b)| off.max((a - b).abs()));
    assert!(off <= allowed, "logits are off by {off}, {allowed} is allowed");

    // The encoder alone loads its part of the file as a pre-training stage, but not for evaluation.
    let encoder = segmentation("erfnet_encoder", [3, 16, 24], fixture.classes, fixture.width);
    let open = |graph: &Graph, purpose| Pretrained::open(&path, graph, purpose, &mut |_| ());
    assert!(open(&encoder, WeightsPurpose::SecondStage).is_ok());
    assert!(
        open(&encoder, WeightsPurpose::Evaluation).unwrap_err().to_string().contains("decoder.output_conv")
    );
    // With other classes, the classifier is reinitialised, and cannot be evaluated.
    let other = segmentation("erfnet", [3, 16, 24], 7, fixture.width);
    let weights = open(&other, WeightsPurpose::Training).unwrap();
    assert!(weights.reinitialised_layers().unwrap().contains("decoder.output_conv is reinitialised"));
    assert!(
        open(&other, WeightsPurpose::Evaluation).unwrap_err().to_string().contains("decoder.output_conv")
    );
    let wider = segmentation("erfnet", [3, 16, 24], fixture.classes, 2 * fixture.width);
    assert!(open(&wider, WeightsPurpose::Training).is_err());
}

/// A file of ResNet-18 is loaded as the backbone of DeepLabv3+; all other tensors are initialised.
#[test]
fn loads_a_backbone_from_a_network_of_its_own() {
    let path = file("resnet18_narrow.pth");
    let open = |network: &str, width: usize, purpose| {
        let graph = segmentation(network, [3, 33, 33], 5, width);
        Pretrained::open(&path, &graph, purpose, &mut |_| ()).map(|weights| (graph, weights))
    };
    let published = WeightsFile::open(&path).unwrap();
    for network in ["deeplabv3plus_resnet18", "deeplabv3plus_resnet18_os8", "fcn_resnet18"] {
        let (graph, weights) = open(network, 4, WeightsPurpose::Training).unwrap();
        let (tensors, first) = (
            weights.tensors(&graph, 7).unwrap(),
            stratus_train::weights::initial_tensors(&graph, 7).unwrap(),
        );
        let mut loaded = 0;
        for (tensor, first) in tensors.iter().zip(&first) {
            let Values::F32(values) = &tensor.values else { continue };
            match tensor.name.strip_prefix("backbone.") {
                Some(name) => {
                    assert_eq!(*values, published.read(published.get(name).unwrap()).unwrap(), "{name}");
                    loaded += 1;
                }
                None => assert_eq!(tensor, first),
            }
        }
        // All tensors of the file except its classifier.
        let counts = |name: &str| name.ends_with("num_batches_tracked") || name.starts_with("fc.");
        assert_eq!(loaded, published.tensors().iter().filter(|tensor| !counts(&tensor.name)).count());
        let text = weights.reinitialised_layers().unwrap();
        assert!(text.contains("the backbone is loaded from") && text.contains("are initialised"), "{text}");
    }
    let refused = |width, purpose| open("deeplabv3plus_resnet18", width, purpose).unwrap_err().to_string();
    assert!(refused(8, WeightsPurpose::Training).contains("its backbone"), "another width");
    assert!(refused(4, WeightsPurpose::Evaluation).contains("classifier"), "a head of its own");
}

/// Trains five steps with frozen layers: frozen tensors stay bit-identical, all others match PyTorch.
fn check_tuning(backend: &dyn Backend, key: &str, tile_bytes: usize) {
    let fixture = load();
    let Tuned { layers, losses, losses_off, after } = &fixture.frozen[key];
    let mut graph = graph(&fixture, fixture.classes);
    graph.freeze(layers).unwrap();
    let forward = fuse(&lower(&graph, Mode::Train, Precision::F32, fixture.input[0]).unwrap()).unwrap();
    let sgd = SgdUpdate {
        momentum: fixture.momentum,
        weight_decay: fixture.weight_decay,
        nesterov: false,
        rate_factor: 1.0,
        loss_scaled: false,
    };
    let program = tile(&differentiate(&forward).unwrap(), tile_bytes, 1).unwrap();
    let program = update(&program, Optimiser::Sgd(sgd)).unwrap();
    let (mut session, mut inputs) = session(backend, &fixture, &graph, &program);
    let velocities: Vec<String> = session
        .state()
        .filter(|value| value.role == Role::OptimiserState)
        .map(|value| value.name.to_owned())
        .collect();
    for name in &velocities {
        let zeros = vec![0.0; session.read(name).unwrap().len()];
        session.write(name, &zeros).unwrap();
    }
    for (step, expected) in losses.iter().enumerate() {
        check_loss(step, run(&mut session, &mut inputs), *expected, *losses_off);
    }
    let first = WeightsFile::open(file("resnet18_narrow.pth")).unwrap();
    let (mut worst, mut kept) = (Worst::default(), 0);
    assert_eq!(after.len(), graph.parameters.len());
    for (name, expected) in after {
        let (got, before) = (session.read(name).unwrap(), first.read(first.get(name).unwrap()).unwrap());
        check(name, &got, expected, &mut worst);
        check_change(name, &got, &before, expected);
        let is_frozen = graph
            .nodes
            .iter()
            .filter(|node| node.frozen)
            .flat_map(|node| &node.parameters)
            .any(|id| graph.parameters[id.0].name == *name);
        // The frozen tensors are exactly those that PyTorch left unchanged.
        assert_eq!(is_frozen, expected.change == Some(0.0), "{name}");
        if is_frozen {
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&got), bits(&before), "{name}");
            kept += 1;
            let parameter = program.find(name).unwrap();
            assert_eq!(program.optimiser_states_of(parameter).count(), 0, "{name} needs no velocity");
        }
    }
    let trained = graph.parameters.iter().filter(|p| p.kind == ParameterKind::Trained).count();
    assert!(kept > 0 && velocities.len() < trained);
    println!("{key}: {kept} tensors kept, the worst other is off by {:.1e} of its norm", worst.relative);
}

#[test]
fn weights_of_pytorch_give_its_logits() {
    check_logits(&ReferenceBackend);
    if let Some(backend) = onednn() {
        check_logits(&backend);
    }
}

#[test]
fn layers_after_frozen_ones_train_as_in_pytorch() {
    check_tuning(&ReferenceBackend, "below", usize::MAX);
    let Some(backend) = onednn() else { return };
    for tile_bytes in [usize::MAX, 1 << 14] {
        check_tuning(&backend, "below", tile_bytes);
    }
}

#[test]
fn gradients_pass_frozen_layers_as_in_pytorch() {
    check_tuning(&ReferenceBackend, "between", usize::MAX);
    let Some(backend) = onednn() else { return };
    for tile_bytes in [usize::MAX, 1 << 14] {
        check_tuning(&backend, "between", tile_bytes);
    }
}

fn mismatch(graph: &Graph, purpose: WeightsPurpose) -> (String, String) {
    let error = Pretrained::open(&file("resnet18_narrow.pth"), graph, purpose, &mut |_| ()).unwrap_err();
    assert!(error.is_usage());
    (error.to_string().replace(file("").to_str().unwrap(), ""), error.hint().unwrap())
}

#[test]
fn reinitialises_a_classifier_for_other_classes() {
    let fixture = load();
    let graph = graph(&fixture, 7);
    let path = file("resnet18_narrow.pth");
    let weights = Pretrained::open(&path, &graph, WeightsPurpose::Training, &mut |_| ()).unwrap();
    let expected = format!("fc is reinitialised: {} has 10 classes, the network 7", path.display());
    assert_eq!(weights.reinitialised_layers(), Some(expected.as_str()));
    // The classifier is initialised by the seed; all other tensors are loaded from the file.
    let tensors = weights.tensors(&graph, 3).unwrap();
    let initial = stratus_train::weights::initial_tensors(&graph, 3).unwrap();
    let first = WeightsFile::open(&path).unwrap();
    for (tensor, initial) in tensors.iter().zip(&initial) {
        let is_new = tensor == initial;
        let counts = tensor.name.ends_with("num_batches_tracked");
        assert_eq!(is_new, tensor.name.starts_with("fc.") || counts, "{}", tensor.name);
        if let (false, Values::F32(values)) = (is_new, &tensor.values) {
            assert_eq!(*values, first.read(first.get(&tensor.name).unwrap()).unwrap(), "{}", tensor.name);
        }
    }
    let (problem, hint) = mismatch(&graph, WeightsPurpose::Evaluation);
    assert_eq!(
        problem,
        "resnet18_narrow.pth: 100 of the 102 tensors of network `resnet18` fit\n\
         `fc.weight` is [10, 32] in the file, but [7, 32] in the network\n\
         `fc.bias` is [10] in the file, but [7] in the network"
    );
    assert_eq!(hint, "these are weights for 10 classes; set model.classes");
}

#[test]
fn lists_every_tensor_that_does_not_fit() {
    let fixture = load();
    let network = |name: &str, width| {
        let hyper = ModelConfig { input: [3, 64, 64], classes: 7, width: Some(width) };
        (zoo::find(name).unwrap().build)(&hyper).unwrap()
    };
    // In another network or width, classifiers are not reinitialised, since not only their classes differ.
    let (problem, _) = mismatch(&network("resnet34", fixture.width), WeightsPurpose::Training);
    let lines: Vec<&str> = problem.lines().collect();
    assert_eq!(lines[0], "resnet18_narrow.pth: 100 of the 182 tensors of network `resnet34` fit");
    assert_eq!(lines.len(), 1 + 80);
    assert!(lines.iter().all(|line| !line.contains("`fc.")), "{problem}");
    let (problem, _) = mismatch(&network("resnet18", 8), WeightsPurpose::Training);
    assert!(problem.contains("`fc.weight` is [10, 32] in the file, but [7, 64] in the network"), "{problem}");
    let (problem, hint) = mismatch(&network("alexnet", 4), WeightsPurpose::Training);
    assert!(problem.contains("\n`features.0.weight` [4, 3, 11, 11] is not in the file"), "{problem}");
    assert!(problem.contains("\n`layer4.1.bn2.running_var` [32] is not in the network"), "{problem}");
    assert_eq!(hint, "these are weights of another network; choose it with model.name");
}

#[test]
fn suggests_a_tensor_for_a_misspelt_one() {
    let fixture = load();
    let mut graph = graph(&fixture, fixture.classes);
    graph.parameters[0].name = "conv_1.weight".to_owned();
    let (problem, hint) = mismatch(&graph, WeightsPurpose::Training);
    assert_eq!(
        problem,
        "resnet18_narrow.pth: 101 of the 102 tensors of network `resnet18` fit\n\
         `conv_1.weight` [4, 3, 7, 7] is not in the file; it has `conv1.weight`, of the same shape\n\
         `conv1.weight` [4, 3, 7, 7] is not in the network; did you mean `conv_1.weight`?"
    );
    assert_eq!(hint, "rename the tensors in the file, or choose the network they belong to with model.name");
}

fn write(path: &Path, tensors: &[Tensor]) {
    let tensors: Vec<_> = tensors.iter().map(Tensor::as_ref).collect();
    let mut out = std::fs::File::create(path).unwrap();
    stratus_weights::write_safetensors(&mut out, &tensors, &BTreeMap::new()).unwrap();
}

#[test]
fn reinitialises_auxiliary_classifiers_with_the_main_one() {
    let network = |classes| {
        let hyper = ModelConfig { input: [3, 64, 64], classes, width: Some(4) };
        (zoo::find("googlenet").unwrap().build)(&hyper).unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("googlenet.safetensors");
    write(&path, &stratus_train::weights::initial_tensors(&network(12), 1).unwrap());
    let weights = Pretrained::open(&path, &network(5), WeightsPurpose::Training, &mut |_| ()).unwrap();
    let expected =
        format!("fc, aux1.fc2, aux2.fc2 are reinitialised: {} has 12 classes, the network 5", path.display());
    assert_eq!(weights.reinitialised_layers(), Some(expected.as_str()));
}

#[test]
fn inference_needs_no_auxiliary_classifiers() {
    let hyper = ModelConfig { input: [3, 64, 64], classes: 5, width: Some(4) };
    let graph = (zoo::find("googlenet").unwrap().build)(&hyper).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("googlenet.safetensors");
    let mut tensors = stratus_train::weights::initial_tensors(&graph, 1).unwrap();
    let needed = stratus_train::weights::initial_tensors(&graph.for_inference(), 1).unwrap().len();
    let open = |tensors: &[Tensor], purpose| {
        write(&path, tensors);
        Pretrained::open(&path, &graph, purpose, &mut |_| ())
    };
    // Auxiliary classifiers do not count as unused, but any other tensor does.
    assert_eq!(open(&tensors, WeightsPurpose::Inference).unwrap().unused_tensors(), 0);
    tensors.push(Tensor { name: "other.weight".to_owned(), shape: vec![1], values: Values::F32(vec![0.0]) });
    assert_eq!(open(&tensors, WeightsPurpose::Inference).unwrap().unused_tensors(), 1);
    tensors.retain(|tensor| !tensor.name.starts_with("aux") && tensor.name != "other.weight");
    assert_eq!(tensors.len(), needed);
    assert!(
        open(&tensors, WeightsPurpose::Evaluation)
            .unwrap_err()
            .to_string()
            .contains("`aux1.fc2.weight` [5, ")
    );
    let weights = open(&tensors, WeightsPurpose::Inference).unwrap();
    // All values are those of the file, although the seed differs.
    let mut read = weights.tensors(&graph.for_inference(), 2).unwrap();
    read.sort_by(|a, b| a.name.cmp(&b.name));
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(read == tensors);

    tensors.retain(|tensor| tensor.name != "fc.bias");
    let error = open(&tensors, WeightsPurpose::Inference).unwrap_err();
    let begins = format!("{} does not fit googlenet: ", path.display());
    assert!(error.to_string().starts_with(&begins) && !error.is_usage(), "{error}");
    assert!(
        error.to_string().contains("1 missing in the file keep their initial values: fc.bias"),
        "{error}"
    );
}

#[test]
fn rejects_weights_that_are_not_finite() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nan.safetensors");
    let fixture = load();
    let graph = graph(&fixture, fixture.classes);
    let mut tensors = stratus_train::weights::initial_tensors(&graph, 1).unwrap();
    if let Values::F32(values) = &mut tensors[0].values {
        values[5] = f32::NAN;
    }
    write(&path, &tensors);
    let weights = Pretrained::open(&path, &graph, WeightsPurpose::Evaluation, &mut |_| ()).unwrap();
    let error = weights.tensors(&graph, 1).unwrap_err().to_string();
    assert_eq!(error, format!("{}: its `conv1.weight` holds NaN", path.display()));
}
