//! The encoded nodes and constants of an export, with unique names.

use crate::quantised::{QuantisedLayers, Uint8Map};
use std::collections::{HashMap, HashSet};
use stratus_base::protobuf::Message;
use stratus_graph::{Graph, TensorId};

/// The name of the images, `[batch, channels, height, width]`.
pub const INPUT: &str = "input";
/// The name of the logits, `[batch, classes]`.
pub const OUTPUT: &str = "output";

/// `TensorProto.DataType.FLOAT`.
pub(crate) const FLOAT: i64 = 1;
/// `TensorProto.DataType.UINT8`.
const UINT8: i64 = 2;
/// `TensorProto.DataType.INT8`.
const INT8: i64 = 3;
/// `TensorProto.DataType.INT32`.
const INT32: i64 = 6;
/// `TensorProto.DataType.INT64`.
const INT64: i64 = 7;

/// A `TensorProto` without its values.
pub(crate) fn tensor_head(name: &str, shape: &[usize], kind: i64) -> Message {
    let head = shape.iter().fold(Message::default(), |head, &dim| head.int(1, dim as i64));
    head.int(2, kind).bytes(8, name.as_bytes())
}

/// The attributes of a node.
#[derive(Default)]
pub(crate) struct Attributes(Vec<Message>);

impl Attributes {
    pub fn int(mut self, name: &str, value: i64) -> Self {
        self.0.push(Message::default().bytes(1, name.as_bytes()).int(3, value).int(20, 2));
        self
    }

    pub fn float(mut self, name: &str, value: f32) -> Self {
        self.0.push(Message::default().bytes(1, name.as_bytes()).float(2, value).int(20, 1));
        self
    }

    pub fn text(mut self, name: &str, value: &str) -> Self {
        let head = Message::default().bytes(1, name.as_bytes());
        self.0.push(head.bytes(4, value.as_bytes()).int(20, 3));
        self
    }

    pub fn ints(mut self, name: &str, values: &[usize]) -> Self {
        let head = Message::default().bytes(1, name.as_bytes());
        self.0.push(values.iter().fold(head, |message, &value| message.int(8, value as i64)).int(20, 7));
        self
    }
}

pub(crate) struct Export<'a> {
    pub graph: &'a Graph,
    /// The name of every tensor produced so far.
    pub tensors: HashMap<TensorId, String>,
    /// The used names of tensors and initialisers.
    names: HashSet<String>,
    /// The encoded nodes.
    pub nodes: Message,
    /// The encoded initialisers that are not parameters.
    pub constants: Vec<Message>,
    /// The layers that ONNX cannot express.
    pub unsupported: Vec<String>,
    /// The layers that run in int8.
    pub quantised: Option<&'a QuantisedLayers>,
    /// The names of tensors that were converted to bytes and back.
    pub in_int8: HashMap<TensorId, (String, Uint8Map)>,
}

impl<'a> Export<'a> {
    pub fn new(graph: &'a Graph, quantised: Option<&'a QuantisedLayers>) -> Self {
        let fixed = [INPUT, OUTPUT].into_iter().chain(graph.parameters.iter().map(|p| p.name.as_str()));
        Self {
            graph,
            tensors: HashMap::from([(graph.input, INPUT.to_owned())]),
            names: fixed.map(str::to_owned).collect(),
            nodes: Message::default(),
            constants: Vec::new(),
            unsupported: Vec::new(),
            quantised,
            in_int8: HashMap::new(),
        }
    }

    /// Returns an unused name.
    pub fn unique(&mut self, base: &str) -> String {
        let mut name = base.to_owned();
        while !self.names.insert(name.clone()) {
            name.push('_');
        }
        name
    }

    /// Adds a floating-point initialiser that is not a parameter, and returns its name.
    pub fn constant(&mut self, base: &str, shape: &[usize], values: &[f32]) -> String {
        let name = self.unique(base);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constants.push(tensor_head(&name, shape, FLOAT).bytes(9, &bytes));
        name
    }

    /// Adds an initialiser of 64-bit integers, and returns its name.
    pub fn int64_constant(&mut self, base: &str, values: &[usize]) -> String {
        let name = self.unique(base);
        let bytes: Vec<u8> = values.iter().flat_map(|value| (*value as i64).to_le_bytes()).collect();
        self.constants.push(tensor_head(&name, &[values.len()], INT64).bytes(9, &bytes));
        name
    }

    /// Adds an initialiser of bytes, and returns its name.
    pub fn byte_constant(&mut self, base: &str, shape: &[usize], values: &[u8]) -> String {
        self.raw_constant(base, shape, UINT8, values)
    }

    /// Adds an initialiser of signed bytes, and returns its name.
    pub fn signed_byte_constant(&mut self, base: &str, shape: &[usize], values: &[i8]) -> String {
        let bytes: Vec<u8> = values.iter().map(|value| value.to_le_bytes()[0]).collect();
        self.raw_constant(base, shape, INT8, &bytes)
    }

    /// Adds an initialiser of 32-bit integers, and returns its name.
    pub fn int32_constant(&mut self, base: &str, shape: &[usize], values: &[i32]) -> String {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.raw_constant(base, shape, INT32, &bytes)
    }

    fn raw_constant(&mut self, base: &str, shape: &[usize], kind: i64, bytes: &[u8]) -> String {
        let name = self.unique(base);
        self.constants.push(tensor_head(&name, shape, kind).bytes(9, bytes));
        name
    }

    pub fn push(
        &mut self,
        name: &str,
        operator: &str,
        doc: &str,
        inputs: &[String],
        output: &str,
        attributes: &Attributes,
    ) {
        let mut node = inputs.iter().fold(Message::default(), |node, input| node.bytes(1, input.as_bytes()));
        node = node.bytes(2, output.as_bytes()).bytes(3, name.as_bytes()).bytes(4, operator.as_bytes());
        node = attributes.0.iter().fold(node, |node, attribute| node.bytes(5, &attribute.0));
        if !doc.is_empty() {
            node = node.bytes(6, doc.as_bytes());
        }
        let nodes = std::mem::take(&mut self.nodes);
        self.nodes = nodes.bytes(1, &node.0);
    }
}
