//! The graph of a network for TensorBoard.
//!
//! Sources: `tensorflow/core/framework/graph.proto`, `node_def.proto`, `attr_value.proto`,
//! `tensor_shape.proto`.

use stratus_base::protobuf::Message;
use stratus_graph::{Graph, Operation, Shape};

/// The name of the input node.
const INPUT: &str = "images";

/// The network as a `GraphDef` message: a node per layer, nested by the dots in its name, with the shape of
/// one sample on each edge.
pub(super) fn definition(graph: &Graph) -> Vec<u8> {
    let first = node(INPUT, "images", &[], &[("_output_shapes", shapes(graph.input_shape()))]);
    let mut message = Message::default().bytes(1, &first.0);
    let producer =
        |tensor| graph.nodes.iter().find(|node| node.output == tensor).map(|node| node.name.as_str());
    for layer in &graph.nodes {
        let inputs: Vec<String> =
            layer.inputs.iter().map(|&tensor| path(producer(tensor).unwrap_or(INPUT))).collect();
        let parameters: usize = layer.parameters.iter().map(|&id| graph.parameters[id.0].elements()).sum();
        let mut attributes = vec![("_output_shapes", shapes(graph.shape(layer.output)))];
        let text = layer.op.attributes();
        if !text.is_empty() {
            attributes.push(("attributes", Message::default().bytes(2, text.as_bytes())));
        }
        if parameters > 0 {
            attributes.push(("parameters", Message::default().unsigned(3, parameters as u64)));
        }
        message = message.bytes(1, &node(&path(&layer.name), layer.op.kind(), &inputs, &attributes).0);
    }
    message.0
}

/// A layer's name with `/` as the separator of blocks.
fn path(name: &str) -> String {
    name.replace('.', "/")
}

fn node(name: &str, kind: &str, inputs: &[String], attributes: &[(&str, Message)]) -> Message {
    let mut message = Message::default().bytes(1, name.as_bytes()).bytes(2, kind.as_bytes());
    for input in inputs {
        message = message.bytes(3, input.as_bytes());
    }
    for (key, value) in attributes {
        message = message.bytes(5, &Message::default().bytes(1, key.as_bytes()).bytes(2, &value.0).0);
    }
    message
}

/// An attribute with a list of one shape.
fn shapes(shape: &Shape) -> Message {
    let mut dimensions = Message::default();
    for &extent in &shape.0 {
        dimensions = dimensions.bytes(2, &Message::default().unsigned(1, extent as u64).0);
    }
    Message::default().bytes(1, &Message::default().bytes(7, &dimensions.0).0)
}
