//! Checkpoints: the manifest, the state and the weights.

use stratus_base::checksum::sha256_hex;
use stratus_run::checkpoint::{Checkpoints, State};

use super::Target;
use crate::{scratch, seeds};

/// A safetensors file without tensors.
const EMPTY: &[u8] = b"\x02\0\0\0\0\0\0\0{}";

pub const TARGET: Target = Target {
    name: "checkpoint",
    run,
    seeds,
    dictionary: &["\"version\"", "\"iteration\"", "\"epoch\"", "\"extra\"", "\"files\""],
    max_bytes: 65536,
};

/// The state of the iteration that is loaded; with another one, the weights would not be read.
fn state() -> Vec<u8> {
    let state = State { version: 1, iteration: 1, ..State::default() };
    serde_json::to_vec(&state).expect("a state can be written")
}

/// Each file after its number.
fn seeds() -> Vec<Vec<u8>> {
    let manifest = br#"{"version":1,"files":{"state.json":{"bytes":0,"sha256":""}}}"#;
    let mut files = vec![(0, state()), (1, EMPTY.to_vec()), (2, EMPTY.to_vec()), (3, manifest.to_vec())];
    files.extend(
        seeds::fixtures("stratus-weights", "safetensors", 32 << 10).into_iter().map(|file| (1, file)),
    );
    files.into_iter().map(|(number, file): (u8, _)| [&[number], file.as_slice()].concat()).collect()
}

fn run(data: &[u8]) {
    // The first byte chooses the damaged file; the manifest matches all others.
    let Some((&choice, content)) = data.split_first() else { return };
    let state = state();
    let files =
        [("state.json", state.as_slice()), ("weights.safetensors", EMPTY), ("optimizer.safetensors", EMPTY)];
    let mut entries = Vec::new();
    for (number, (name, usual)) in files.into_iter().enumerate() {
        let bytes = if usize::from(choice) == number { content } else { usual };
        scratch::file(&format!("checkpoints/0000000001/{name}"), bytes);
        let sha256 = sha256_hex([bytes]);
        entries.push(format!(r#""{name}":{{"bytes":{},"sha256":"{sha256}"}}"#, bytes.len()));
    }
    let manifest = format!(r#"{{"version":1,"files":{{{}}}}}"#, entries.join(","));
    let manifest = if choice == 3 { content } else { manifest.as_bytes() };
    scratch::file("checkpoints/0000000001/manifest.json", manifest);
    let _ = Checkpoints::new(scratch::folder().join("checkpoints")).load_latest();
}
