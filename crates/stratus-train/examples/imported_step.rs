//! Imports an ONNX model and computes the logits of a batch in inference, and the loss and all gradients of
//! one training step. Dropout and stochastic depth are disabled. `scripts/check-imported.sh` compares the
//! results with onnxruntime and PyTorch.
//!
//!     cargo run -p stratus-train --example imported_step MODEL.onnx BATCH.safetensors OUT.safetensors
//!
//! BATCH has `images`, f32 `[N, C, H, W]`, and `labels`, f32 `[N]`. OUT contains `logits`, `loss`, and the
//! gradients by the names of their parameters.

#![allow(clippy::unwrap_used, reason = "an example may panic on I/O errors")]

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::fuse::fuse;
use stratus_engine::passes::lower::lower;
use stratus_engine::plan::{Persistent, Plan};
use stratus_engine::program::Mode;
use stratus_engine::session::IterationScalars;
use stratus_engine::{Backend, Choices, Clock, Phase, Precision, Program, Role, Session};
use stratus_graph::{Graph, Op};
use stratus_onednn::OneDnn;
use stratus_onnx::{ImportOptions, Model};
use stratus_weights::{Tensor, TensorRef, Values, WeightsFile, write_safetensors};

/// Images with a label each.
struct Batch {
    shape: [usize; 4],
    images: Vec<f32>,
    labels: Vec<i32>,
}

fn main() {
    let [model, batch, out] = std::env::args().skip(1).collect::<Vec<_>>().try_into().expect("three files");
    let imported = Model::open(Path::new(&model)).unwrap().import(&ImportOptions::default());
    let imported = imported.unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(1);
    });
    let mut graph = imported.graph;
    for node in &mut graph.nodes {
        match &mut node.op {
            Op::Dropout(dropout) => dropout.p = 0.0,
            Op::Dropout2d(dropout) => dropout.p = 0.0,
            Op::StochasticDepth(depth) => depth.p = 0.0,
            _ => {}
        }
    }
    let batch = read(Path::new(&batch));
    let backend = OneDnn::load(2).unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(3);
    });
    let mut results = vec![Tensor {
        name: "logits".to_owned(),
        shape: vec![batch.shape[0], graph.shape(graph.output).elements()],
        values: Values::F32(logits(&backend, &graph, &imported.weights, &batch)),
    }];
    results.extend(step(&backend, &graph, &imported.weights, &batch));
    let tensors: Vec<TensorRef<'_>> = results.iter().map(Tensor::as_ref).collect();
    write_safetensors(&mut File::create(out).unwrap(), &tensors, &BTreeMap::new()).unwrap();
}

fn read(path: &Path) -> Batch {
    let file = WeightsFile::open(path).unwrap();
    let [images, labels] = ["images", "labels"].map(|name| file.get(name).unwrap());
    Batch {
        shape: images.shape.clone().try_into().unwrap(),
        images: file.read(images).unwrap(),
        labels: file.read(labels).unwrap().into_iter().map(|label| label as i32).collect(),
    }
}

/// A session of a program with the weights of a file.
fn session(backend: &dyn Backend, program: &Program, weights: &[Tensor]) -> Session {
    let mut persistent = Persistent::default();
    let plan = Plan::prepare(backend, program, Choices::default(), false, &mut persistent).unwrap();
    let mut session = Session::on_backend(backend, vec![plan], persistent).unwrap();
    for tensor in weights {
        let Values::F32(values) = &tensor.values else { panic!("{} is not f32", tensor.name) };
        if program.find(&tensor.name).is_some() {
            session.write(&tensor.name, values).unwrap();
        }
    }
    session
}

/// Runs a session's program on a batch.
fn run(session: &mut Session, batch: &Batch) {
    let mut inputs = session.inputs(0).unwrap();
    let place = session.plan(0).external(0).unwrap();
    let images: &mut [f32] = bytemuck::cast_slice_mut(inputs.images.as_mut_slice());
    place.layout.for_each(&batch.shape, |to, from| images[to] = batch.images[from]);
    inputs.labels.as_mut_slice().copy_from_slice(bytemuck::cast_slice(&batch.labels));
    let mut clock = Clock::disabled(session.slots(0));
    session.run(0, inputs.images.as_mut_slice(), inputs.labels.as_mut_slice(), &mut clock, 0).unwrap();
}

/// The logits of a batch in inference.
fn logits(backend: &dyn Backend, graph: &Graph, weights: &[Tensor], batch: &Batch) -> Vec<f32> {
    let mut program = fuse(&lower(graph, Mode::Evaluate, Precision::F32, batch.shape[0]).unwrap()).unwrap();
    let loss = program.steps.iter().find(|step| step.phase == Phase::Loss).unwrap();
    let logits = loss.inputs[0];
    // A persistent value can be read after the run.
    program.values[logits.0].role = Role::Buffer;
    let mut session = session(backend, &program, weights);
    run(&mut session, batch);
    session.read(&program.value(logits).name).unwrap()
}

/// The loss of a training step, and the gradients of all parameters.
fn step(backend: &dyn Backend, graph: &Graph, weights: &[Tensor], batch: &Batch) -> Vec<Tensor> {
    let forward = fuse(&lower(graph, Mode::Train, Precision::F32, batch.shape[0]).unwrap()).unwrap();
    let mut program = differentiate(&forward).unwrap();
    let mut gradients = Vec::new();
    for parameter in &graph.parameters {
        if let Some(gradient) = program.gradient_of(program.find(&parameter.name).unwrap()) {
            program.values[gradient.0].role = Role::Buffer;
            gradients.push((parameter, gradient));
        }
    }
    let mut session = session(backend, &program, weights);
    session.set_iteration_scalars(IterationScalars { learning_rate: 0.0, iteration: 0, seed: 0 }).unwrap();
    run(&mut session, batch);
    let loss = vec![session.metrics().loss as f32];
    let tensor = |name: &str, shape: Vec<usize>, values| {
        let values = Values::F32(values);
        Tensor { name: name.to_owned(), shape, values }
    };
    let mut results = vec![tensor("loss", vec![1], loss)];
    for (parameter, gradient) in gradients {
        let values = session.read(&program.value(gradient).name).unwrap();
        results.push(tensor(&parameter.name, parameter.shape.clone(), values));
    }
    results
}
