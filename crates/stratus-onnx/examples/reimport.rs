//! Imports every ONNX model of a folder and exports it again beside it: `NAME.again`, with what the import
//! noted in `NAME.notes`; or writes why it was refused to `NAME.refused`, or how it panicked to
//! `NAME.panicked`. `scripts/check-onnx-operators.py` compares what both compute.
//!
//!     cargo run -p stratus-onnx --example reimport FOLDER

#![allow(clippy::unwrap_used, reason = "what cannot be written ends it")]

use std::collections::BTreeMap;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use stratus_onnx::{Model, Options, write};
use stratus_weights::{Tensor, TensorRef};

fn main() {
    let folder = std::env::args().nth(1).expect("the folder of models");
    let mut models: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    models.retain(|path| path.extension().is_some_and(|ending| ending == "onnx"));
    models.sort();
    for model in models {
        let to = |ending: &str, bytes: &[u8]| fs::write(model.with_extension(ending), bytes).unwrap();
        match catch_unwind(|| again(&model)) {
            Ok(Ok((bytes, notes))) => {
                to("again", &bytes);
                to("notes", notes.join("\n").as_bytes());
            }
            Ok(Err(refusal)) => to("refused", refusal.as_bytes()),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map_or("a panic", String::as_str);
                to("panicked", text.as_bytes());
            }
        }
    }
}

/// The model once more, and what was noted.
fn again(model: &Path) -> Result<(Vec<u8>, Vec<String>), String> {
    let model = Model::open(model).map_err(|error| error.to_string())?;
    let imported = model.import(&Options::default()).map_err(|error| error.to_string())?;
    let weights: Vec<TensorRef<'_>> = imported.weights.iter().map(Tensor::as_ref).collect();
    let mut bytes = Vec::new();
    write(&mut bytes, &imported.graph, &weights, &BTreeMap::new()).map_err(|error| error.to_string())?;
    Ok((bytes, imported.notes))
}
