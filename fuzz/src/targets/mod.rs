//! The list of all targets: a file each, and a line in [`ALL`].

mod checkpoint;
mod cifar;
mod coco;
mod csv;
mod exchange;
mod experiment;
mod forecast;
mod http;
mod idx;
mod jpeg;
mod jpeg_turbo;
mod labels;
mod launch_answers;
mod launch_record;
mod layer_file;
mod lists;
mod messages;
mod onnx;
mod png;
mod pth;
mod report;
mod run_json;
mod safetensors;
mod sftp;
mod shard_index;
mod shards;
mod sweep;
mod swift;
mod table;
mod tar;
mod targets;
mod timeline;
mod webp;
mod xml;
mod zip;

use stratus_weights::WeightsFile;

/// A parser of bytes that may come from a stranger.
pub struct Target {
    /// Its name on the command line, which is also that of its corpus.
    pub name: &'static str,
    /// Parses an input. It must return, whatever the bytes are.
    pub run: fn(&[u8]),
    /// The first inputs, from fixtures and generators.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words that occur in the format, with escapes as `\\xff`.
    pub dictionary: &'static [&'static str],
    /// The maximum length of an input.
    pub max_bytes: usize,
}

/// All targets, those that read the files of other people first.
pub static ALL: &[Target] = &[
    onnx::TARGET,
    layer_file::TARGET,
    experiment::TARGET,
    xml::TARGET,
    sweep::TARGET,
    pth::TARGET,
    safetensors::TARGET,
    idx::TARGET,
    cifar::TARGET,
    tar::TARGET,
    zip::TARGET,
    shards::TARGET,
    shard_index::TARGET,
    png::TARGET,
    webp::TARGET,
    jpeg::TARGET,
    jpeg_turbo::TARGET,
    labels::TARGET,
    coco::TARGET,
    lists::TARGET,
    table::TARGET,
    csv::TARGET,
    run_json::TARGET,
    timeline::TARGET,
    checkpoint::TARGET,
    report::TARGET,
    forecast::TARGET,
    targets::TARGET,
    launch_record::TARGET,
    launch_answers::TARGET,
    http::TARGET,
    sftp::TARGET,
    swift::TARGET,
    messages::TARGET,
    exchange::TARGET,
];

/// Reads every tensor of a file.
fn weights(data: &[u8], name: &str) {
    let Ok(file) = WeightsFile::from_bytes(name, data.to_vec()) else { return };
    for tensor in file.tensors() {
        let _ = file.read(tensor);
        let _ = file.read_i64(tensor);
    }
    let _ = file.match_network([("weight", [3, 4].as_slice())]);
}

/// The data after the first bytes of a format, which mutations would mostly destroy.
fn with_magic(magic: &[u8], data: &[u8]) -> Vec<u8> {
    [magic, data.get(magic.len()..).unwrap_or_default()].concat()
}
