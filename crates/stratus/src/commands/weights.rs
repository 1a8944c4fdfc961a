//! Weights for other programs, and what `--weights` names.

use super::target::Target;
use crate::cli::Globals;
use crate::errors::{Failure, Result};
use crate::output::{Output, pairs};
use crate::outputs::EXPORTED;
use serde::Serialize;
use std::path::Path;
use stratus_run::checkpoint::{Tensor, TensorRef, weights_sha256, write_safetensors};
use stratus_train::Experiment;
use stratus_train::weights::Recorded;
use stratus_weights::NetworkMetadata;

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

/// Prepares a run's experiment for other weights: keys that these record are left to them, but those of
/// `--set`.
///
/// # Errors
/// If the weights cannot be read.
pub fn replace_record(
    target: &Target,
    experiment: &mut Experiment,
    weights: &str,
    globals: &Globals,
    warn: &mut dyn FnMut(&str),
) -> Result {
    if matches!(target, Target::Run(_)) {
        Recorded::read(Path::new(weights), warn)?.replace(experiment, &globals.set);
    }
    Ok(())
}

/// Writes tensors as a safetensors file with torchvision's keys, and says so. Its metadata hold what the
/// network wants of images, and the names of its classes.
///
/// # Errors
/// Where the file cannot be written.
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
        (EXPORTED[0].to_owned(), network.to_owned()),
        (EXPORTED[1].to_owned(), weights_sha256.clone()),
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
