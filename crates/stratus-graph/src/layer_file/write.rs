//! Writes networks as layer files.

use super::{INPUT, LayerFileError, MAX_FILE_BYTES, MAX_LAYERS, parse};
use crate::{Graph, Initialisation, Node, Operation};
use std::fmt::Write;

/// Writes the attributes of a layer as lines of its file.
#[derive(Debug, Default)]
pub(crate) struct AttributeWriter {
    text: String,
}

impl AttributeWriter {
    fn line(&mut self, key: &str, value: impl std::fmt::Display) {
        // Writing into a String cannot fail.
        let _ = writeln!(self.text, "{key} = {value}");
    }

    /// An integer.
    pub(crate) fn count(&mut self, key: &str, value: usize) {
        self.line(key, value);
    }

    /// `[height, width]`, as one number if they are equal.
    pub(crate) fn pair(&mut self, key: &str, [height, width]: [usize; 2]) {
        if height == width {
            self.line(key, height);
        } else {
            self.line(key, format!("[{height}, {width}]"));
        }
    }

    /// A [`pair`](Self::pair), unless it is the default.
    pub(crate) fn pair_if_not(&mut self, key: &str, value: [usize; 2], default: [usize; 2]) {
        if value != default {
            self.pair(key, value);
        }
    }

    /// A number.
    pub(crate) fn number(&mut self, key: &str, value: f32) {
        self.line(key, number(value));
    }

    /// A [`number`](Self::number), unless it is the default.
    pub(crate) fn number_if_not(&mut self, key: &str, value: f32, default: f32) {
        if value != default {
            self.number(key, value);
        }
    }

    /// `[vertical, horizontal]`, as one number if they are equal.
    pub(crate) fn factors(&mut self, key: &str, [vertical, horizontal]: [f64; 2]) {
        if vertical.to_bits() == horizontal.to_bits() {
            self.line(key, format!("{vertical:?}"));
        } else {
            self.line(key, format!("[{vertical:?}, {horizontal:?}]"));
        }
    }

    /// True or false, unless it is the default.
    pub(crate) fn flag_if_not(&mut self, key: &str, value: bool, default: bool) {
        if value != default {
            self.line(key, value);
        }
    }
}

/// The shortest decimal that parses to this number, with a point or an exponent.
fn number(value: f32) -> String {
    format!("{value:?}")
}

/// Writes a network as a layer file: [`parse`] returns the same network, auxiliary outputs and
/// initialisations included.
///
/// # Errors
/// If a layer file cannot represent it: an invalid name or size, or an unnamed tensor.
pub fn write(graph: &Graph) -> Result<String, LayerFileError> {
    if graph.nodes.len() > MAX_LAYERS {
        let size = format!("{} layers", graph.nodes.len());
        return Err(LayerFileError::TooLarge { size, max: MAX_LAYERS });
    }
    let mut to = AttributeWriter::default();
    to.line("name", quoted(&graph.name));
    to.line("input", format!("{:?}", graph.input_shape().0));
    let names: Vec<(crate::TensorId, &str)> = std::iter::once((graph.input, INPUT))
        .chain(graph.nodes.iter().map(|node| (node.output, node.name.as_str())))
        .collect();
    let names: std::collections::HashMap<_, _> = names.into_iter().collect();
    let name = |tensor| names.get(&tensor).copied().unwrap_or_default();
    let mut before = graph.input;
    if graph.nodes.last().is_none_or(|node| node.output != graph.output) {
        to.line("output", quoted(name(graph.output)));
    }
    for node in &graph.nodes {
        to.text += "\n[[layer]]\n";
        to.line("name", quoted(&node.name));
        to.line("op", quoted(node.op.kind()));
        match node.inputs[..] {
            [input] if input == before => {}
            [input] => to.line("inputs", quoted(name(input))),
            ref inputs => {
                let inputs: Vec<String> = inputs.iter().map(|&input| quoted(name(input))).collect();
                to.line("inputs", format!("[{}]", inputs.join(", ")));
            }
        }
        node.op.write_attributes(&mut to);
        initial(graph, node, &mut to);
        if let Some(auxiliary) = graph.auxiliary.iter().find(|auxiliary| auxiliary.output == node.output) {
            to.line("auxiliary", number(auxiliary.weight));
        }
        before = node.output;
        if to.text.len() > MAX_FILE_BYTES {
            return Err(LayerFileError::TooLarge { size: "more bytes".to_owned(), max: MAX_FILE_BYTES });
        }
    }
    verify(graph, &parse(&to.text)?)?;
    Ok(to.text)
}

