//! Weights for other programs, and what `--weights` names.

use crate::errors::{Failure, Result};
use crate::output::{Output, pairs};
use serde::Serialize;
use std::path::Path;
use stratus_run::checkpoint::{Tensor, TensorRef, weights_sha256, write_safetensors};
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
        ("network".to_owned(), network.to_owned()),
        ("weights_sha256".to_owned(), weights_sha256.clone()),
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
