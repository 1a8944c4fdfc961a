//! Custom networks: a TOML file that lists layers in order, described in `docs/layer-file.md`.
//!
//! Files are not trusted: parsing returns a verified graph or an error that names the layer.

mod attributes;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use attributes::{AttributeError, Attributes};
pub(crate) use write::AttributeWriter;
pub use write::write;

use crate::ops::DECLARATIONS;
use crate::{Graph, GraphBuilder, GraphError, Initialisation, Op, Operation, Shape, TensorId};
use std::collections::HashMap;
use std::fmt;
use stratus_base::{did_you_mean, nearest};
use toml::{Table, Value};

/// The maximum size of a file.
pub const MAX_FILE_BYTES: usize = 1 << 20;
/// The maximum number of layers.
const MAX_LAYERS: usize = 10_000;
/// The name of the images in `inputs`.
const INPUT: &str = "input";
/// The keys of the file.
const KEYS: &[&str] = &["name", "input", "output", "layer"];
/// The keys of every layer, whatever its operation.
const LAYER_KEYS: &[&str] = &["name", "op", "inputs", "auxiliary", "weight_init", "bias_init"];

/// An error of a layer file and its location.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LayerFileError {
    /// Invalid TOML.
    #[error("invalid TOML: {0}")]
    Syntax(String),
    /// It is too large.
    #[error("layer file too large: {size}, at most {max}")]
    TooLarge {
        /// The actual size, with its unit.
        size: String,
        /// The maximum.
        max: usize,
    },
    /// An unknown key.
    #[error("{location}: unknown key `{key}`{}; available: {known}", did_you_mean(suggestion.as_deref()))]
    UnknownKey {
        /// The file or the layer.
        location: Location,
        /// The key.
        key: String,
        /// The nearest known key.
        suggestion: Option<String>,
        /// All known keys.
        known: String,
    },
    /// An unknown operation.
    #[error(
        "{location}: unknown operation `{op}`{}; available: {known}",
        did_you_mean(suggestion.as_deref())
    )]
    UnknownOperation {
        /// The layer.
        location: Location,
        /// The operation.
        op: String,
        /// The nearest known operation.
        suggestion: Option<String>,
        /// All known operations.
        known: String,
    },
    /// A missing key without default.
    #[error("{location}: `{key}` is missing")]
    Missing {
        /// The file or the layer.
        location: Location,
        /// The key.
        key: &'static str,
    },
    /// An invalid value.
    #[error("{location}: `{key}` must be {need}")]
    InvalidValue {
        /// The file or the layer.
        location: Location,
        /// The key.
        key: &'static str,
        /// The accepted values.
        need: String,
    },
    /// An unknown or later layer in `inputs`.
    #[error("{location}: no earlier layer is named `{input}`{}", did_you_mean(suggestion.as_deref()))]
    UnknownInput {
        /// The layer that reads, or the file.
        location: Location,
        /// The name in `inputs`.
        input: String,
        /// The nearest layer.
        suggestion: Option<String>,
    },
    /// A network that a layer file cannot represent, see [`write()`].
    #[error("network `{network}` cannot be written as a layer file: {problem}")]
    Unwritable {
        /// The network.
        network: String,
        /// The part that is not representable.
        problem: String,
    },
    /// The layers do not form a valid network.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// A location in a layer file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// Outside the layers.
    File,
    /// A named layer.
    Named(String),
    /// A layer without a valid name: its position, from 1.
    Unnamed(usize),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => f.write_str("layer file"),
            Self::Named(name) => write!(f, "layer `{name}`"),
            Self::Unnamed(position) => write!(f, "layer {position}"),
        }
    }
}

impl Location {
    fn error(&self, error: AttributeError) -> LayerFileError {
        let location = self.clone();
        match error {
            AttributeError::Missing(key) => LayerFileError::Missing { location, key },
            AttributeError::Invalid { key, need } => LayerFileError::InvalidValue { location, key, need },
        }
    }

    fn known_keys<'a>(
        &self,
        table: &Table,
        known: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<(), LayerFileError> {
        match table.keys().find(|key| !known.clone().any(|known| known == *key)) {
            None => Ok(()),
            Some(key) => Err(LayerFileError::UnknownKey {
                location: self.clone(),
                key: truncated(key),
                suggestion: nearest(key, known.clone()).map(str::to_owned),
                known: known.collect::<Vec<_>>().join(", "),
            }),
        }
    }

    fn unknown_input(&self, input: &str, tensors: &HashMap<&str, TensorId>) -> LayerFileError {
        // Sorted, so that the suggestion is deterministic among equally near names.
        let mut names: Vec<&str> = tensors.keys().copied().collect();
        names.sort_unstable();
        LayerFileError::UnknownInput {
            location: self.clone(),
            input: truncated(input),
            suggestion: nearest(input, names).map(str::to_owned),
        }
    }
}

/// The text, truncated for a message.
fn truncated(text: &str) -> String {
    text.chars().take(64).collect()
}

/// The names of all operations, sorted.
pub fn operation_names() -> impl Iterator<Item = &'static str> + Clone {
    DECLARATIONS.iter().map(|declaration| declaration.name)
}

/// The table of operations in `docs/layer-file.md`.
#[must_use]
pub fn operations_table() -> String {
    let rows = DECLARATIONS.iter().map(|op| format!("| `{}` {}\n", op.name, (op.row)()));
    format!(
        "| operation | attributes (default) | input and output |\n|---|---|---|\n{}",
        rows.collect::<String>()
    )
}

