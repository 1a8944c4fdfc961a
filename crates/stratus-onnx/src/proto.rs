//! The used subset of ONNX's protobuf messages, with the field numbers of `onnx.proto3`. All messages borrow
//! from the file.

use crate::error::{Parsed, Problem};
use crate::wire::{FieldValue, Fields};

/// The maximum number of nodes, initialisers or value descriptions of a graph.
const MAX_GRAPH_ITEMS: usize = 100_000;
/// The maximum number of attributes of all nodes: in memory they are many times larger than in a file.
const MAX_GRAPH_ATTRIBUTES: usize = 4 * MAX_GRAPH_ITEMS;
/// The maximum number of attributes of a node, and of external-data entries of a tensor.
const MAX_ATTRIBUTES: usize = 64;
/// The maximum number of dimensions of a tensor.
pub(crate) const MAX_RANK: usize = 16;

/// `ModelProto`.
#[derive(Debug, Default)]
pub(crate) struct Model<'a> {
    /// The length of the file.
    pub file_bytes: u64,
    pub graph: Graph<'a>,
    /// The operator set of `ai.onnx`; 0 if not given.
    pub opset: i64,
    /// The domain and name of each function.
    pub functions: Vec<(&'a str, &'a str)>,
    /// The keys and values of `metadata_props`.
    pub metadata: Vec<(&'a str, &'a str)>,
}

/// `GraphProto`.
#[derive(Debug, Default)]
pub(crate) struct Graph<'a> {
    pub nodes: Vec<Node<'a>>,
    pub initialisers: Vec<Tensor<'a>>,
    pub inputs: Vec<ValueInfo<'a>>,
    pub outputs: Vec<ValueInfo<'a>>,
    /// The types and shapes that the file records for values in between.
    pub value_infos: Vec<ValueInfo<'a>>,
}

/// `NodeProto`.
#[derive(Debug, Default)]
pub(crate) struct Node<'a> {
    pub name: &'a str,
    pub operator: &'a str,
    pub domain: &'a str,
    pub doc: &'a str,
    pub inputs: Vec<&'a str>,
    pub outputs: Vec<&'a str>,
    pub attributes: Vec<Attribute<'a>>,
}

/// `AttributeProto`. Missing fields are zero or empty.
#[derive(Debug, Default)]
pub(crate) struct Attribute<'a> {
    pub name: &'a str,
    pub float: f32,
    pub int: i64,
    pub text: &'a [u8],
    /// A tensor, sparse or not.
    pub tensor: Option<Box<Tensor<'a>>>,
    pub floats: Vec<f32>,
    pub ints: Vec<i64>,
    /// `AttributeProto.AttributeType`.
    pub kind: i64,
    /// True if it refers to an attribute of the enclosing function.
    pub is_reference: bool,
}

/// `TensorProto`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tensor<'a> {
    pub name: &'a str,
    pub dimensions: Vec<i64>,
    /// `TensorProto.DataType`.
    pub kind: i64,
    pub raw: Option<&'a [u8]>,
    pub floats: Vec<f32>,
    pub doubles: Vec<f64>,
    /// `int32_data` or `int64_data`.
    pub ints: Vec<i64>,
    /// The keys and values of `external_data`.
    pub external: Vec<(&'a str, &'a str)>,
    /// True if the values are in another file.
    pub is_external: bool,
    /// The positions of the values of a sparse tensor (`SparseTensorProto`); other elements are zero.
    pub indices: Option<Box<Indices<'a>>>,
}

/// The positions of the values of a sparse tensor.
#[derive(Clone, Debug, Default)]
pub(crate) struct Indices<'a> {
    /// Row-major positions, shape `[values]`, or indices, shape `[values, dimensions]`.
    pub positions: Tensor<'a>,
    /// The shape of the values.
    pub values: Vec<i64>,
}

/// `ValueInfoProto` of a tensor.
#[derive(Debug, Default)]
pub(crate) struct ValueInfo<'a> {
    pub name: &'a str,
    /// `TensorProto.DataType`; 0 if not given.
    pub kind: i64,
    /// The dimensions, each `None` if not fixed; `None` if there is no shape.
    pub shape: Option<Vec<Option<i64>>>,
}

fn push<T>(list: &mut Vec<T>, item: T, max: usize, items: &'static str) -> Parsed<()> {
    if list.len() == max {
        return Err(Problem::Limit { items, limit: max as u64 });
    }
    list.push(item);
    Ok(())
}

