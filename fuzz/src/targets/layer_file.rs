//! Layer files.

use stratus_graph::layer_file;

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "layer_file",
    run,
    seeds: seeds::layer_files,
    dictionary: &[
        "[[layer]]",
        "[network]",
        "name",
        "input",
        "kind",
        "type",
        "inputs",
        "kernel",
        "stride",
        "padding",
        "channels",
        "conv2d",
        "linear",
        "relu",
        "batch_norm",
        "max_pool2d",
        "add",
        "concat",
        "flatten",
        "outputs",
    ],
    max_bytes: 65536,
};

fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(graph) = layer_file::parse(&text) {
        // A network that was read can be written, and is read again as the same.
        let Ok(written) = layer_file::write(&graph) else { return };
        let again = layer_file::parse(&written);
        assert!(again.is_ok(), "the written layer file is refused: {again:?}\n{written}");
    }
}
