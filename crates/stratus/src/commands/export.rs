//! `stratus model export`: writes weights as safetensors, or a network with weights as an ONNX model.

use super::target;
use crate::errors::{Failure, Result};
use crate::globals::Globals;
use crate::output::{Output, key_value_list};
use crate::outputs::{Mark, Outputs, Overwrite};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use stratus_base::text::{bytes, counted};
use stratus_experiment::{Experiment, LossFunction};
use stratus_graph::Graph;
use stratus_graph::ops::Sigmoid;
use stratus_run::{RunDir, atomic};
use stratus_train::weights::{CheckpointChoice, Pretrained, WeightsPurpose, load_trained_network};
use stratus_weights::{NetworkMetadata, Tensor, TensorRef};

/// Arguments of `stratus model export`.
#[derive(Args, Debug)]
pub struct ExportArguments {
    /// Network, like digits, run directory, or layer file, like net.toml
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
    /// Weights to export: a safetensors file or a PyTorch state dict (.pth) [default: those of the run, or
    /// initial weights from train.seed]
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,
    /// Checkpoint to export: an iteration, or `best` (see checkpoint.keep_best) [default: newest valid]
    #[arg(long, value_name = "ITERATION|best", conflicts_with = "weights")]
    pub checkpoint: Option<CheckpointChoice>,
    /// ONNX of a network with labels: append a sigmoid, so that the outputs are probabilities instead of
    /// logits
    #[arg(long, requires = "onnx")]
    pub sigmoid: bool,
    /// Existing output files.
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
    /// The model's `metadata_props`.
    metadata: BTreeMap<String, String>,
}

/// Runs `stratus model export`.
///
/// # Errors
/// If the network is not found, the weights do not fit it, or the file cannot be written.
pub(super) fn run(arguments: &ExportArguments, globals: &Globals, output: &Output) -> Result {
    let mut outputs = Outputs::new(arguments.overwrite);
    outputs.protect(&arguments.target);
    arguments.weights.iter().for_each(|weights| outputs.protect(weights));
    for (file, what, mark) in [
        (&arguments.onnx, "the model", Mark::Model),
        (&arguments.safetensors, "the weights file", Mark::Weights),
    ] {
        file.iter().try_for_each(|file| outputs.claim(file, what, mark))?;
    }
    let exported = find_source(arguments, globals, output)?;
    if let Some(file) = &arguments.safetensors {
        let ExportSource { graph, weights, metadata, .. } = &exported;
        super::weights::write(file, &graph.name, weights, metadata, output)?;
    }
    match &arguments.onnx {
        Some(file) => {
            let exported = if arguments.sigmoid { with_sigmoid(exported)? } else { exported };
            write_model(file, exported, arguments.sigmoid, output)
        }
        None => Ok(()),
    }
}

/// A network and weights to export.
struct ExportSource {
    graph: Graph,
    weights: Vec<Tensor>,
    /// The origin of the weights, as text.
    origin: String,
    /// Input shape, normalisation and class names.
    metadata: NetworkMetadata,
}

/// The network of an export with a sigmoid after its logits.
///
/// # Errors
/// If its outputs are not labels, or foreground and background.
fn with_sigmoid(exported: ExportSource) -> Result<ExportSource> {
    let loss = exported.metadata.loss.as_deref().and_then(LossFunction::from_name);
    if loss != Some(LossFunction::BinaryCrossEntropy) {
        let (name, loss) = (&exported.graph.name, loss.unwrap_or(LossFunction::CrossEntropy));
        return Err(Failure::usage(format!(
            "--sigmoid: the outputs of {name}, which was trained with {loss}, are not labels"
        ))
        .with_hint("remove --sigmoid"));
    }
    let graph =
        exported.graph.for_inference().followed_by("sigmoid", Sigmoid.into()).map_err(Failure::failed)?;
    Ok(ExportSource { graph, ..exported })
}

