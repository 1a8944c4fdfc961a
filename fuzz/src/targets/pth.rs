//! PyTorch files: zip archives, the legacy format and pickles.

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "pth",
    run,
    seeds: || {
        ["pth", "pt", "pkl"]
            .iter()
            .flat_map(|kind| seeds::fixtures("stratus-weights", kind, 64 << 10))
            .collect()
    },
    dictionary: &[
        "PK\\x03\\x04",
        "PK\\x01\\x02",
        "PK\\x05\\x06",
        "data.pkl",
        "collections",
        "OrderedDict",
        "torch._utils",
        "_rebuild_tensor_v2",
        "FloatStorage",
        "cuda:0",
        "state_dict",
    ],
    max_bytes: 65536,
};

fn run(data: &[u8]) {
    super::weights(data, "model.pth");
}