impl<'a> Model<'a> {
    pub fn read(bytes: &'a [u8]) -> Parsed<Self> {
        let (mut graph, mut opset, mut metadata, mut functions) = (None, 0, Vec::new(), Vec::new());
        for field in Fields::new(bytes) {
            match field? {
                (7, _) if graph.is_some() => return Err(Problem::damaged("more than one graph")),
                (7, value) => graph = Some(Graph::read(value.bytes()?)?),
                (8, value) => {
                    let (domain, version) = operator_set(value.bytes()?)?;
                    if is_onnx(domain) {
                        if opset != 0 && opset != version {
                            let problem = format!("conflicting operator sets {opset} and {version}");
                            return Err(Problem::damaged(problem));
                        }
                        opset = version;
                    }
                }
                (14, value) => {
                    push(&mut metadata, string_entry(value)?, MAX_GRAPH_ITEMS, "metadata entries")?;
                }
                (25, value) => push(&mut functions, function(value.bytes()?)?, MAX_GRAPH_ITEMS, "functions")?,
                _ => {}
            }
        }
        let graph = graph.ok_or_else(|| Problem::damaged("no graph"))?;
        Ok(Self { file_bytes: bytes.len() as u64, graph, opset, functions, metadata })
    }
}

/// Returns whether a domain is that of ONNX's own operators.
pub(crate) fn is_onnx(domain: &str) -> bool {
    domain.is_empty() || domain == "ai.onnx"
}

fn operator_set(bytes: &[u8]) -> Parsed<(&str, i64)> {
    let (mut domain, mut version) = ("", 0);
    for field in Fields::new(bytes) {
        match field? {
            (1, value) => domain = value.text()?,
            (2, value) => version = value.int()?,
            _ => {}
        }
    }
    Ok((domain, version))
}

/// Reads the domain and name of a `FunctionProto`.
fn function(bytes: &[u8]) -> Parsed<(&str, &str)> {
    let (mut domain, mut name) = ("", "");
    for field in Fields::new(bytes) {
        match field? {
            (1, value) => name = value.text()?,
            (10, value) => domain = value.text()?,
            _ => {}
        }
    }
    Ok((domain, name))
}

impl<'a> Graph<'a> {
    fn read(bytes: &'a [u8]) -> Parsed<Self> {
        let mut graph = Self::default();
        let mut attributes = 0;
        for field in Fields::new(bytes) {
            let (number, value) = field?;
            match number {
                1 => {
                    let node = Node::read(value.bytes()?)?;
                    attributes += node.attributes.len();
                    if attributes > MAX_GRAPH_ATTRIBUTES {
                        return Err(Problem::Limit {
                            items: "attributes",
                            limit: MAX_GRAPH_ATTRIBUTES as u64,
                        });
                    }
                    push(&mut graph.nodes, node, MAX_GRAPH_ITEMS, "nodes")?;
                }
                5 => {
                    let tensor = Tensor::read(value.bytes()?)?;
                    push(&mut graph.initialisers, tensor, MAX_GRAPH_ITEMS, "initialisers")?;
                }
                11 => push(&mut graph.inputs, ValueInfo::read(value.bytes()?)?, MAX_GRAPH_ITEMS, "inputs")?,
                12 => push(&mut graph.outputs, ValueInfo::read(value.bytes()?)?, MAX_GRAPH_ITEMS, "outputs")?,
                13 => {
                    let info = ValueInfo::read(value.bytes()?)?;
                    push(&mut graph.value_infos, info, MAX_GRAPH_ITEMS, "value descriptions")?;
                }
                15 => {
                    let tensor = Tensor::read_sparse(value.bytes()?)?;
                    push(&mut graph.initialisers, tensor, MAX_GRAPH_ITEMS, "initialisers")?;
                }
                _ => {}
            }
        }
        Ok(graph)
    }
}

impl<'a> Node<'a> {
    fn read(bytes: &'a [u8]) -> Parsed<Self> {
        let mut node = Self::default();
        for field in Fields::new(bytes) {
            let (number, value) = field?;
            match number {
                1 => push(&mut node.inputs, value.text()?, MAX_GRAPH_ITEMS, "inputs of a node")?,
                2 => push(&mut node.outputs, value.text()?, MAX_GRAPH_ITEMS, "outputs of a node")?,
                3 => node.name = value.text()?,
                4 => node.operator = value.text()?,
                5 => {
                    let attribute = Attribute::read(value.bytes()?)?;
                    push(&mut node.attributes, attribute, MAX_ATTRIBUTES, "attributes of a node")?;
                }
                6 => node.doc = value.text()?,
                7 => node.domain = value.text()?,
                _ => {}
            }
        }
        Ok(node)
    }

    /// The attribute with a name.
    pub fn attribute(&self, name: &str) -> Option<&Attribute<'a>> {
        self.attributes.iter().find(|attribute| attribute.name == name)
    }

    /// The name of an input, or `None` if it is omitted.
    pub fn input(&self, position: usize) -> Option<&'a str> {
        self.inputs.get(position).copied().filter(|name| !name.is_empty())
    }
}

