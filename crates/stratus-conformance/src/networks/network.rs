//! A network as text: layers whose attributes can be changed one by one, and how it is trained.

use std::fmt::Write as _;
use stratus_engine::LossFunction;
use stratus_graph::layer_file::{self, LayerFileError};
use stratus_graph::{Graph, Shape};

/// A layer, as in a layer file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Layer {
    pub name: String,
    pub op: &'static str,
    pub inputs: Vec<String>,
    /// Keys and values.
    pub attributes: Vec<(&'static str, String)>,
}

/// The data, the loss and the compilation of a training step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The samples of the batch.
    pub batch: usize,
    /// The seed of weights, images and labels.
    pub data: u64,
    /// True if classes have weights in the loss.
    pub class_weights: bool,
    /// True if labels are smoothed in training.
    pub smoothing: bool,
    /// True if some labels are negative, which the loss ignores.
    pub ignored_labels: bool,
    /// True if samples have several targets instead of a class; pixels always have a class.
    pub targets: bool,
    /// True if activations are recomputed where possible.
    pub recompute: bool,
    /// True if the batch is divided into tiles of one sample where possible.
    pub tiles: bool,
    /// The position of the layout of feature maps among those of the backend.
    pub layout: usize,
}

impl Settings {
    /// The plainest settings, with this data.
    pub(super) fn plain(data: u64) -> Self {
        Self {
            batch: 1,
            data,
            class_weights: false,
            smoothing: false,
            ignored_labels: false,
            targets: false,
            recompute: false,
            tiles: false,
            layout: 0,
        }
    }

    /// The loss of an output of a shape. The seed of the data decides between the losses of targets.
    pub(super) fn loss(&self, output: &Shape) -> LossFunction {
        match (self.targets && output.0.len() == 1, self.data % 3) {
            (false, _) => LossFunction::CrossEntropy,
            (true, 0) => LossFunction::BinaryCrossEntropy,
            (true, 1) => LossFunction::SquaredError,
            (true, _) => LossFunction::Huber,
        }
    }

    /// The settings as `key=value`, separated by spaces, as the first line of a printed network has them.
    fn line(&self) -> String {
        let Self { batch, data, layout, .. } = self;
        let mut line = format!("batch={batch} data={data} layout={layout}");
        for (key, flag) in FLAGS {
            if *flag(&mut self.clone()) {
                let _ = write!(line, " {key}");
            }
        }
        line
    }

    /// Reads the line that [`Network::text`] writes; unknown words are an error.
    fn from_line(line: &str) -> Result<Self, String> {
        let mut settings = Self::plain(0);
        for word in line.split_whitespace() {
            let number = |text: &str| text.parse::<u64>().map_err(|error| format!("`{word}`: {error}"));
            match word.split_once('=') {
                Some(("batch", value)) => settings.batch = number(value)? as usize,
                Some(("data", value)) => settings.data = number(value)?,
                Some(("layout", value)) => settings.layout = number(value)? as usize,
                _ => match FLAGS.iter().find(|(key, _)| *key == word) {
                    Some((_, flag)) => *flag(&mut settings) = true,
                    None => return Err(format!("unknown setting `{word}`")),
                },
            }
        }
        Ok(settings)
    }
}

/// A setting that is true or false.
type Flag = fn(&mut Settings) -> &mut bool;

/// The settings that are true or false; a network shrinks towards false.
pub(super) const FLAGS: [(&str, Flag); 6] = [
    ("class_weights", |settings| &mut settings.class_weights),
    ("smoothing", |settings| &mut settings.smoothing),
    ("ignored_labels", |settings| &mut settings.ignored_labels),
    ("targets", |settings| &mut settings.targets),
    ("recompute", |settings| &mut settings.recompute),
    ("tiles", |settings| &mut settings.tiles),
];

/// The comment that precedes the settings of a printed network.
const SETTINGS: &str = "# settings: ";

/// A generated network with its settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// The name.
    pub name: String,
    /// How it is trained.
    pub settings: Settings,
    pub(super) input: [usize; 3],
    pub(super) layers: Vec<Layer>,
    /// The layer that the loss reads.
    pub(super) output: String,
}

impl Network {
    /// The layer file, after a comment with the settings.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{SETTINGS}{}\n", self.settings.line());
        let _ = writeln!(text, "name = \"{}\"\ninput = {:?}", self.name, self.input);
        if self.layers.last().is_none_or(|layer| layer.name != self.output) {
            let _ = writeln!(text, "output = \"{}\"", self.output);
        }
        for layer in &self.layers {
            let Layer { name, op, inputs, attributes } = layer;
            let _ = writeln!(text, "\n[[layer]]\nname = \"{name}\"\nop = \"{op}\"\ninputs = {inputs:?}");
            for (key, value) in attributes {
                let _ = writeln!(text, "{key} = {value}");
            }
        }
        text
    }

    /// The operation of each layer.
    pub fn operations(&self) -> impl Iterator<Item = &'static str> {
        self.layers.iter().map(|layer| layer.op)
    }

    /// The graph.
    ///
    /// # Errors
    /// If the layers do not form a network.
    pub fn graph(&self) -> Result<Graph, LayerFileError> {
        layer_file::parse(&self.text())
    }

    /// The shapes of the images and of the outputs of all layers.
    pub(super) fn shapes(&self) -> Option<Vec<Shape>> {
        if self.layers.is_empty() {
            return Some(vec![Shape(self.input.to_vec())]);
        }
        self.graph().ok().map(|graph| graph.tensors)
    }
}

/// Reads a printed network: its graph and its settings.
///
/// # Errors
/// If it has no settings, or is no layer file.
pub fn read_network(text: &str) -> Result<(Graph, Settings), String> {
    let line = text.lines().find_map(|line| line.strip_prefix(SETTINGS));
    let line = line.ok_or_else(|| format!("no line begins with `{SETTINGS}`"))?;
    let settings = Settings::from_line(line)?;
    Ok((layer_file::parse(text).map_err(|error| error.to_string())?, settings))
}
