//! Every operator of ONNX that is not imported, with the reason, and the table of all operators for
//! `docs/onnx.md`.

use super::operators::OPERATORS;
use std::collections::BTreeMap;
use stratus_graph::ops::Activation;

/// A reason why operators are not imported, which messages state, and these operators.
type Refusal = (&'static str, &'static [&'static str]);

/// The operators of ai.onnx that are not imported, from the definitions of onnx 1.23. An operator that is
/// missing here, in [`OPERATORS`] and in [`crate::ops`] is one that ONNX does not have.
const REFUSALS: &[Refusal] = &[
    (
        "no layer computes this function",
        &[
            "Acos",
            "Acosh",
            "Asin",
            "Asinh",
            "Atan",
            "Atanh",
            "BitCast",
            "Ceil",
            "Cos",
            "Cosh",
            "Det",
            "Exp",
            "Floor",
            "Hardmax",
            "Log",
            "Mod",
            "Pow",
            "Round",
            "Shrink",
            "Sign",
            "Sin",
            "Sinh",
            "Softsign",
            "SwiGLU",
            "Tan",
            "ThresholdedRelu",
        ],
    ),
    ("no layer computes it; of constants it is evaluated", &["Reciprocal", "Sqrt"]),
    (
        "no layer normalises in this way",
        &["LpNormalization", "MeanVarianceNormalization", "RMSNormalization"],
    ),
    (
        "no layer reduces in this way; means, sums and maxima over height and width are imported",
        &[
            "CumProd",
            "CumSum",
            "GlobalLpPool",
            "ReduceL1",
            "ReduceL2",
            "ReduceLogSum",
            "ReduceLogSumExp",
            "ReduceMin",
            "ReduceProd",
            "ReduceSumSquare",
        ],
    ),
    (
        "no layer moves pixels in this way",
        &[
            "AffineGrid",
            "CenterCropPad",
            "Col2Im",
            "Compress",
            "DeformConv",
            "DepthToSpace",
            "Expand",
            "GatherElements",
            "GatherND",
            "GridSample",
            "MaxRoiPool",
            "MaxUnpool",
            "ReverseSequence",
            "RoiAlign",
            "Scatter",
            "ScatterElements",
            "ScatterND",
            "SpaceToDepth",
            "TensorScatter",
            "Tile",
            "Trilu",
        ],
    ),
    (
        "comparisons, logic and integers have no gradient: import the layers before it with --until",
        &[
            "And",
            "ArgMax",
            "ArgMin",
            "BitShift",
            "BitwiseAnd",
            "BitwiseNot",
            "BitwiseOr",
            "BitwiseXor",
            "CastLike",
            "Equal",
            "EyeLike",
            "Greater",
            "GreaterOrEqual",
            "IsInf",
            "IsNaN",
            "Less",
            "LessOrEqual",
            "NonMaxSuppression",
            "NonZero",
            "Not",
            "OneHot",
            "Or",
            "Range",
            "Size",
            "TopK",
            "Unique",
            "Where",
            "Xor",
        ],
    ),
    (
        "the model is quantised: export it in floating point",
        &[
            "ConvInteger",
            "DequantizeLinear",
            "DynamicQuantizeLinear",
            "MatMulInteger",
            "QLinearConv",
            "QLinearMatMul",
            "QuantizeLinear",
        ],
    ),
    (
        "a convolutional network has no attention or recurrence",
        &[
            "Attention",
            "CausalConvWithState",
            "Einsum",
            "GRU",
            "LSTM",
            "LinearAttention",
            "RNN",
            "RotaryEmbedding",
        ],
    ),
    (
        "control flow, sequences and optional values are not supported: export a graph without them",
        &[
            "ConcatFromSequence",
            "If",
            "Loop",
            "Optional",
            "OptionalGetElement",
            "OptionalHasElement",
            "Scan",
            "SequenceAt",
            "SequenceConstruct",
            "SequenceEmpty",
            "SequenceErase",
            "SequenceInsert",
            "SequenceLength",
            "SequenceMap",
            "SplitToSequence",
        ],
    ),
    (
        "a result must not be random: export the network in inference mode",
        &[
            "Bernoulli",
            "Multinomial",
            "RandomNormal",
            "RandomNormalLike",
            "RandomUniform",
            "RandomUniformLike",
        ],
    ),
    (
        "the loss belongs to the experiment: export the network up to its logits",
        &["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"],
    ),
    (
        "preparation of data is no part of a network: export it without",
        &[
            "BlackmanWindow",
            "DFT",
            "HammingWindow",
            "HannWindow",
            "ImageDecoder",
            "MelWeightMatrix",
            "RegexFullMatch",
            "STFT",
            "StringConcat",
            "StringNormalizer",
            "StringSplit",
            "TfIdfVectorizer",
        ],
    ),
];

/// The reason why an operator is not imported.
pub(super) fn refusal(operator: &str) -> String {
    let listed = REFUSALS.iter().find(|(_, operators)| operators.contains(&operator));
    listed.map_or_else(
        || "unknown operator".to_owned(),
        |(reason, _)| format!("unsupported operator: {reason}"),
    )
}

/// The table of all operators for the documentation: name, first imported operator set or the reason.
#[must_use]
pub fn operator_table() -> String {
    let mut first_sets = BTreeMap::new();
    for &(name, since, ..) in OPERATORS.iter().chain(crate::ops::signatures()) {
        let first = first_sets.entry(name).or_insert(since);
        *first = since.min(*first);
    }
    for onnx in Activation::all().into_iter().filter_map(|activation| activation.spec().onnx) {
        first_sets.entry(onnx.name).or_insert(onnx.since);
    }
    let imported =
        first_sets.into_iter().map(|(name, since)| (name, format!("imported, from set {}", since.max(7))));
    let mut rows: BTreeMap<&str, String> = imported.collect();
    for (reason, operators) in REFUSALS {
        for name in *operators {
            rows.insert(name, format!("rejected: {reason}"));
        }
    }
    let mut table = "| ONNX operator | import |\n|---|---|\n".to_owned();
    for (name, support) in rows {
        table += &format!("| `{name}` | {support} |\n");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::operators::activation_of;

    #[test]
    fn an_operator_is_either_imported_or_rejected() {
        let mut seen = std::collections::HashSet::new();
        for (reason, operators) in REFUSALS {
            assert!(operators.is_sorted(), "{reason}");
            for operator in *operators {
                assert!(seen.insert(*operator), "{operator}");
                let imported = OPERATORS.iter().chain(crate::ops::signatures());
                let is_imported = imported.map(|(name, ..)| name).any(|name| name == operator);
                assert!(!is_imported && activation_of(operator).is_none(), "{operator}");
                assert_eq!(refusal(operator), format!("unsupported operator: {reason}"));
            }
        }
        assert_eq!(refusal("Convolve"), "unknown operator");
    }
}
