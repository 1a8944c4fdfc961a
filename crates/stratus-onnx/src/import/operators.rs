//! The supported operators in each operator set: their attributes with types, and the number of inputs. Other
//! attributes and inputs of a node are rejected, since ignoring them could change the result.

use crate::ops::Signature;
use crate::proto::{Attribute, Node};
use stratus_base::printable;
use stratus_graph::ops::{Activation, OnnxOperator};

/// Any number of inputs.
const UNLIMITED_INPUTS: usize = usize::MAX;

/// The operators except activations and those of [`crate::ops`], sorted by name and set, from the definitions
/// of onnx 1.23, sets 7 to 27.
#[rustfmt::skip]
pub(super) const OPERATORS: &[Signature] = &[
    ("Abs", 7, "", 1),
    ("Add", 7, "", 2),
    ("AveragePool", 7, "auto_pad:s count_include_pad:i kernel_shape:I pads:I strides:I", 1),
    ("AveragePool", 10, "auto_pad:s ceil_mode:i count_include_pad:i kernel_shape:I pads:I strides:I", 1),
    ("AveragePool", 19,
        "auto_pad:s ceil_mode:i count_include_pad:i dilations:I kernel_shape:I pads:I strides:I", 1),
    ("BatchNormalization", 7, "epsilon:f momentum:f spatial:i", 5),
    ("BatchNormalization", 9, "epsilon:f momentum:f", 5),
    ("BatchNormalization", 14, "epsilon:f momentum:f training_mode:i", 5),
    ("Cast", 7, "to:i", 1),
    ("Cast", 19, "saturate:i to:i", 1),
    ("Cast", 24, "round_mode:s saturate:i to:i", 1),
    ("Celu", 12, "alpha:f", 1),
    ("Clip", 7, "max:f min:f", 1),
    ("Clip", 11, "", 3),
    ("Concat", 7, "axis:i", UNLIMITED_INPUTS),
    ("Constant", 7, "value:t", 0),
    ("Constant", 11, "sparse_value:p value:t", 0),
    ("Constant", 12, "sparse_value:p value:t value_float:f value_floats:F value_int:i value_ints:I \
        value_string:s value_strings:S", 0),
    ("ConstantOfShape", 9, "value:t", 1),
    ("Conv", 7, "auto_pad:s dilations:I group:i kernel_shape:I pads:I strides:I", 3),
    ("ConvTranspose", 7, "auto_pad:s dilations:I group:i kernel_shape:I output_padding:I output_shape:I \
        pads:I strides:I", 3),
    ("Div", 7, "", 2),
    ("Dropout", 7, "ratio:f", 1),
    ("Dropout", 12, "seed:i", 3),
    ("Erf", 9, "", 1),
    ("Flatten", 7, "axis:i", 1),
    ("Gather", 7, "axis:i", 2),
    ("Gelu", 20, "approximate:s", 1),
    ("Gemm", 7, "alpha:f beta:f transA:i transB:i", 3),
    ("GlobalAveragePool", 7, "", 1),
    ("GlobalMaxPool", 7, "", 1),
    ("Identity", 7, "", 1),
    ("LayerNormalization", 17, "axis:i epsilon:f stash_type:i", 3),
    ("LogSoftmax", 7, "axis:i", 1),
    ("MatMul", 7, "", 2),
    ("Max", 7, "", UNLIMITED_INPUTS),
    ("MaxPool", 7, "auto_pad:s kernel_shape:I pads:I strides:I", 1),
    ("MaxPool", 8, "auto_pad:s kernel_shape:I pads:I storage_order:i strides:I", 1),
    ("MaxPool", 10, "auto_pad:s ceil_mode:i dilations:I kernel_shape:I pads:I storage_order:i strides:I", 1),
    ("Mean", 7, "", UNLIMITED_INPUTS),
    ("Min", 7, "", UNLIMITED_INPUTS),
    ("Mul", 7, "", 2),
    ("Neg", 7, "", 1),
    ("PRelu", 7, "", 2),
    ("Pad", 7, "mode:s pads:I value:f", 1),
    ("Pad", 11, "mode:s", 3),
    ("Pad", 18, "mode:s", 4),
    ("ReduceMax", 7, "axes:I keepdims:i", 1),
    ("ReduceMax", 18, "keepdims:i noop_with_empty_axes:i", 2),
    ("ReduceMean", 7, "axes:I keepdims:i", 1),
    ("ReduceMean", 18, "keepdims:i noop_with_empty_axes:i", 2),
    ("ReduceSum", 7, "axes:I keepdims:i", 1),
    ("ReduceSum", 13, "keepdims:i noop_with_empty_axes:i", 2),
    ("Relu", 7, "", 1),
    ("Reshape", 7, "", 2),
    ("Reshape", 14, "allowzero:i", 2),
    ("Resize", 10, "mode:s", 2),
    ("Resize", 11, "coordinate_transformation_mode:s cubic_coeff_a:f exclude_outside:i \
        extrapolation_value:f mode:s nearest_mode:s", 4),
    ("Resize", 18, "antialias:i axes:I coordinate_transformation_mode:s cubic_coeff_a:f exclude_outside:i \
        extrapolation_value:f keep_aspect_ratio_policy:s mode:s nearest_mode:s", 4),
    ("Selu", 7, "alpha:f gamma:f", 1),
    ("Shape", 7, "", 1),
    ("Shape", 15, "end:i start:i", 1),
    ("Slice", 7, "axes:I ends:I starts:I", 1),
    ("Slice", 10, "", 5),
    ("Softmax", 7, "axis:i", 1),
    ("Split", 7, "axis:i split:I", 1),
    ("Split", 13, "axis:i", 2),
    ("Split", 18, "axis:i num_outputs:i", 2),
    ("Squeeze", 7, "axes:I", 1),
    ("Squeeze", 13, "", 2),
    ("Sub", 7, "", 2),
    ("Sum", 7, "", UNLIMITED_INPUTS),
    ("Swish", 24, "alpha:f", 1),
    ("Transpose", 7, "perm:I", 1),
    ("Unsqueeze", 7, "axes:I", 1),
    ("Unsqueeze", 13, "", 2),
    ("Upsample", 7, "mode:s scales:F", 1),
    ("Upsample", 9, "mode:s", 2),
];

