//! `stratus model export`: a network's weights, or the network with them as an ONNX model.

use super::model;
use crate::cli::Globals;
use crate::errors::{Failure, Result};
use crate::output::{Output, bytes, pairs};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use stratus_graph::Graph;
use stratus_run::{RunDir, atomic};
use stratus_train::experiment::Experiment;
use stratus_train::weights::{CheckpointChoice, Pretrained, WeightsUse, trained_network};
use stratus_weights::{Tensor, TensorRef};

/// Arguments of `stratus model export`.
#[derive(Args, Debug)]
pub struct ExportArguments {
    /// The network, like digits, a run directory, or a layer file, like net.toml
    #[arg(value_name = "NETWORK|RUN|FILE.toml")]
    pub target: String,
    /// Write an ONNX model of the network in inference form; a file of that name is replaced
    #[arg(
        long,
        value_name = "FILE.onnx",
        required_unless_present = "safetensors",
        conflicts_with = "safetensors"
    )]
    pub onnx: Option<PathBuf>,
    /// Write the weights as a safetensors file with torchvision's keys; a file of that name is replaced
    #[arg(long, value_name = "FILE.safetensors")]
    pub safetensors: Option<PathBuf>,
    /// Weights to export: safetensors or a PyTorch state dict; default: the run's own, else the initial
    /// values of train.seed
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,
    /// The checkpoint of the run after this many iterations, or the best by checkpoint.keep_best;
    /// without it the newest good one
    #[arg(long, value_name = "ITERATION|best", conflicts_with = "weights")]
    pub checkpoint: Option<CheckpointChoice>,
}

#[derive(Serialize)]
struct Report {
    file: String,
    network: String,
    weights: String,
    operator_set: i64,
    input: Vec<usize>,
    output: Vec<usize>,
    trained_parameters: usize,
    bytes: u64,
}

/// Runs the command.
///
/// # Errors
/// Where there is no such network, weights do not fit it, or the file cannot be written.
pub(super) fn run(arguments: &ExportArguments, globals: &Globals, output: &Output) -> Result {
    let files = arguments.onnx.iter().chain(&arguments.safetensors);
    if let Some(folder) = files.into_iter().find(|file| file.is_dir()) {
        return Err(Failure::usage(format!("{} is a folder; name a file in it", folder.display())));
    }
    let (graph, weights, origin) = find(arguments, globals, output)?;
    if let Some(file) = &arguments.safetensors {
        super::weights::write(file, &graph.name, &weights, output)?;
    }
    match &arguments.onnx {
        Some(file) => write_model(file, &graph, &weights, origin, output),
        None => Ok(()),
    }
}

/// Writes the ONNX model, and says so.
fn write_model(path: &Path, graph: &Graph, weights: &[Tensor], origin: String, output: &Output) -> Result {
    let weights: Vec<TensorRef<'_>> = weights.iter().map(Tensor::as_ref).collect();
    let graph = graph.for_inference();
    atomic::write_with(path, |out| Ok::<(), Failure>(stratus_onnx::write(out, &graph, &weights)?))?;
    let report = Report {
        file: path.display().to_string(),
        network: graph.name.clone(),
        weights: origin,
        operator_set: stratus_onnx::OPSET,
        input: graph.input_shape().0.clone(),
        output: graph.shape(graph.output).0.clone(),
        trained_parameters: graph.trained_parameters(),
        bytes: path.metadata().map_err(Failure::failed)?.len(),
    };
    output.result(&report, || {
        let batch = |shape: &[usize]| format!("batch x {}", stratus_graph::Shape(shape.to_vec()));
        pairs(&[
            ("file".to_owned(), format!("{}, {}", report.file, bytes(report.bytes))),
            (
                "network".to_owned(),
                format!("{}, {} trained parameters", report.network, report.trained_parameters),
            ),
            ("weights".to_owned(), report.weights.clone()),
            ("operator set".to_owned(), report.operator_set.to_string()),
            (stratus_onnx::INPUT.to_owned(), batch(&report.input)),
            (stratus_onnx::OUTPUT.to_owned(), batch(&report.output)),
        ])
    })
}

/// The network, its weights, and where they come from in words.
fn find(
    arguments: &ExportArguments,
    globals: &Globals,
    output: &Output,
) -> Result<(Graph, Vec<Tensor>, String)> {
    let path = Path::new(&arguments.target);
    if path.is_dir() {
        RunDir::open(path).map_err(Failure::usage)?;
        if !globals.set.is_empty() {
            return Err(Failure::usage("--set cannot be given to a run that is exported")
                .hint("a run keeps its configuration"));
        }
        let choice = arguments.checkpoint.unwrap_or_default();
        let trained = trained_network(path, choice, &mut |text| output.warning(text))?;
        return match &arguments.weights {
            Some(file) => {
                let weights = read(arguments, file, &trained.graph, output)?;
                Ok((trained.graph, weights, file.display().to_string()))
            }
            None => {
                let checkpoint = trained.checkpoint;
                let average = if checkpoint.averaged.is_some() { ", averaged" } else { "" };
                let iterations = checkpoint.state.iteration;
                let origin = format!("{} after {iterations} iterations{average}", path.display());
                Ok((trained.graph, checkpoint.averaged.unwrap_or(checkpoint.weights), origin))
            }
        };
    }
    if arguments.checkpoint.is_some() {
        return Err(Failure::usage(format!(
            "--checkpoint is of runs, and {} is no run directory",
            arguments.target
        )));
    }
    let graph = model::find(&arguments.target, globals)?;
    if let Some(file) = &arguments.weights {
        let weights = read(arguments, file, &graph, output)?;
        return Ok((graph, weights, file.display().to_string()));
    }
    let seed = Experiment::default().with_overrides(&globals.set)?.train.seed;
    output.warning(&format!(
        "{} is exported with the initial values of seed {seed}: it was never trained. \
         --weights takes a file of weights",
        graph.name
    ));
    let weights = stratus_train::weights::initial(&graph, seed)?;
    Ok((graph, weights, format!("first values of seed {seed}")))
}

/// The weights of a file. It must hold every tensor that inference needs; where weights alone are written,
/// every tensor of the network.
fn read(arguments: &ExportArguments, path: &Path, graph: &Graph, output: &Output) -> Result<Vec<Tensor>> {
    let warn = &mut |text: &str| output.warning(text);
    if arguments.safetensors.is_some() {
        return Ok(Pretrained::open(path, graph, WeightsUse::Measuring, warn)?.tensors(graph, 0)?);
    }
    let weights = Pretrained::open(path, graph, WeightsUse::Inference, warn)?;
    let left_out = weights.left_out();
    if left_out > 0 {
        output.message(&format!(
            "{left_out} tensors of {} are not {}'s and left out",
            path.display(),
            graph.name
        ));
    }
    Ok(weights.tensors(&graph.for_inference(), 0)?)
}
