//! The attributes and inputs that the generator draws for each operation: a row of [`ROWS`] each. Activations
//! follow from their own table.

use stratus_graph::ops::Activation;

/// The inputs of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inputs {
    /// An image.
    Image,
    /// An image or a vector.
    Any,
    /// A vector.
    Vector,
    /// An image that becomes a vector.
    Flattened,
    /// An image, and another one that sets height and width if the layer has neither `size` nor `scale`.
    Resized,
    /// Two images of equal shape.
    Equal,
    /// Two to four images of equal height and width.
    Joined,
    /// An image, and one with a pixel and the same channels.
    Scaled,
}

/// The values of an attribute.
#[derive(Clone, Debug)]
pub(super) enum Values {
    /// An integer in this range.
    Count(u32, u32),
    /// A number of output channels: any, or a multiple of the input's, for groups.
    Channels,
    /// A divisor of the input's channels.
    Divisor,
    /// An integer from this number to half of the input's channels.
    Half(usize),
    /// Height and width in this range, equal or not.
    Pair(u32, u32),
    /// One of these texts.
    OneOf(Vec<String>),
}

/// An attribute.
#[derive(Clone, Debug)]
pub(super) struct Attribute {
    pub key: &'static str,
    pub values: Values,
    /// It is in one layer of this number; 1 if it has no default.
    pub one_in: u32,
}

/// An operation.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub op: &'static str,
    pub inputs: Inputs,
    pub attributes: Vec<Attribute>,
}

type Rule = (&'static str, Values, u32);

fn row(op: &'static str, inputs: Inputs, attributes: impl IntoIterator<Item = Rule>) -> Row {
    let attribute = |(key, values, one_in)| Attribute { key, values, one_in };
    Row { op, inputs, attributes: attributes.into_iter().map(attribute).collect() }
}

fn one_of(values: &[&str]) -> Values {
    Values::OneOf(values.iter().map(|&value| value.to_owned()).collect())
}

/// A convolution or its transpose.
fn convolution(op: &'static str, own: Option<Rule>) -> Row {
    let common = [
        ("out_channels", Values::Channels, 1),
        ("kernel", Values::Pair(1, 4), 1),
        ("stride", Values::Pair(1, 3), 3),
        ("padding", Values::Pair(0, 2), 2),
        ("padding_after", Values::Pair(0, 2), 6),
        ("dilation", Values::Pair(1, 3), 4),
        ("groups", Values::Divisor, 2),
        ("bias", one_of(&["false"]), 3),
    ];
    row(op, Inputs::Image, common.into_iter().chain(own))
}

/// All operations, in the order of their names.
pub(super) fn rows() -> Vec<Row> {
    use Inputs::{Any, Equal, Flattened, Image, Joined, Resized, Scaled, Vector};
    use Values::{Channels, Count, Divisor, Half, Pair};
    let epsilon = || ("epsilon", one_of(&["1e-3", "0.1"]), 3);
    let p = || ("p", one_of(&["0.2", "0.7", "0.0"]), 2);
    let mut rows = vec![
        row("adaptive_avg_pool2d", Image, [("output", Pair(1, 5), 1)]),
        row("add", Equal, []),
        row(
            "avg_pool2d",
            Image,
            [
                ("kernel", Pair(1, 4), 1),
                ("stride", Pair(1, 3), 2),
                ("padding", Pair(0, 2), 3),
                ("padding_after", Pair(0, 2), 5),
                ("count_include_pad", one_of(&["false"]), 2),
            ],
        ),
        row("batch_norm2d", Any, [epsilon(), ("momentum", one_of(&["0.3", "1.0", "0.0"]), 3)]),
        row("channel_scale", Scaled, []),
        row("channel_shuffle", Image, [("groups", Divisor, 1)]),
        row("channel_slice", Image, [("first", Half(0), 2), ("channels", Half(1), 1)]),
        row("concat", Joined, []),
        convolution("conv2d", None),
        convolution("conv_transpose2d", Some(("output_padding", Pair(0, 2), 5))),
        row("dropout", Any, [p()]),
        row("dropout2d", Image, [p()]),
        row("flatten", Flattened, []),
        row("group_norm", Image, [("groups", Divisor, 1), epsilon(), ("affine", one_of(&["false"]), 3)]),
        row("layer_norm2d", Image, [epsilon()]),
        row("layer_scale", Image, [("initial", one_of(&["0.5"]), 2)]),
        row("linear", Vector, [("out_features", Count(1, 40), 1), ("bias", one_of(&["false"]), 3)]),
        row(
            "local_response_norm",
            Image,
            [
                ("size", Count(1, 6), 1),
                ("alpha", one_of(&["0.5", "1.0"]), 2),
                ("beta", one_of(&["0.5", "1.0"]), 3),
                ("k", one_of(&["2.0", "0.5"]), 3),
            ],
        ),
        row("lp_pool2d", Image, [("kernel", Pair(1, 4), 1), ("stride", Pair(1, 3), 2)]),
        row(
            "max_pool2d",
            Image,
            [
                ("kernel", Pair(1, 4), 1),
                ("stride", Pair(1, 3), 2),
                ("padding", Pair(0, 2), 3),
                ("ceil_mode", one_of(&["true"]), 3),
            ],
        ),
        row("pointwise_linear", Image, [("out_channels", Channels, 1), ("bias", one_of(&["false"]), 3)]),
        row("prelu", Any, [("per_channel", one_of(&["true"]), 2)]),
        row("relu", Any, []),
        row("relu6", Any, []),
        row(
            "resize",
            Resized,
            [
                ("size", Pair(1, 12), 3),
                ("scale", one_of(&["2.0", "0.5", "1.5", "[0.7, 1.3]"]), 3),
                ("align_corners", one_of(&["true"]), 3),
                ("nearest", one_of(&["true"]), 3),
            ],
        ),
        row("scale", Any, [("factor", one_of(&["0.5", "-1.5"]), 1)]),
        row("stochastic_depth", Image, [p()]),
    ];
    rows.extend(Activation::all().iter().map(activation));
    rows.sort_by_key(|row| row.op);
    rows
}

/// The row of an activation: each of its attributes at the values of the examples.
fn activation(activation: &Activation) -> Row {
    let examples = Activation::examples();
    let values = |position: usize| {
        let same = examples.iter().filter(|example| example.name() == activation.name());
        Values::OneOf(same.map(|example| format!("{:?}", example.values()[position])).collect())
    };
    let keys = activation.attribute_names().iter().enumerate();
    row(activation.name(), Inputs::Any, keys.map(|(position, &key)| (key, values(position), 2)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};
    use stratus_graph::layer_file::operations_table;

    /// The words in backticks of a cell.
    fn names(cell: &str) -> BTreeSet<&str> {
        cell.split('`').skip(1).step_by(2).filter(|name| !name.is_empty()).collect()
    }

    /// The page of layer files lists every operation with its attributes.
    #[test]
    fn every_operation_and_attribute_is_drawn() {
        let table = operations_table();
        let listed: BTreeMap<&str, BTreeSet<&str>> = table
            .lines()
            .skip(2)
            .map(|line| {
                let mut cells = line.split('|').skip(1);
                let mut next = || cells.next().unwrap();
                (next().trim().trim_matches('`'), names(next()))
            })
            .collect();
        let rows = rows();
        let mut drawn: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for row in &rows {
            drawn.insert(row.op, row.attributes.iter().map(|attribute| attribute.key).collect());
        }
        assert_eq!(drawn, listed, "each operation needs a row in operations.rs, with its attributes");
        assert_eq!(drawn.len(), rows.len(), "an operation has two rows");
    }
}