/// The types of attributes: the letter in [`OPERATORS`], `AttributeProto.AttributeType`, and the name there.
const TYPES: [(&str, i64, &str); 8] = [
    ("f", 1, "FLOAT"),
    ("i", 2, "INT"),
    ("s", 3, "STRING"),
    ("t", 4, "TENSOR"),
    ("F", 6, "FLOATS"),
    ("I", 7, "INTS"),
    ("S", 8, "STRINGS"),
    ("p", 11, "SPARSE_TENSOR"),
];

/// One version of an operator.
struct Version {
    since: i64,
    /// The attributes with the letters of their types.
    attributes: Vec<(&'static str, &'static str)>,
    max_inputs: usize,
}

impl Version {
    /// The letter of the type of the attribute `name`.
    fn letter(&self, name: &str) -> Option<&'static str> {
        self.attributes.iter().find(|(known, _)| *known == name).map(|(_, letter)| *letter)
    }
}

/// The versions of an operator, sorted by set; none if it is unknown. Activations have one version, with
/// numbers as attributes.
fn versions(operator: &str) -> Vec<Version> {
    let listed = OPERATORS.iter().chain(crate::ops::signatures()).filter(|(name, ..)| *name == operator);
    let version = |&(_, since, attributes, max_inputs): &Signature| {
        let attributes = attributes.split_whitespace().filter_map(|pair| pair.split_once(':')).collect();
        Version { since, attributes, max_inputs }
    };
    let listed: Vec<Version> = listed.map(version).collect();
    if !listed.is_empty() {
        return listed;
    }
    let version = |(activation, onnx): (Activation, OnnxOperator)| {
        let attributes = activation.attribute_names().iter().map(|name| (*name, "f")).collect();
        Version { since: onnx.since, attributes, max_inputs: 1 }
    };
    activation_of(operator).map(version).into_iter().collect()
}

/// The activation that an operator is, as the table of activations declares it.
pub(super) fn activation_of(operator: &str) -> Option<(Activation, OnnxOperator)> {
    Activation::all().into_iter().find_map(|activation| {
        let onnx = activation.spec().onnx.filter(|onnx| onnx.name == operator)?;
        Some((activation, onnx))
    })
}

/// Checks that the attributes and inputs of a node are those of its operator in this operator set. Unknown
/// operators pass.
///
/// # Errors
/// If an attribute or input is unsupported.
pub(super) fn check(node: &Node<'_>, opset: i64) -> Result<(), String> {
    let versions = versions(node.operator);
    let Some(Version { since: first, .. }) = versions.first() else { return Ok(()) };
    let Some(version) = versions.iter().take_while(|version| version.since <= opset).last() else {
        return Err(format!(
            "needs opset {first}, the model uses {opset}: export it with a later operator set"
        ));
    };
    for (position, attribute) in node.attributes.iter().enumerate() {
        let name = printable(attribute.name);
        if node.attributes[..position].iter().any(|other| other.name == attribute.name) {
            return Err(format!("duplicate attribute `{name}`"));
        }
        if attribute.is_reference {
            return Err(format!("attribute `{name}` refers to the enclosing function: inline the function"));
        }
        let Some(letter) = version.letter(attribute.name) else {
            let value = display_value(attribute);
            return Err(if versions.iter().any(|version| version.letter(attribute.name).is_some()) {
                format!(
                    "attribute `{name}` ({value}) belongs to another operator set than {opset}: convert the \
                     model to one set"
                )
            } else {
                format!("unknown attribute `{name}` ({value}): export it without")
            });
        };
        let type_of = |kind: i64| TYPES.iter().find(|(_, number, _)| *number == kind);
        match type_of(attribute.kind) {
            // The first versions of the format have no type.
            _ if attribute.kind == 0 => {}
            Some((found, ..)) if *found == letter => {}
            other => {
                let other = other.map_or("another type", |(_, _, name)| name);
                let expected =
                    TYPES.iter().find(|(known, ..)| *known == letter).map_or("", |(_, _, name)| name);
                return Err(format!("attribute `{name}` has type {other}, expected {expected}"));
            }
        }
    }
    let inputs = node.inputs.len() - node.inputs.iter().rev().take_while(|name| name.is_empty()).count();
    let max_inputs = version.max_inputs;
    if inputs > max_inputs {
        return Err(format!("it has {inputs} inputs, at most {max_inputs} in operator set {opset}"));
    }
    Ok(())
}