impl<'a> Attribute<'a> {
    fn read(bytes: &'a [u8]) -> Parsed<Self> {
        let mut attribute = Self::default();
        for field in Fields::new(bytes) {
            let (number, value) = field?;
            match number {
                1 => attribute.name = value.text()?,
                2 => attribute.float = value.float()?,
                3 => attribute.int = value.int()?,
                4 => attribute.text = value.bytes()?,
                5 => attribute.tensor = Some(Tensor::read(value.bytes()?)?.into()),
                7 => value.floats(&mut attribute.floats)?,
                8 => value.ints(&mut attribute.ints)?,
                20 => attribute.kind = value.int()?,
                21 => attribute.is_reference = !value.text()?.is_empty(),
                22 => attribute.tensor = Some(Tensor::read_sparse(value.bytes()?)?.into()),
                _ => {}
            }
        }
        Ok(attribute)
    }
}

impl<'a> Tensor<'a> {
    fn read(bytes: &'a [u8]) -> Parsed<Self> {
        let mut tensor = Self::default();
        for field in Fields::new(bytes) {
            let (number, value) = field?;
            match number {
                1 => value.ints(&mut tensor.dimensions)?,
                2 => tensor.kind = value.int()?,
                4 => value.floats(&mut tensor.floats)?,
                5 | 7 => value.ints(&mut tensor.ints)?,
                8 => tensor.name = value.text()?,
                9 => tensor.raw = Some(value.bytes()?),
                10 => value.doubles(&mut tensor.doubles)?,
                13 => {
                    let entry = string_entry(value)?;
                    push(&mut tensor.external, entry, MAX_ATTRIBUTES, "external-data entries of a tensor")?;
                }
                14 => tensor.is_external = value.int()? == 1,
                _ => {}
            }
        }
        if tensor.dimensions.len() > MAX_RANK {
            return Err(Problem::Limit { items: "dimensions of a tensor", limit: MAX_RANK as u64 });
        }
        Ok(tensor)
    }
}

impl<'a> Tensor<'a> {
    /// The value of a key of `external_data`.
    pub fn external_entry(&self, key: &str) -> Option<&'a str> {
        self.external.iter().find(|(found, _)| *found == key).map(|(_, value)| *value)
    }

    /// Reads a `SparseTensorProto`, whose name is that of its values.
    fn read_sparse(bytes: &'a [u8]) -> Parsed<Self> {
        let (mut tensor, mut positions, mut dimensions) = (Self::default(), Self::default(), Vec::new());
        for field in Fields::new(bytes) {
            match field? {
                (1, value) => tensor = Self::read(value.bytes()?)?,
                (2, value) => positions = Self::read(value.bytes()?)?,
                (3, value) => value.ints(&mut dimensions)?,
                _ => {}
            }
        }
        if dimensions.len() > MAX_RANK {
            return Err(Problem::Limit { items: "dimensions of a tensor", limit: MAX_RANK as u64 });
        }
        let values = std::mem::replace(&mut tensor.dimensions, dimensions);
        Ok(Self { indices: Some(Box::new(Indices { positions, values })), ..tensor })
    }
}

fn string_entry(value: FieldValue<'_>) -> Parsed<(&str, &str)> {
    let mut entry = ("", "");
    for field in Fields::new(value.bytes()?) {
        match field? {
            (1, key) => entry.0 = key.text()?,
            (2, value) => entry.1 = value.text()?,
            _ => {}
        }
    }
    Ok(entry)
}

impl<'a> ValueInfo<'a> {
    fn read(bytes: &'a [u8]) -> Parsed<Self> {
        let mut info = Self::default();
        for field in Fields::new(bytes) {
            match field? {
                (1, value) => info.name = value.text()?,
                (2, value) => info.read_type(value.bytes()?)?,
                _ => {}
            }
        }
        Ok(info)
    }

    /// Reads the tensor type of a `TypeProto`.
    fn read_type(&mut self, bytes: &[u8]) -> Parsed<()> {
        for field in Fields::new(bytes) {
            let (1, value) = field? else { continue };
            for field in Fields::new(value.bytes()?) {
                match field? {
                    (1, value) => self.kind = value.int()?,
                    (2, value) => self.shape = Some(read_shape(value.bytes()?)?),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// Reads a `TensorShapeProto`.
fn read_shape(bytes: &[u8]) -> Parsed<Vec<Option<i64>>> {
    let mut dims = Vec::new();
    for field in Fields::new(bytes) {
        let (1, value) = field? else { continue };
        let mut dim = None;
        for field in Fields::new(value.bytes()?) {
            if let (1, value) = field? {
                dim = Some(value.int()?);
            }
        }
        push(&mut dims, dim, MAX_RANK, "dimensions of a tensor")?;
    }
    Ok(dims)
}
