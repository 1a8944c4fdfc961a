//! Experiments in TOML.

use std::path::Path;
use stratus_experiment::Experiment;

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "experiment",
    run,
    seeds: seeds::experiments,
    dictionary: &[
        "[model]",
        "[train]",
        "[data]",
        "[optimiser]",
        "name",
        "epochs",
        "batch_size",
        "learning_rate",
        "\"auto\"",
        "true",
        "= 1e308",
    ],
    // Files are short, and the parser of TOML takes half a millisecond per KiB.
    max_bytes: 8192,
};

fn run(data: &[u8]) {
    let _ = Experiment::from_toml(&String::from_utf8_lossy(data), Path::new("experiment.toml"));
}
