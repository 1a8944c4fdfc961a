//! Label images.

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "labels",
    run,
    seeds: || seeds::fixtures("stratus-data", "png", 64 << 10),
    dictionary: &["IHDR", "PLTE", "IDAT", "IEND", "tRNS"],
    max_bytes: 65536,
};

fn run(data: &[u8]) {
    stratus_data::fuzzing::labels(data);
}
