//! `stratus model export --safetensors`: weights for other programs, and what `--weights` names.

use super::target::Target;
use crate::cli::Globals;
use crate::errors::{Failure, Result};
use crate::output::{Output, pairs};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use stratus_run::RunDir;
use stratus_run::checkpoint::{Checkpoints, Tensor, TensorRef, weights_sha256, write_safetensors};
use stratus_train::experiment::Experiment;
use stratus_train::network::Network;
use stratus_train::weights::{self, Classifier, Pretrained};

/// Arguments of `stratus model export`.
#[derive(Args, Debug)]
pub struct ExportArguments {
    /// A run directory, whose newest good checkpoint is taken, or a network, like digits or net.toml
    #[arg(value_name = "RUN|NETWORK")]
    pub target: String,
    /// Write a safetensors file with torchvision's keys
    #[arg(long, value_name = "FILE")]
    pub safetensors: PathBuf,
    /// The checkpoint of the run after this many iterations
    #[arg(long, value_name = "ITERATION", conflicts_with = "weights")]
    pub checkpoint: Option<u64>,
    /// The network's weights: a safetensors file, a PyTorch state dict (.pth), or a run; without it first values
    #[arg(long, value_name = "FILE|RUN")]
    pub weights: Option<String>,
}

#[derive(Serialize)]
struct Report {
    file: String,
    network: String,
    tensors: usize,
    bytes: u64,
    weights_sha256: String,
}

/// The value that `model.weights` gets from a path on the command line.
///
/// # Errors
/// Where it is empty.
pub fn setting(path: &str) -> Result<String> {
    match path {
        "" => Err(Failure::usage("--weights names no file")
            .hint("give a .safetensors or .pth file, or a run directory")),
        path => Ok(path.to_owned()),
    }
}

/// Runs `stratus model export`.
///
/// # Errors
/// Where there is no such run or network, its weights cannot be read, or the file cannot be written.
pub fn export(arguments: &ExportArguments, globals: &Globals, output: &Output) -> Result {
    let (network, tensors) = if RunDir::is_run(Path::new(&arguments.target)) {
        of_run(arguments, globals)?
    } else {
        of_network(arguments, globals, output)?
    };
    let tensors: Vec<TensorRef<'_>> = tensors.iter().map(Tensor::as_ref).collect();
    let weights_sha256 = weights_sha256(&tensors);
    let metadata = BTreeMap::from([
        ("network".to_owned(), network.clone()),
        ("weights_sha256".to_owned(), weights_sha256.clone()),
    ]);
    let file = &arguments.safetensors;
    stratus_run::atomic::write_with(file, |out| write_safetensors(out, &tensors, &metadata))?;
    let report = Report {
        file: file.display().to_string(),
        network,
        tensors: tensors.len(),
        bytes: tensors.iter().map(|tensor| tensor.values.bytes() as u64).sum(),
        weights_sha256,
    };
    output.result(&report, || {
        pairs(&[
            ("file".to_owned(), report.file.clone()),
            ("network".to_owned(), report.network.clone()),
            ("tensors".to_owned(), report.tensors.to_string()),
            ("bytes".to_owned(), report.bytes.to_string()),
            ("weights".to_owned(), report.weights_sha256.clone()),
        ])
    })
}

/// A run's network and the tensors of its checkpoint.
fn of_run(arguments: &ExportArguments, globals: &Globals) -> Result<(String, Vec<Tensor>)> {
    let path = Path::new(&arguments.target);
    if arguments.weights.is_some() {
        return Err(Failure::usage("--weights cannot be given to a run: its own are exported")
            .hint("name the network instead of the run"));
    }
    let run = RunDir::open(path)?;
    let experiment = Target::Run(path.to_owned()).experiment(globals)?;
    let network = match experiment.layer_file() {
        Some(_) => Network::as_published(&experiment)?.graph.name,
        None => experiment.model.name,
    };
    let checkpoint = match arguments.checkpoint {
        Some(iteration) => Checkpoints::new(run.checkpoints()).load(iteration)?,
        None => weights::newest(path)?,
    };
    Ok((network, checkpoint.weights))
}

/// A network's name and its tensors: those of a file, or first values.
fn of_network(
    arguments: &ExportArguments,
    globals: &Globals,
    output: &Output,
) -> Result<(String, Vec<Tensor>)> {
    if arguments.checkpoint.is_some() {
        return Err(Failure::usage(format!(
            "{} is not a run directory: it has no checkpoints",
            arguments.target
        ))
        .hint("leave --checkpoint out, or name a directory like runs/digits/1"));
    }
    let mut experiment = Experiment::default().with_overrides(&globals.set)?;
    experiment.model.name.clone_from(&arguments.target);
    if let Some(weights) = &arguments.weights {
        experiment.model.weights = Some(setting(weights)?);
    }
    let graph = Network::as_published(&experiment)?.graph;
    let tensors = match &experiment.model.weights {
        Some(path) => Pretrained::open(Path::new(path), &graph, Classifier::MustFit)?
            .tensors(&graph, experiment.train.seed)?,
        None => {
            output.message(&format!("first values of seed {}: nothing is trained", experiment.train.seed));
            weights::initial(&graph, experiment.train.seed)
        }
    };
    Ok((graph.name, tensors))
}
