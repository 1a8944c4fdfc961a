//! Tar archives, as packed data sets and shards.

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "tar",
    run,
    seeds: seeds::tar,
    dictionary: &[
        "ustar\\x0000",
        "ustar  \\x00",
        "GNU.sparse.major=1",
        "GNU.sparse.map",
        "path=",
        "linkpath=",
        "size=",
        "././@LongLink",
    ],
    max_bytes: 65536,
};

fn run(data: &[u8]) {
    stratus_data::fuzzing::tar(data);
}
