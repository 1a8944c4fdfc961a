//! Networks of one's own: a TOML file that lists layers in order. `docs/layer-file.md` describes it.
//!
//! A file may come from anywhere: whatever it says, the answer is a verified graph or an error that names
//! the layer.

mod attributes;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use attributes::{AttributeError, Attributes};
pub(crate) use write::Written;
pub use write::write;

use crate::ops::DECLARATIONS;
use crate::{Graph, GraphBuilder, GraphError, Initialisation, Op, Shape, TensorId};
use std::collections::HashMap;
use std::fmt;
use stratus_base::{did_you_mean, nearest};
use toml::{Table, Value};

/// The longest text that is read, in bytes.
pub const LONGEST: usize = 1 << 20;
/// The most layers.
const MOST_LAYERS: usize = 10_000;
/// How `inputs` names the images.
const INPUT: &str = "input";
/// The keys of the file.
const KEYS: &[&str] = &["name", "input", "output", "layer"];
/// The keys of every layer, whatever its operation.
const LAYER_KEYS: &[&str] = &["name", "op", "inputs", "auxiliary", "weight_init", "bias_init"];

/// What is wrong with a layer file, and where.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LayerFileError {
    /// It is not TOML.
    #[error("it is not TOML: {0}")]
    Syntax(String),
    /// It is longer than any network.
    #[error("it has {size}, more than {most}")]
    TooLong {
        /// What there is too much of.
        size: String,
        /// The most there may be.
        most: usize,
    },
    /// A key that nothing reads.
    #[error("{place}: there is no key `{key}`{}; known are {known}", did_you_mean(suggestion.as_deref()))]
    UnknownKey {
        /// The file or the layer.
        place: Place,
        /// The key.
        key: String,
        /// The nearest known key.
        suggestion: Option<String>,
        /// All known keys.
        known: String,
    },
    /// An operation that does not exist.
    #[error(
        "{place}: there is no operation `{op}`{}; known are {known}",
        did_you_mean(suggestion.as_deref())
    )]
    UnknownOperation {
        /// The layer.
        place: Place,
        /// The operation.
        op: String,
        /// The nearest known operation.
        suggestion: Option<String>,
        /// All known operations.
        known: String,
    },
    /// A key without default that is not there.
    #[error("{place}: `{key}` is missing")]
    Missing {
        /// The file or the layer.
        place: Place,
        /// The key.
        key: &'static str,
    },
    /// A value that is not what its key takes.
    #[error("{place}: `{key}` is {need}")]
    Wrong {
        /// The file or the layer.
        place: Place,
        /// The key.
        key: &'static str,
        /// What it should be.
        need: String,
    },
    /// A layer is read that is not there yet.
    #[error("{place}: no layer before it is named `{input}`{}", did_you_mean(suggestion.as_deref()))]
    UnknownInput {
        /// The layer that reads, or the file.
        place: Place,
        /// What it reads.
        input: String,
        /// The nearest layer.
        suggestion: Option<String>,
    },
    /// A network that no layer file describes, see [`write()`].
    #[error("no layer file describes network `{network}`: {problem}")]
    Unwritable {
        /// The network.
        network: String,
        /// What would be another.
        problem: String,
    },
    /// The layers do not fit together.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// Where in a layer file something is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Outside the layers.
    File,
    /// A layer that has a name.
    Layer(String),
    /// A layer without a name that can be used: its position, from 1.
    Position(usize),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => f.write_str("layer file"),
            Self::Layer(name) => write!(f, "layer `{name}`"),
            Self::Position(position) => write!(f, "layer {position}"),
        }
    }
}

impl Place {
    fn error(&self, error: AttributeError) -> LayerFileError {
        let place = self.clone();
        match error {
            AttributeError::Missing(key) => LayerFileError::Missing { place, key },
            AttributeError::Wrong { key, need } => LayerFileError::Wrong { place, key, need },
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
                place: self.clone(),
                key: shortened(key),
                suggestion: nearest(key, known.clone()).map(str::to_owned),
                known: known.collect::<Vec<_>>().join(", "),
            }),
        }
    }

    fn unknown_input(&self, input: &str, made: &HashMap<&str, TensorId>) -> LayerFileError {
        // Sorted, so that of equally near names it is always the same one.
        let mut names: Vec<&str> = made.keys().copied().collect();
        names.sort_unstable();
        LayerFileError::UnknownInput {
            place: self.clone(),
            input: shortened(input),
            suggestion: nearest(input, names).map(str::to_owned),
        }
    }
}

/// What was written, cut to what fits in a message.
fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

/// The network that a layer file describes.
///
/// # Errors
/// What is wrong, and in which layer; unknown names are answered with the nearest known ones.
pub fn parse(text: &str) -> Result<Graph, LayerFileError> {
    parse_for(text, None)
}

