//! Zip archives of images.

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "zip",
    run,
    // Files of PyTorch are zip archives.
    seeds: || seeds::fixtures("stratus-weights", "pth", 64 << 10),
    dictionary: &[
        "PK\\x01\\x02",
        "PK\\x03\\x04",
        "PK\\x05\\x06",
        "PK\\x06\\x06",
        "PK\\x06\\x07",
        "\\x08\\x00",
        "../",
    ],
    max_bytes: 65536,
};

fn run(data: &[u8]) {
    stratus_data::fuzzing::zip(data);
}
