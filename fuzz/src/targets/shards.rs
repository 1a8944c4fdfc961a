//! Shards without an index: their headers, samples and images.

use crate::scratch;
use stratus_data::{OpenOptions, Split};

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "shards",
    run,
    seeds: seeds::tar,
    dictionary: &["0.jpg", "0.cls", "0.png", "ustar"],
    max_bytes: 65536,
};

fn run(data: &[u8]) {
    scratch::file("shards/train-000000.tar", data);
    let root = scratch::folder().join("shards");
    let options = OpenOptions { skip_damaged: true, ..OpenOptions::default() };
    let _ = stratus_data::open("shards", &root, Split::Train, &options);
}
