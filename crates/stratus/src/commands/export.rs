//! `stratus model export`: a network's weights, or the network with them as an ONNX model.

use super::model;
use crate::cli::Globals;
use crate::errors::{Failure, Result};
use crate::output::{Output, bytes, pairs};
use crate::outputs::{Mark, Outputs, Overwrite};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use stratus_graph::Graph;
use stratus_run::{RunDir, atomic};
use stratus_train::experiment::Experiment;
use stratus_train::weights::{CheckpointChoice, Pretrained, WeightsUse, trained_network};
use stratus_weights::{NetworkMetadata, Tensor, TensorRef};

/// Arguments of `stratus model export`.
#[derive(Args, Debug)]
pub struct ExportArguments {
    /// The network, like digits, a run directory, or a layer file, like net.toml
    #[arg(value_name = "NETWORK|RUN|FILE.toml")]
    pub target: String,
    /// Write an ONNX model of the network in inference form
    #[arg(
        long,
        value_name = "FILE.onnx",
        required_unless_present = "safetensors",
        conflicts_with = "safetensors"
    )]
    pub onnx: Option<PathBuf>,
    /// Write the weights as a safetensors file with torchvision's keys
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
    /// Files that are replaced.
    #[command(flatten)]
    pub overwrite: Overwrite,
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
    /// What the model's `metadata_props` say.
    metadata: BTreeMap<String, String>,
}

/// Runs the command.
///
/// # Errors
/// Where there is no such network, weights do not fit it, or the file cannot be written.
pub(super) fn run(arguments: &ExportArguments, globals: &Globals, output: &Output) -> Result {
    let mut outputs = Outputs::new(arguments.overwrite);
    outputs.protect(&arguments.target);
    arguments.weights.iter().for_each(|weights| outputs.protect(weights));
    for (file, what, mark) in [
        (&arguments.onnx, "the model", Mark::Model),
        (&arguments.safetensors, "the file of weights", Mark::Weights),
    ] {
        file.iter().try_for_each(|file| outputs.claim(file, what, mark))?;
    }
    let exported = find(arguments, globals, output)?;
    if let Some(file) = &arguments.safetensors {
        let Exported { graph, weights, metadata, .. } = &exported;
        super::weights::write(file, &graph.name, weights, metadata, output)?;
    }
    match &arguments.onnx {
        Some(file) => write_model(file, exported, output),
        None => Ok(()),
    }
}

/// What is exported.
struct Exported {
    graph: Graph,
    weights: Vec<Tensor>,
    /// Where the weights come from, in words.
    origin: String,
    /// How the network wants its images, and what its classes are called.
    metadata: NetworkMetadata,
}

/// Writes the ONNX model, and says so.
fn write_model(path: &Path, exported: Exported, output: &Output) -> Result {
    let Exported { graph, weights, origin, metadata } = exported;
    let metadata = metadata.entries();
    let weights: Vec<TensorRef<'_>> = weights.iter().map(Tensor::as_ref).collect();
    let graph = graph.for_inference();
    atomic::write_with(path, |out| {
        Ok::<(), Failure>(stratus_onnx::write(out, &graph, &weights, &metadata)?)
    })?;
    let report = Report {
        file: path.display().to_string(),
        network: graph.name.clone(),
        weights: origin,
        operator_set: stratus_onnx::OPSET,
        input: graph.input_shape().0.clone(),
        output: graph.shape(graph.output).0.clone(),
        trained_parameters: graph.trained_parameters(),
        bytes: path.metadata().map_err(Failure::failed)?.len(),
        metadata,
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
            (
                "metadata".to_owned(),
                report.metadata.keys().map(String::as_str).collect::<Vec<&str>>().join(", "),
            ),
        ])
    })
}

/// The network and its weights.
fn find(arguments: &ExportArguments, globals: &Globals, output: &Output) -> Result<Exported> {
    let path = Path::new(&arguments.target);
    if path.is_dir() {
        RunDir::open(path).map_err(Failure::usage)?;
        if !globals.set.is_empty() {
            return Err(Failure::usage("--set cannot be given to a run that is exported")
                .hint("a run keeps its configuration"));
        }
        let choice = arguments.checkpoint.unwrap_or_default();
        let trained = trained_network(path, choice, &mut |text| output.warning(text))?;
        let metadata = trained.metadata;
        return match &arguments.weights {
            Some(file) => {
                let (weights, found) = read(arguments, file, &trained.graph, output)?;
                // Other weights have their own record; where they have none, the run's is taken.
                let input_shape = metadata.input_shape.clone();
                let metadata = match found == NetworkMetadata::default() {
                    true => metadata,
                    false => NetworkMetadata { input_shape, ..found },
                };
                Ok(Exported { graph: trained.graph, weights, origin: file.display().to_string(), metadata })
            }
            None => {
                let checkpoint = trained.checkpoint;
                let average = if checkpoint.averaged.is_some() { ", averaged" } else { "" };
                let iterations = checkpoint.state.iteration;
                let origin = format!("{} after {iterations} iterations{average}", path.display());
                let weights = checkpoint.averaged.unwrap_or(checkpoint.weights);
                Ok(Exported { graph: trained.graph, weights, origin, metadata })
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
        let (weights, found) = read(arguments, file, &graph, output)?;
        let metadata = NetworkMetadata { input_shape: graph.input_shape().0.clone(), ..found };
        return Ok(Exported { graph, weights, origin: file.display().to_string(), metadata });
    }
    let seed = Experiment::default().with_overrides(&globals.set)?.train.seed;
    output.warning(&format!(
        "{} is exported with the initial values of seed {seed}: it was never trained. \
         --weights takes a file of weights",
        graph.name
    ));
    let weights = stratus_train::weights::initial(&graph, seed)?;
    let origin = format!("first values of seed {seed}");
    let metadata =
        NetworkMetadata { input_shape: graph.input_shape().0.clone(), ..NetworkMetadata::default() };
    Ok(Exported { graph, weights, origin, metadata })
}

/// The weights of a file. It must hold every tensor that inference needs; where weights alone are written,
/// every tensor of the network. With what it says of images and classes.
fn read(
    arguments: &ExportArguments,
    path: &Path,
    graph: &Graph,
    output: &Output,
) -> Result<(Vec<Tensor>, NetworkMetadata)> {
    let metadata = |weights: &Pretrained| {
        weights.metadata().unwrap_or_else(|problem| {
            output.warning(&format!(
                "what {} says of images and classes is left out: {problem}",
                path.display()
            ));
            NetworkMetadata::default()
        })
    };
    let warn = &mut |text: &str| output.warning(text);
    if arguments.safetensors.is_some() {
        let weights = Pretrained::open(path, graph, WeightsUse::Measuring, warn)?;
        return Ok((weights.tensors(graph, 0)?, metadata(&weights)));
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
    Ok((weights.tensors(&graph.for_inference(), 0)?, metadata(&weights)))
}