/// The initialisations that differ from the operation's defaults.
fn initial(graph: &Graph, node: &Node, to: &mut AttributeWriter) {
    let kaiming = node.op.fan_out().map(Initialisation::kaiming_normal);
    for (spec, id) in node.op.parameters().iter().zip(&node.parameters) {
        let found = graph.parameters[id.0].initialisation;
        if found == spec.initialisation {
            continue;
        }
        let text = match found {
            _ if Some(found) == kaiming => "\"kaiming_normal\"".to_owned(),
            Initialisation::Zeros => "\"zeros\"".to_owned(),
            Initialisation::Ones => "\"ones\"".to_owned(),
            Initialisation::Normal { std } => format!("{{ normal = {} }}", number(std)),
            Initialisation::Uniform { bound } => format!("{{ uniform = {} }}", number(bound)),
            Initialisation::Constant { value } => format!("{{ constant = {} }}", number(value)),
            Initialisation::Dirac { .. } => "\"dirac\"".to_owned(),
            Initialisation::Whitening => "\"whitening\"".to_owned(),
        };
        to.line(&format!("{}_init", spec.name), text);
    }
}

fn quoted(text: &str) -> String {
    // Valid names need no escaping; others are rejected when the text is parsed.
    format!("{text:?}")
}

/// Checks that parsing the text gives the same graph.
fn verify(graph: &Graph, read: &Graph) -> Result<(), LayerFileError> {
    if graph == read {
        return Ok(());
    }
    let layer = graph.nodes.iter().zip(&read.nodes).find(|(ours, read)| ours != read);
    let parameter = graph.parameters.iter().zip(&read.parameters).find(|(ours, read)| ours != read);
    let problem = match (layer, parameter) {
        (Some((node, _)), _) => format!("layer `{}` is not representable", node.name),
        (_, Some((parameter, _))) => {
            format!("the initialisation of `{}` is not representable", parameter.name)
        }
        _ => "its tensor numbering is not representable".to_owned(),
    };
    Err(LayerFileError::Unwritable { network: graph.name.clone(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer_file::LayerFileError;
    use crate::ops::{Conv2d, LocalResponseNorm, Relu};
    use crate::zoo::NETWORKS;
    use crate::{GraphBuilder, Shape};

    #[test]
    fn write_and_parse_preserve_every_network_of_the_zoo() {
        for network in NETWORKS {
            let graph = (network.build)(&(network.defaults)()).unwrap();
            for graph in [graph.for_inference(), graph] {
                let text = write(&graph).unwrap_or_else(|error| panic!("{}: {error}", network.name));
                assert_eq!(parse(&text).unwrap(), graph, "{}", network.name);
            }
        }
    }

    #[test]
    fn write_and_parse_preserve_the_example() {
        let graph = parse(include_str!("../../../../docs/examples/small.toml")).unwrap();
        assert_eq!(parse(&write(&graph).unwrap()).unwrap(), graph);
    }

    #[test]
    fn write_omits_defaults() {
        let (mut builder, input) = GraphBuilder::new("small", Shape::image(2, 9, 9));
        let conv = Conv2d { padding_after: [0, 1], bias: true, ..Conv2d::new(2, 4, 3, 2, 0) };
        let x = builder.add("conv", conv, &[input]).unwrap();
        let norm = LocalResponseNorm { size: 5, alpha: 5e-4, beta: 0.75, k: 2.0 };
        let y = builder.add("norm", norm, &[x]).unwrap();
        builder.add("unread", Relu, &[x]).unwrap();
        let graph = builder.finish(y).unwrap();
        assert_eq!(
            write(&graph).unwrap(),
            "name = \"small\"\ninput = [2, 9, 9]\noutput = \"norm\"\n\n[[layer]]\nname = \"conv\"\nop = \
             \"conv2d\"\nout_channels = 4\n\
             kernel = 3\nstride = 2\npadding_after = [0, 1]\n\n[[layer]]\nname = \"norm\"\nop = \
             \"local_response_norm\"\nsize = 5\n\
             alpha = 0.0005\nk = 2.0\n\n[[layer]]\nname = \"unread\"\nop = \"relu\"\ninputs = \"conv\"\n"
        );
    }

    #[test]
    fn write_rejects_graphs_that_a_layer_file_cannot_represent() {
        let refused = |name: &str, conv: Conv2d| {
            let (mut builder, input) = GraphBuilder::new("net", Shape::image(1, 8, 8));
            let x = builder.add(name, conv, &[input]).unwrap();
            write(&builder.finish(x).unwrap()).unwrap_err()
        };
        let conv = Conv2d::new(1, 1, 3, 1, 1);
        assert!(matches!(refused("a b", conv), LayerFileError::InvalidValue { key: "name", .. }));
        assert!(matches!(refused("\"\nop = 'add'", conv), LayerFileError::InvalidValue { key: "name", .. }));
        let long = Conv2d { stride: [1 << 21; 2], ..conv };
        assert!(matches!(refused("a", long), LayerFileError::InvalidValue { key: "stride", .. }));
        let mut graph =
            parse("name = 'a'\ninput = [1, 4, 4]\n[[layer]]\nname = 'c'\nop = 'batch_norm2d'\n").unwrap();
        graph.parameters[2].initialisation = Initialisation::Ones;
        let message = write(&graph).unwrap_err().to_string();
        assert!(message.contains("running_mean_init"), "{message}");
    }
}
