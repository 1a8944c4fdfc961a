//! The argument of `--weights`, and exported weights.

use super::target::RunOrExperiment;
use crate::errors::{Failure, Result};
use crate::globals::Globals;
use crate::output::{Output, key_value_list};
use crate::outputs::EXPORT_METADATA_KEYS;
use serde::Serialize;
use std::path::Path;
use stratus_experiment::Experiment;
use stratus_run::checkpoint::{Tensor, TensorRef, weights_sha256, write_safetensors};
use stratus_train::weights::RecordedMetadata;
use stratus_weights::NetworkMetadata;

#[derive(Serialize)]
struct Report {
    file: String,
    network: String,
    tensors: usize,
    bytes: u64,
    weights_sha256: String,
}

/// The value of `model.weights` for a path on the command line.
///
/// # Errors
/// If the path is empty.
pub fn weights_setting(path: &str) -> Result<String> {
    match path {
        "" => Err(Failure::usage("--weights is empty")
            .with_hint("name a .safetensors or .pth file, or a run directory")),
        path => Ok(path.to_owned()),
    }
}

/// Prepares a run's experiment for other weights: replaces the keys that the weights record, except keys set
/// with `--set`.
///
/// # Errors
/// If the weights cannot be read.
pub fn replace_record(
    target: &RunOrExperiment,
    experiment: &mut Experiment,
    weights: &str,
    globals: &Globals,
    warn: &mut dyn FnMut(&str),
) -> Result {
    if matches!(target, RunOrExperiment::Run(_)) {
        RecordedMetadata::read(Path::new(weights), warn)?.replace(experiment, &globals.set);
    }
    Ok(())
}

/// Writes tensors to a safetensors file with torchvision's keys, and prints a summary.
///
/// The metadata hold the network's input shape and normalisation, and the names of its classes.
///
/// # Errors
/// If the file cannot be written.
pub fn write(
    file: &Path,
    network: &str,
    tensors: &[Tensor],
    of_network: &NetworkMetadata,
    output: &Output,
) -> Result {
    let tensors: Vec<TensorRef<'_>> = tensors.iter().map(Tensor::as_ref).collect();
    let weights_sha256 = weights_sha256(&tensors).map_err(stratus_run::Error::io("write", file))?;
    let mut metadata = of_network.entries();
    metadata.extend([
        (EXPORT_METADATA_KEYS[0].to_owned(), network.to_owned()),
        (EXPORT_METADATA_KEYS[1].to_owned(), weights_sha256.clone()),
    ]);
    stratus_run::atomic::write_with(file, |out| {
        write_safetensors(out, &tensors, &metadata).map_err(stratus_run::Error::io("write", file))
    })?;
    let report = Report {
        file: file.display().to_string(),
        network: network.to_owned(),
        tensors: tensors.len(),
        bytes: tensors.iter().map(|tensor| tensor.values.bytes() as u64).sum(),
        weights_sha256,
    };
    output.print_wrapped(&report, || {
        key_value_list(&[
            ("file".to_owned(), report.file.clone()),
            ("network".to_owned(), report.network.clone()),
            ("tensors".to_owned(), report.tensors.to_string()),
            ("bytes".to_owned(), report.bytes.to_string()),
            ("weights".to_owned(), report.weights_sha256.clone()),
        ])
    })
}
