//! Imports every ONNX model of a folder and exports it again to `NAME.again`, with the notes of the import in
//! `NAME.notes`. Errors are written to `NAME.refused`, panics to `NAME.panicked`.
//! `scripts/check-onnx-operators.py` compares the outputs of both models.
//!
//!     cargo run -p stratus-onnx --example reimport FOLDER

#![allow(clippy::unwrap_used, reason = "an example fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use stratus_onnx::{ImportOptions, Model, write};
use stratus_weights::{Tensor, TensorRef};

fn main() {
    let folder = std::env::args().nth(1).expect("the folder of models");
    let mut models: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    models.retain(|path| path.extension().is_some_and(|extension| extension == "onnx"));
    models.sort();
    for model in models {
        let to = |extension: &str, bytes: &[u8]| fs::write(model.with_extension(extension), bytes).unwrap();
        match catch_unwind(|| reimport(&model)) {
            Ok(Ok((bytes, notes))) => {
                to("again", &bytes);
                to("notes", notes.join("\n").as_bytes());
            }
            Ok(Err(error)) => to("refused", error.as_bytes()),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map_or("a panic", String::as_str);
                to("panicked", text.as_bytes());
            }
        }
    }
}

/// Imports a model and exports it again. Returns the bytes and the notes.
fn reimport(model: &Path) -> Result<(Vec<u8>, Vec<String>), String> {
    let model = Model::open(model).map_err(|error| error.to_string())?;
    let imported = model.import(&ImportOptions::default()).map_err(|error| error.to_string())?;
    let weights: Vec<TensorRef<'_>> = imported.weights.iter().map(Tensor::as_ref).collect();
    let mut bytes = Vec::new();
    write(&mut bytes, &imported.graph, &weights, &BTreeMap::new()).map_err(|error| error.to_string())?;
    Ok((bytes, imported.notes))
}