/// The same for images of another shape, `[C, H, W]`, than the file's `input`.
///
/// # Errors
/// As [`parse`]; also where a layer cannot take what comes of such images.
pub fn parse_for(text: &str, images: Option<[usize; 3]>) -> Result<Graph, LayerFileError> {
    if text.len() > LONGEST {
        let size = format!("{} bytes", text.len());
        return Err(LayerFileError::TooLong { size, most: LONGEST });
    }
    let table: Table = text
        .parse()
        .map_err(|error: toml::de::Error| LayerFileError::Syntax(error.to_string().trim_end().to_owned()))?;
    let file = Place::File;
    file.known_keys(&table, KEYS.iter().copied())?;
    let attributes = Attributes::new(&table);
    let name = attributes.needed_name("name").map_err(|error| file.error(error))?;
    let own = attributes.needed_image("input").map_err(|error| file.error(error))?;
    let [channels, height, width] = images.unwrap_or(own);
    let output = attributes.text("output").map_err(|error| file.error(error))?;
    let layers = layers(&table)?;

    let (mut graph, mut last) = GraphBuilder::new(name, Shape::image(channels, height, width));
    let mut made = HashMap::from([(INPUT, last)]);
    for (layer, position) in layers.into_iter().zip(1..) {
        let (name, tensor) = add(&mut graph, layer, position, &made, last)?;
        if made.insert(name, tensor).is_some() {
            let need = format!("a name of its own; `{name}` is taken");
            return Err(LayerFileError::Wrong { place: Place::Position(position), key: "name", need });
        }
        last = tensor;
    }
    if let Some(output) = output {
        last = *made.get(output).ok_or_else(|| file.unknown_input(output, &made))?;
    }
    Ok(graph.finish(last)?)
}

fn layers(table: &Table) -> Result<Vec<&Table>, LayerFileError> {
    let file = Place::File;
    let Some(layers) = table.get("layer") else {
        return Err(LayerFileError::Missing { place: file, key: "layer" });
    };
    let tables: Option<Vec<&Table>> =
        layers.as_array().and_then(|layers| layers.iter().map(Value::as_table).collect());
    match tables {
        Some(tables) if tables.len() > MOST_LAYERS => {
            Err(LayerFileError::TooLong { size: format!("{} layers", tables.len()), most: MOST_LAYERS })
        }
        Some(tables) if !tables.is_empty() => Ok(tables),
        _ => Err(LayerFileError::Wrong {
            place: file,
            key: "layer",
            need: "written as [[layer]], once for each layer".to_owned(),
        }),
    }
}

/// Adds a layer; returns its name and its output.
fn add<'a>(
    graph: &mut GraphBuilder,
    table: &'a Table,
    position: usize,
    made: &HashMap<&str, TensorId>,
    before: TensorId,
) -> Result<(&'a str, TensorId), LayerFileError> {
    let attributes = Attributes::new(table);
    let name = attributes.needed_name("name").map_err(|error| Place::Position(position).error(error))?;
    let place = Place::Layer(name.to_owned());
    let wrong = |error| place.error(error);
    let op = attributes.text("op").map_err(wrong)?;
    let op = op.ok_or(AttributeError::Missing("op")).map_err(wrong)?;
    let names = DECLARATIONS.iter().map(|declaration| declaration.name);
    let Some(declaration) = DECLARATIONS.iter().find(|declaration| declaration.name == op) else {
        return Err(LayerFileError::UnknownOperation {
            place,
            op: shortened(op),
            suggestion: nearest(op, names.clone()).map(str::to_owned),
            known: names.collect::<Vec<_>>().join(", "),
        });
    };
    place.known_keys(table, LAYER_KEYS.iter().chain(declaration.keys).copied())?;

    let inputs: Vec<TensorId> = match attributes.texts("inputs").map_err(wrong)? {
        None => vec![before],
        Some(inputs) => inputs
            .into_iter()
            .map(|input| made.get(input).copied().ok_or_else(|| place.unknown_input(input, made)))
            .collect::<Result<_, _>>()?,
    };
    let shapes: Vec<&Shape> = inputs.iter().map(|&input| graph.shape(input)).collect();
    let op = (declaration.build)(&attributes, &shapes).map_err(wrong)?;
    let initial = initial(&attributes, &op).map_err(wrong)?;
    let auxiliary = attributes.number("auxiliary").map_err(wrong)?;
    let output = graph.add_with(name, op, &inputs, &initial)?;
    if let Some(weight) = auxiliary {
        graph.auxiliary(output, weight);
    }
    Ok((name, output))
}

/// How the parameters begin for which the file says it.
fn initial(
    attributes: &Attributes<'_>,
    op: &Op,
) -> Result<Vec<(&'static str, Initialisation)>, AttributeError> {
    let fan_out = match op {
        Op::Conv2d(conv) => conv.fan_out(),
        Op::ConvTranspose2d(conv) => conv.transposed().fan_out(),
        Op::Linear(linear) => linear.out_features,
        Op::PointwiseLinear(linear) => linear.out_channels,
        _ => 1,
    };
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