/// Parses a layer file.
///
/// # Errors
/// The first error and its layer; for unknown names with the nearest known ones.
pub fn parse(text: &str) -> Result<Graph, LayerFileError> {
    parse_with_input(text, None)
}

/// [`parse`] with images of another shape, `[C, H, W]`, than the file's `input`.
///
/// # Errors
/// See [`parse`]; also if a layer rejects the shapes for such images.
pub fn parse_with_input(text: &str, images: Option<[usize; 3]>) -> Result<Graph, LayerFileError> {
    if text.len() > MAX_FILE_BYTES {
        let size = format!("{} bytes", text.len());
        return Err(LayerFileError::TooLarge { size, max: MAX_FILE_BYTES });
    }
    let table: Table = text
        .parse()
        .map_err(|error: toml::de::Error| LayerFileError::Syntax(error.to_string().trim_end().to_owned()))?;
    let file = Location::File;
    file.known_keys(&table, KEYS.iter().copied())?;
    let attributes = Attributes::new(&table);
    let name = attributes.required_name("name").map_err(|error| file.error(error))?;
    let file_input = attributes.required_image("input").map_err(|error| file.error(error))?;
    let [channels, height, width] = images.unwrap_or(file_input);
    let output = attributes.string("output").map_err(|error| file.error(error))?;
    let layers = layers(&table)?;

    let (mut graph, mut last) = GraphBuilder::new(name, Shape::image(channels, height, width));
    let mut tensors = HashMap::from([(INPUT, last)]);
    for (layer, position) in layers.into_iter().zip(1..) {
        let (name, tensor) = add(&mut graph, layer, position, &tensors, last)?;
        if tensors.insert(name, tensor).is_some() {
            let need = format!("unique; `{name}` is already used");
            return Err(LayerFileError::InvalidValue {
                location: Location::Unnamed(position),
                key: "name",
                need,
            });
        }
        last = tensor;
    }
    if let Some(output) = output {
        last = *tensors.get(output).ok_or_else(|| file.unknown_input(output, &tensors))?;
    }
    Ok(graph.finish(last)?)
}

fn layers(table: &Table) -> Result<Vec<&Table>, LayerFileError> {
    let file = Location::File;
    let Some(layers) = table.get("layer") else {
        return Err(LayerFileError::Missing { location: file, key: "layer" });
    };
    let tables: Option<Vec<&Table>> =
        layers.as_array().and_then(|layers| layers.iter().map(Value::as_table).collect());
    match tables {
        Some(tables) if tables.len() > MAX_LAYERS => {
            Err(LayerFileError::TooLarge { size: format!("{} layers", tables.len()), max: MAX_LAYERS })
        }
        Some(tables) if !tables.is_empty() => Ok(tables),
        _ => Err(LayerFileError::InvalidValue {
            location: file,
            key: "layer",
            need: "an array of tables, one [[layer]] for each layer".to_owned(),
        }),
    }
}

/// Adds a layer; returns its name and its output.
fn add<'a>(
    graph: &mut GraphBuilder,
    table: &'a Table,
    position: usize,
    tensors: &HashMap<&str, TensorId>,
    before: TensorId,
) -> Result<(&'a str, TensorId), LayerFileError> {
    let attributes = Attributes::new(table);
    let name = attributes.required_name("name").map_err(|error| Location::Unnamed(position).error(error))?;
    let location = Location::Named(name.to_owned());
    let located = |error| location.error(error);
    let op = attributes.string("op").map_err(located)?;
    let op = op.ok_or(AttributeError::Missing("op")).map_err(located)?;
    let names = operation_names();
    let Some(declaration) = DECLARATIONS.iter().find(|declaration| declaration.name == op) else {
        return Err(LayerFileError::UnknownOperation {
            location,
            op: truncated(op),
            suggestion: nearest(op, names.clone()).map(str::to_owned),
            known: names.collect::<Vec<_>>().join(", "),
        });
    };
    location.known_keys(table, LAYER_KEYS.iter().chain(declaration.keys).copied())?;

    let inputs: Vec<TensorId> = match attributes.strings("inputs").map_err(located)? {
        None => vec![before],
        Some(inputs) => inputs
            .into_iter()
            .map(|input| tensors.get(input).copied().ok_or_else(|| location.unknown_input(input, tensors)))
            .collect::<Result<_, _>>()?,
    };
    let shapes: Vec<&Shape> = inputs.iter().map(|&input| graph.shape(input)).collect();
    let op = (declaration.build)(&attributes, &shapes).map_err(located)?;
    let initial = initial(&attributes, &op).map_err(located)?;
    let auxiliary = attributes.number("auxiliary").map_err(located)?;
    let output = graph.add_with_init(name, op, &inputs, &initial)?;
    if let Some(weight) = auxiliary {
        graph.auxiliary(output, weight);
    }
    Ok((name, output))
}

/// The initialisations that the file sets.
fn initial(
    attributes: &Attributes<'_>,
    op: &Op,
) -> Result<Vec<(&'static str, Initialisation)>, AttributeError> {
    let fan_out = op.fan_out().unwrap_or(1);
    let mut initial = Vec::new();
    let convolution = if let Op::Conv2d(conv) = op { Some(conv) } else { None };
    for (parameter, key, convolution) in [("weight", "weight_init", convolution), ("bias", "bias_init", None)]
    {
        if let Some(initialisation) = attributes.initialisation(key, fan_out, convolution)? {
            initial.push((parameter, initialisation));
        }
    }
    Ok(initial)
}
