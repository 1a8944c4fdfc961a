//! Sweep files.

use std::path::Path;
use stratus_sweep::Definition;

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "sweep",
    run,
    seeds: seeds::sweeps,
    dictionary: &[
        "[sweep]",
        "[sweep.keys]",
        "[sweep.halving]",
        "repetitions",
        "\"train.epochs\"",
        "= [1, 2]",
    ],
    max_bytes: 8192,
};

fn run(data: &[u8]) {
    let _ = Definition::parse::<&str, &str>(&String::from_utf8_lossy(data), Path::new("sweep.toml"), &[]);
}
