//! Checkpoints: the manifest, the state and the weights.

use crate::scratch;
use stratus_base::checksum::sha256_hex;
use stratus_run::checkpoint::Checkpoints;

use super::Target;

pub const TARGET: Target = Target {
    name: "checkpoint",
    run,
    seeds: Vec::new,
    dictionary: &["\"version\"", "\"iteration\"", "\"epoch\"", "\"extra\"", "\"files\""],
    max_bytes: 65536,
};

fn run(data: &[u8]) {
    // The first byte chooses the damaged file; the manifest matches all others.
    let Some((&choice, content)) = data.split_first() else { return };
    let empty = b"\x02\0\0\0\0\0\0\0{}".as_slice();
    let state = br#"{"version":1,"iteration":1}"#.as_slice();
    let files = [("state.json", state), ("weights.safetensors", empty), ("optimizer.safetensors", empty)];
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
