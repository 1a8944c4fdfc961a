//! Safetensors files.

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "safetensors",
    run,
    seeds: || seeds::fixtures("stratus-weights", "safetensors", 64 << 10),
    dictionary: &["dtype", "F32", "BF16", "I64", "shape", "data_offsets", "__metadata__", "[0,4]"],
    max_bytes: 65536,
};

fn run(data: &[u8]) {
    super::weights(data, "model.safetensors");
    let _ = stratus_run::checkpoint::read_safetensors(data);
}