/// The value of an attribute for a message.
fn display_value(attribute: &Attribute<'_>) -> String {
    match attribute.kind {
        1 => attribute.float.to_string(),
        2 => attribute.int.to_string(),
        3 => printable(&String::from_utf8_lossy(attribute.text)),
        6 => format!("{:?}", attribute.floats),
        7 => format!("{:?}", attribute.ints),
        _ => "not a number".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(operator: &'static str, attributes: Vec<Attribute<'static>>) -> Node<'static> {
        Node { operator, inputs: vec!["x"], attributes, ..Default::default() }
    }

    fn int(name: &'static str, int: i64) -> Attribute<'static> {
        Attribute { name, int, kind: 2, ..Default::default() }
    }

    #[test]
    fn operator_table_is_sorted() {
        assert!(OPERATORS.is_sorted_by_key(|(name, since, ..)| (name, since)));
        for (name, since, attributes, _) in OPERATORS {
            for pair in attributes.split_whitespace() {
                let letter = pair.split_once(':').unwrap().1;
                assert!(TYPES.iter().any(|(known, ..)| *known == letter), "{name} {since} {pair}");
            }
        }
    }

    #[test]
    fn accepts_every_attribute_in_the_table() {
        for (name, since, attributes, _) in OPERATORS {
            let attribute = |pair: &'static str| {
                let (name, letter) = pair.split_once(':').unwrap();
                let (_, kind, _) = TYPES.iter().find(|(known, ..)| *known == letter).unwrap();
                Attribute { name, kind: *kind, ..Default::default() }
            };
            let mut all = node(name, attributes.split_whitespace().map(attribute).collect());
            all.inputs.clear();
            assert_eq!(check(&all, *since), Ok(()), "{name} {since}");
            all.attributes.push(int("sealed", 3));
            let message = check(&all, *since).unwrap_err();
            assert_eq!(message, "unknown attribute `sealed` (3): export it without");
        }
    }

    #[test]
    fn accepts_every_attribute_of_activations() {
        for activation in Activation::all() {
            let Some(onnx) = activation.spec().onnx else { continue };
            let float = |name: &&'static str| Attribute { name, kind: 1, ..Default::default() };
            let all = node(onnx.name, activation.attribute_names().iter().map(float).collect());
            assert_eq!(check(&all, onnx.since), Ok(()), "{}", onnx.name);
            let message = check(&all, onnx.since - 1).unwrap_err();
            assert!(message.contains(&format!("needs opset {}", onnx.since)), "{message}");
        }
    }

    #[test]
    fn rejects_other_attributes_and_inputs_by_name() {
        for (operator, attributes, opset, expected) in [
            ("Gelu", vec![], 17, "needs opset 20, the model uses 17"),
            ("Flatten", vec![int("axis", 1), int("axis", 2)], 13, "duplicate attribute `axis`"),
            (
                "Softmax",
                vec![Attribute { kind: 1, ..int("axis", 0) }],
                13,
                "`axis` has type FLOAT, expected INT",
            ),
            (
                "Softmax",
                vec![Attribute { is_reference: true, ..int("axis", 0) }],
                13,
                "the enclosing function",
            ),
            (
                "Squeeze",
                vec![Attribute { kind: 7, ..int("axes", 0) }],
                13,
                "([]) belongs to another operator set than 13",
            ),
            ("Relu", vec![int("inplace", 1)], 13, "unknown attribute `inplace` (1)"),
        ] {
            let message = check(&node(operator, attributes), opset).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
        let clip = Node { inputs: vec!["x", "low"], ..node("Clip", vec![]) };
        let message = check(&clip, 10).unwrap_err();
        assert_eq!(message, "it has 2 inputs, at most 1 in operator set 10");
        assert_eq!(check(&clip, 11), Ok(()));
        // Omitted inputs do not count.
        assert_eq!(check(&Node { inputs: vec!["x", "", ""], ..node("Relu", vec![]) }, 13), Ok(()));
        assert_eq!(check(&node("Tan", vec![int("anything", 1)]), 13), Ok(()));
    }
}
