//! ONNX models: the wire format, the graph and its weights.

use stratus_onnx::{ImportOptions, Model};

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "onnx",
    run,
    seeds: || seeds::fixtures("stratus-onnx", "onnx", 64 << 10),
    dictionary: &[
        "Conv",
        "Gemm",
        "BatchNormalization",
        "Relu",
        "MaxPool",
        "AveragePool",
        "GlobalAveragePool",
        "Flatten",
        "Reshape",
        "Add",
        "Mul",
        "Concat",
        "Constant",
        "Softmax",
        "Transpose",
        "Resize",
        "kernel_shape",
        "strides",
        "pads",
        "group",
        "dilations",
        "axis",
        "perm",
        "epsilon",
        "weight",
        "bias",
        "Identity",
        "Shape",
        "Gather",
        "Unsqueeze",
        "Slice",
        "Cast",
        "Clip",
        "ConvTranspose",
        "auto_pad",
        "SAME_UPPER",
    ],
    max_bytes: 65536,
};

fn run(data: &[u8]) {
    let model = Model::from_bytes("model.onnx", data.to_vec());
    let _ = model.import(&ImportOptions::default());
}
