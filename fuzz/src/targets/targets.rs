//! Targets of launches.

use crate::scratch;
use stratus_launch::find_target;

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "targets",
    run,
    seeds: seeds::targets,
    dictionary: &[
        "[t]",
        "kind = \"ssh\"",
        "kind = \"slurm\"",
        "kind = \"sky\"",
        "kind = \"hosts\"",
        "host",
        "folder",
        "environment",
        "machine",
        "notify",
        "release",
        "password",
        "-----BEGIN ",
    ],
    max_bytes: 65536,
};

fn run(data: &[u8]) {
    let path = scratch::file("targets.toml", data);
    let _ = find_target("t", &[path]);
}
