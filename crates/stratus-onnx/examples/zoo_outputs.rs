//! Writes every network of the zoo at a small size into a folder: its layer file, weights, images, and what the reference
//! backend makes of them. `scripts/check-onnx.sh` compares that with what onnxruntime makes of the exported networks.
//!
//!     cargo run -p stratus-onnx --example zoo_outputs FOLDER

#![allow(clippy::unwrap_used, reason = "what cannot be written ends it")]

#[path = "../tests/common/mod.rs"]
mod common;

use common::{BATCH, CASES, images, logits, network, refs, weights};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use stratus_graph::layer_file;
use stratus_weights::{TensorRef, write_safetensors};

fn main() {
    let folder = std::env::args().nth(1).expect("the folder to write to");
    let folder = Path::new(&folder);
    fs::create_dir_all(folder).unwrap();
    for &(name, width, size) in CASES {
        let graph = network(name, width, size);
        let file = |ending: &str| folder.join(format!("{name}-{}x{}.{ending}", size[0], size[1]));
        let save = |ending: &str, tensors: &[TensorRef<'_>]| {
            write_safetensors(&mut File::create(file(ending)).unwrap(), tensors, &BTreeMap::new()).unwrap();
        };
        fs::write(file("toml"), layer_file::write(&graph).unwrap()).unwrap();
        let (weights, images) = (weights(&graph), images(&graph));
        save("safetensors", &refs(&weights));
        let logits = logits(&graph, &weights, &images);
        let mut shape = vec![BATCH];
        shape.extend(&graph.input_shape().0);
        let made = [BATCH, logits.len() / BATCH];
        let tensors = [TensorRef::f32("input", &shape, &images), TensorRef::f32("output", &made, &logits)];
        save("expected", &tensors);
    }
}