/// Writes the ONNX model, and prints a summary.
fn write_model(path: &Path, exported: ExportSource, has_sigmoid: bool, output: &Output) -> Result {
    let ExportSource { graph, weights, origin, metadata } = exported;
    let mut metadata = metadata.entries();
    if has_sigmoid {
        metadata.insert("output".to_owned(), "probabilities".to_owned());
    }
    let weights: Vec<TensorRef<'_>> = weights.iter().map(Tensor::as_ref).collect();
    let graph = graph.for_inference();
    atomic::write_with(path, |out| {
        Ok::<(), Failure>(stratus_onnx::write(out, &graph, &weights, &metadata)?)
    })?;
    let report = Report {
        file: path.display().to_string(),
        network: graph.name.clone(),
        weights: origin,
        operator_set: stratus_onnx::operator_set(&graph),
        input: graph.input_shape().0.clone(),
        output: graph.shape(graph.output).0.clone(),
        trained_parameters: graph.trained_parameters(),
        bytes: path.metadata().map_err(Failure::failed)?.len(),
        metadata,
    };
    output.print_wrapped(&report, || {
        let batch = |shape: &[usize]| format!("batch x {}", stratus_graph::Shape(shape.to_vec()));
        key_value_list(&[
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

/// Finds the network and its weights.
fn find_source(arguments: &ExportArguments, globals: &Globals, output: &Output) -> Result<ExportSource> {
    let path = Path::new(&arguments.target);
    if path.is_dir() {
        RunDir::open(path).map_err(Failure::usage)?;
        if !globals.set.is_empty() {
            return Err(Failure::usage("--set cannot be used with a run directory")
                .with_hint("a run keeps its configuration"));
        }
        let choice = arguments.checkpoint.unwrap_or_default();
        let trained = load_trained_network(path, choice, &mut |text| output.warning(text))?;
        let metadata = trained.metadata;
        return match &arguments.weights {
            Some(file) => {
                let (weights, found) = read_weights(arguments, file, &trained.graph, output)?;
                // The metadata of the other weights, if any, take precedence over those of the run.
                let input_shape = metadata.input_shape.clone();
                let metadata = match found == NetworkMetadata::default() {
                    true => metadata,
                    false => NetworkMetadata { input_shape, ..found },
                };
                Ok(ExportSource {
                    graph: trained.graph,
                    weights,
                    origin: file.display().to_string(),
                    metadata,
                })
            }
            None => {
                let checkpoint = trained.checkpoint;
                let average = if checkpoint.averaged.is_some() { ", averaged" } else { "" };
                let iterations = checkpoint.state.iteration;
                let origin =
                    format!("{} after {}{average}", path.display(), counted(iterations, "iteration"));
                let weights = checkpoint.averaged.unwrap_or(checkpoint.weights);
                Ok(ExportSource { graph: trained.graph, weights, origin, metadata })
            }
        };
    }
    if arguments.checkpoint.is_some() {
        return Err(Failure::usage(format!(
            "--checkpoint needs a run directory, and {} is not one",
            arguments.target
        )));
    }
    let graph = target::find_network(&arguments.target, globals)?;
    if let Some(file) = &arguments.weights {
        let (weights, found) = read_weights(arguments, file, &graph, output)?;
        let metadata = NetworkMetadata { input_shape: graph.input_shape().0.clone(), ..found };
        return Ok(ExportSource { graph, weights, origin: file.display().to_string(), metadata });
    }
    let seed = Experiment::default().with_overrides(&globals.set)?.train.seed;
    output.warning(&format!(
        "exporting {} untrained (initial weights, seed {seed}); use --weights to export trained ones",
        graph.name
    ));
    let weights = stratus_train::weights::initial_tensors(&graph, seed)?;
    let origin = format!("initial weights, seed {seed}");
    let metadata =
        NetworkMetadata { input_shape: graph.input_shape().0.clone(), ..NetworkMetadata::default() };
    Ok(ExportSource { graph, weights, origin, metadata })
}

/// Reads the weights and metadata of a file. It must have every tensor that inference needs, and for an
/// export of weights every tensor of the network.
fn read_weights(
    arguments: &ExportArguments,
    path: &Path,
    graph: &Graph,
    output: &Output,
) -> Result<(Vec<Tensor>, NetworkMetadata)> {
    let metadata = |weights: &Pretrained| {
        weights.metadata().unwrap_or_else(|problem| {
            output.warning(&format!("ignoring the metadata of {}: {problem}", path.display()));
            NetworkMetadata::default()
        })
    };
    let warn = &mut |text: &str| output.warning(text);
    if arguments.safetensors.is_some() {
        let weights = Pretrained::open(path, graph, WeightsPurpose::Evaluation, warn)?;
        return Ok((weights.tensors(graph, 0)?, metadata(&weights)));
    }
    let weights = Pretrained::open(path, graph, WeightsPurpose::Inference, warn)?;
    let skipped = weights.unused_tensors();
    if skipped > 0 {
        output.message(&format!(
            "skipped {skipped} tensors of {} that {} does not have",
            path.display(),
            graph.name
        ));
    }
    Ok((weights.tensors(&graph.for_inference(), 0)?, metadata(&weights)))
}
