//! Exports random networks (`stratus_conformance::networks`) with their outputs, for a comparison with
//! onnxruntime: `scripts/check-random-networks.py` runs it and sends commands on standard input, a line each.
//!
//!     cargo run -p stratus-onnx --example random_networks FOLDER
//!
//! | command | effect |
//! |---|---|
//! | `write SEED` | writes the network `SEED` |
//! | `shrink SEED` | writes a smaller network after each answer, `yes` or `no`, until none has the problem |
//!
//! The replies are a word each: `written`, `sensitive` (outputs depend too much on rounding), `failed` with
//! the problem, `refused` (ONNX lacks a layer), `smallest`. `network.onnx` is then the model, `network.toml`
//! the layer file, and `network.expected` has images, outputs and their tolerance. Each model is also
//! imported again, and the imported network evaluated.

#![allow(clippy::unwrap_used, reason = "an example fails by panicking")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, StdinLock, stdin};
use std::path::Path;
use stratus_conformance::networks::{
    Data, Evaluation, Network, evaluate_reference, evaluate_with, output_distance, random_network, shrink,
};
use stratus_graph::{Graph, Shape};
use stratus_onnx::{ImportOptions, Model, WriteError, write};
use stratus_weights::{Tensor, TensorRef, Values, write_safetensors};

fn main() {
    let folder = std::env::args().nth(1).expect("the folder to write to");
    let folder = Path::new(&folder);
    fs::create_dir_all(folder).unwrap();
    let mut commands = stdin().lock();
    while let Some(line) = next_line(&mut commands) {
        let (command, seed) = line.split_once(' ').expect("a command and a seed");
        let network = random_network(seed.parse().unwrap());
        match command {
            "write" => println!("{}", reply(folder, &network)),
            "shrink" => {
                let small = shrink(&network, |smaller| {
                    let reply = reply(folder, smaller);
                    println!("{reply}");
                    next_line(&mut commands).as_deref() == Some("yes")
                });
                reply_to_smallest(folder, &small);
            }
            _ => panic!("unknown command `{command}`"),
        }
    }
}

fn next_line(commands: &mut StdinLock<'_>) -> Option<String> {
    let mut line = String::new();
    commands.read_line(&mut line).unwrap();
    Some(line.trim().to_owned()).filter(|line| !line.is_empty())
}

fn reply_to_smallest(folder: &Path, network: &Network) {
    let _ = reply(folder, network);
    println!("smallest");
}

/// Writes a network and returns the reply.
fn reply(folder: &Path, network: &Network) -> String {
    fs::write(folder.join("network.toml"), network.text()).unwrap();
    let graph = match network.graph() {
        Ok(graph) => graph,
        Err(error) => return format!("failed the layer file is invalid: {error}"),
    };
    match evaluate_reference(&graph, &network.settings) {
        Ok(None) => "sensitive".to_owned(),
        Ok(Some(evaluation)) => match export(folder, network, &graph, &evaluation) {
            Ok(()) => {
                let ops: Vec<&str> = network.operations().collect();
                format!("written {}", ops.join(" "))
            }
            Err(Problem::Refused) => "refused".to_owned(),
            Err(Problem::Failed(problem)) => format!("failed {}", problem.replace('\n', " ")),
        },
        Err(error) => format!("failed the reference: {error}"),
    }
}

enum Problem {
    /// A layer cannot be expressed in ONNX.
    Refused,
    Failed(String),
}

/// Writes the model and the expected outputs, and imports the model again.
fn export(folder: &Path, network: &Network, graph: &Graph, evaluation: &Evaluation) -> Result<(), Problem> {
    let Evaluation { data, outputs, tolerance } = evaluation;
    let f32s = |values: &[f64]| values.iter().map(|&value| value as f32).collect::<Vec<f32>>();
    let weights: Vec<Tensor> = graph
        .parameters
        .iter()
        .zip(&data.parameters)
        .map(|(parameter, values)| Tensor {
            name: parameter.name.clone(),
            shape: parameter.shape.clone(),
            values: Values::F32(f32s(values)),
        })
        .collect();
    let refs: Vec<TensorRef<'_>> = weights.iter().map(Tensor::as_ref).collect();
    let mut model = Vec::new();
    write(&mut model, graph, &refs, &BTreeMap::new()).map_err(|error| match error {
        WriteError::UnsupportedLayers(_) => Problem::Refused,
        error => Problem::Failed(format!("the export: {error}")),
    })?;
    fs::write(folder.join("network.onnx"), &model).unwrap();
    let batch = network.settings.batch;
    let batched = |sample: &Shape| [batch].iter().chain(&sample.0).copied().collect::<Vec<usize>>();
    let (input, output) = (batched(graph.input_shape()), batched(graph.shape(graph.output)));
    let (images, expected) = (f32s(&data.images), f32s(outputs));
    let tolerance = [*tolerance as f32];
    let tensors = [
        TensorRef::f32("input", &input, &images),
        TensorRef::f32("output", &output, &expected),
        TensorRef::f32("tolerance", &[1], &tolerance),
    ];
    let mut file = File::create(folder.join("network.expected")).unwrap();
    write_safetensors(&mut file, &tensors, &BTreeMap::new()).unwrap();
    reimport(model, network, evaluation).map_err(|problem| Problem::Failed(format!("the import: {problem}")))
}

/// Imports the model and compares the outputs of the imported network.
fn reimport(model: Vec<u8>, network: &Network, evaluation: &Evaluation) -> Result<(), String> {
    let model = Model::from_bytes("network.onnx", model);
    let imported = model.import(&ImportOptions::default()).map_err(|error| error.to_string())?;
    let values = |parameter: &stratus_graph::Parameter| {
        let weights = imported.weights.iter().find(|tensor| tensor.name == parameter.name);
        match weights.map(|tensor| &tensor.values) {
            Some(Values::F32(values)) => Ok(values.iter().copied().map(f64::from).collect()),
            _ => Err(format!("`{}` has no values", parameter.name)),
        }
    };
    let parameters = imported.graph.parameters.iter().map(values).collect::<Result<_, String>>()?;
    let data = Data { parameters, ..evaluation.data.clone() };
    let outputs =
        evaluate_with(&imported.graph, &network.settings, &data).map_err(|error| error.to_string())?;
    let distance = output_distance(&evaluation.outputs, &outputs);
    if distance <= evaluation.tolerance {
        return Ok(());
    }
    Err(format!("outputs differ by {distance:.2e} of the largest, allowed {:.2e}", evaluation.tolerance))
}
