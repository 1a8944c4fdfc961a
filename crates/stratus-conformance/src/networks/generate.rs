//! Draws networks: layers of every operation on random earlier outputs, and a head for one of the losses.

use super::compare::normalises_single_values;
use super::network::{FLAGS, Layer, Network, Settings};
use super::operations::{Attribute, Inputs, Row, Values, rows};
use stratus_graph::Shape;
use stratus_random::{Purpose, Stream};

/// The maximum number of elements of a feature map of one sample.
const MAX_ELEMENTS: usize = 1500;
/// The number of draws for a layer until another operation is drawn.
const MAX_ATTEMPTS: usize = 8;

/// The network of a seed: the same on every machine.
#[must_use]
pub fn random_network(seed: u64) -> Network {
    let mut stream = Stream::new(seed, Purpose::Test, 0, 0);
    let channels = match stream.below(4) {
        0 => 1 + stream.below(18),
        _ => 1 + stream.below(4),
    };
    let size = |stream: &mut Stream| match stream.below(8) {
        0 => 1,
        _ => 2 + stream.below(10) as usize,
    };
    let mut settings = Settings { batch: 1 + stream.below(5) as usize, ..Settings::plain(seed) };
    settings.layout = stream.below(12) as usize;
    for (key, flag) in FLAGS {
        // A sequence of its own: a seed keeps the network that it had before there were targets.
        let draw = match key {
            "targets" => Stream::new(seed, Purpose::Test, 1, 0).below(4),
            _ => stream.below(4),
        };
        *flag(&mut settings) = draw == 0;
    }
    let [height, width] = [size(&mut stream), size(&mut stream)];
    let network = Network {
        name: format!("random-{seed}"),
        settings,
        input: [(channels as usize).min(MAX_ELEMENTS / (height * width)), height, width],
        layers: Vec::new(),
        output: "input".to_owned(),
    };
    let shapes = vec![Shape(network.input.to_vec())];
    let mut generator = Generator { stream, rows: rows(), network, shapes };
    generator.body();
    generator.head();
    let mut network = generator.network;
    if network.graph().is_ok_and(|graph| normalises_single_values(&graph, &network.settings)) {
        network.settings.batch = 2;
    }
    network
}

struct Generator {
    stream: Stream,
    rows: Vec<Row>,
    network: Network,
    /// The shapes of the images and of all layers' outputs.
    shapes: Vec<Shape>,
}

/// The position of a tensor: 0 are the images, `n` is the output of layer `n - 1`.
type Position = usize;

impl Generator {
    /// Layers of images, with branches that are joined at the end.
    fn body(&mut self) {
        let all = |row: &Row| !matches!(row.inputs, Inputs::Vector | Inputs::Flattened);
        let ops: Vec<usize> = (0..self.rows.len()).filter(|&row| all(&self.rows[row])).collect();
        for _ in 0..2 + self.stream.below(9) {
            let op = ops[self.below(ops.len())];
            // Most layers read the layer before, others begin a branch.
            let from = match self.stream.below(4) {
                0 => self.below(self.shapes.len()),
                _ => self.shapes.len() - 1,
            };
            self.layer(op, from);
        }
        // Some networks keep layers that nothing reads.
        if self.stream.below(8) > 0 {
            self.join_branches();
        }
    }

    /// Resizes all outputs that no layer reads to the last one's size, and joins them.
    fn join_branches(&mut self) {
        let last = self.shapes.len() - 1;
        let is_read = |position: Position| {
            let name = self.name(position);
            self.network.layers.iter().any(|layer| layer.inputs.contains(&name))
        };
        let ends: Vec<Position> = (1..last).filter(|&position| !is_read(position)).collect();
        let mut joined = vec![last];
        for end in ends {
            let same_size = self.shapes[end].0[1..] == self.shapes[last].0[1..];
            let resized = if same_size { Some(end) } else { self.push("resize", &[end, last], Vec::new()) };
            joined.extend(resized);
        }
        if joined.len() > 1 {
            self.push("concat", &joined, Vec::new());
        }
    }

    /// Layers up to the logits, of samples or pixels, and for some networks an auxiliary output.
    fn head(&mut self) {
        let image = self.shapes.len() - 1;
        let classes = 2 + self.stream.below(10) as usize;
        let of_pixels = self.stream.below(3) == 0;
        if of_pixels {
            let op = ["conv2d", "pointwise_linear"][self.below(2)];
            self.classifier(op, image, classes);
            if self.stream.below(3) == 0 {
                self.push("resize", &[self.shapes.len() - 1, 0], Vec::new());
            }
        } else {
            self.vector_head(image, classes);
        }
        self.network.output = self.name(self.shapes.len() - 1);
        if self.stream.below(6) == 0 {
            self.auxiliary(of_pixels, classes);
        }
    }

    fn vector_head(&mut self, image: Position, classes: usize) {
        let pooled = match self.stream.below(2) {
            0 => self.push("adaptive_avg_pool2d", &[image], vec![("output", "1".to_owned())]),
            _ => None,
        };
        let flat = self.push("flatten", &[pooled.unwrap_or(image)], Vec::new());
        let vectors = |row: &Row| matches!(row.inputs, Inputs::Vector | Inputs::Any);
        let ops: Vec<usize> = (0..self.rows.len()).filter(|&row| vectors(&self.rows[row])).collect();
        for _ in 0..self.stream.below(5) {
            let op = match self.stream.below(3) {
                0 => self.rows.iter().position(|row| row.op == "linear").unwrap_or_default(),
                _ => ops[self.below(ops.len())],
            };
            self.layer(op, self.shapes.len() - 1);
        }
        let last = if flat.is_some() { self.shapes.len() - 1 } else { image };
        self.classifier("linear", last, classes);
    }

    /// The layer whose outputs are the logits.
    fn classifier(&mut self, op: &'static str, from: Position, classes: usize) -> Option<Position> {
        let count = classes.to_string();
        let attributes = match op {
            "linear" => vec![("out_features", count)],
            "conv2d" => vec![("out_channels", count), ("kernel", "1".to_owned())],
            _ => vec![("out_channels", count)],
        };
        self.push(op, &[from], attributes)
    }

    /// An output of the shape of the network's, with a loss of its own.
    fn auxiliary(&mut self, of_pixels: bool, classes: usize) {
        let images: Vec<Position> =
            (0..self.shapes.len()).filter(|&position| self.shapes[position].0.len() == 3).collect();
        let from = images[self.below(images.len())];
        let output = self.shapes.len() - 1;
        let before = self.network.clone();
        let logits = if of_pixels {
            let logits = self.classifier("pointwise_linear", from, classes);
            logits.and_then(|logits| self.push("resize", &[logits, output], Vec::new()))
        } else {
            let flat = self.push("flatten", &[from], Vec::new());
            flat.and_then(|flat| self.classifier("linear", flat, classes))
        };
        self.network.output.clone_from(&before.output);
        if let (Some(_), Some(layer)) = (logits, self.network.layers.last_mut()) {
            layer.attributes.push(("auxiliary", "0.3".to_owned()));
        }
        if logits.is_none() || self.network.shapes().is_none() {
            self.shapes.truncate(before.layers.len() + 1);
            self.network = before;
        }
    }

    /// Draws attributes and further inputs of a layer until it accepts them.
    fn layer(&mut self, row: usize, from: Position) {
        for _ in 0..MAX_ATTEMPTS {
            let row = self.rows[row].clone();
            let (count, output) = (self.network.layers.len(), self.network.output.clone());
            let attributes = self.attributes(&row, from);
            let inputs = self.inputs(&row, from, &attributes);
            if self.push(row.op, &inputs, attributes).is_some() {
                return;
            }
            self.network.layers.truncate(count);
            self.network.output = output;
            self.shapes.truncate(count + 1);
        }
    }

    fn inputs(&mut self, row: &Row, from: Position, attributes: &[(&str, String)]) -> Vec<Position> {
        let shape = self.shapes[from].0.clone();
        match row.inputs {
            Inputs::Resized if attributes.iter().any(|(key, _)| ["size", "scale"].contains(key)) => {
                vec![from]
            }
            Inputs::Resized => vec![from, self.below(self.shapes.len())],
            Inputs::Equal => {
                let equal = self.others(from, |other| other == shape);
                let other = self.one_of(&equal).or_else(|| self.branch(from));
                vec![from, other.unwrap_or(from)]
            }
            Inputs::Joined => {
                let mut inputs = vec![from];
                for _ in 0..1 + self.stream.below(3) {
                    let equal = self.others(from, |other| other.len() == 3 && other[1..] == shape[1..]);
                    let other = self.one_of(&equal).or_else(|| self.branch(from));
                    inputs.push(other.unwrap_or(from));
                }
                inputs
            }
            Inputs::Scaled => {
                let pixels = self.others(from, |other| other == [shape[0], 1, 1]);
                let factors = self.one_of(&pixels).or_else(|| {
                    let mean = ("output", "1".to_owned());
                    let mean = self.push("adaptive_avg_pool2d", &[from], vec![mean])?;
                    self.push("sigmoid", &[mean], Vec::new())
                });
                vec![from, factors.unwrap_or(from)]
            }
            Inputs::Image | Inputs::Any | Inputs::Vector | Inputs::Flattened => vec![from],
        }
    }

    /// The other tensors of such shapes.
    fn others(&self, from: Position, matches: impl Fn(&[usize]) -> bool) -> Vec<Position> {
        let others = (0..self.shapes.len()).filter(|&other| other != from);
        others.filter(|&other| matches(&self.shapes[other].0)).collect()
    }

    /// A layer of the shape of `from`.
    fn branch(&mut self, from: Position) -> Option<Position> {
        let op = ["gelu", "relu", "batch_norm2d", "tanh"][self.below(4)];
        self.push(op, &[from], Vec::new())
    }

    fn attributes(&mut self, row: &Row, from: Position) -> Vec<(&'static str, String)> {
        let channels = self.shapes[from].0[0];
        let mut drawn = Vec::new();
        for Attribute { key, values, one_in } in &row.attributes {
            if self.stream.below(*one_in) == 0 {
                drawn.push((*key, self.value(values, channels)));
            }
        }
        // A size is given in one way.
        if drawn.iter().any(|(key, _)| *key == "size") {
            drawn.retain(|(key, _)| *key != "scale");
        }
        drawn
    }

    fn value(&mut self, values: &Values, channels: usize) -> String {
        match values {
            Values::Count(min, max) => (min + self.stream.below(max - min + 1)).to_string(),
            Values::Channels => match self.stream.below(3) {
                0 => (channels * (1 + self.below(2))).min(36).to_string(),
                1 => (1 + self.below(6)).to_string(),
                _ => (1 + self.below(35)).to_string(),
            },
            Values::Divisor => {
                let divisors: Vec<usize> = (1..=channels).filter(|n| channels.is_multiple_of(*n)).collect();
                divisors[self.below(divisors.len())].to_string()
            }
            Values::Half(min) => (min + self.below(channels.div_ceil(2))).to_string(),
            Values::Pair(min, max) => {
                let [height, width] = [(); 2].map(|()| min + self.stream.below(max - min + 1));
                match self.stream.below(2) {
                    0 => height.to_string(),
                    _ => format!("[{height}, {width}]"),
                }
            }
            Values::OneOf(texts) => texts[self.below(texts.len())].clone(),
        }
    }

    /// Adds a layer and returns its position, unless it is invalid or too large.
    fn push(
        &mut self,
        op: &'static str,
        inputs: &[Position],
        attributes: Vec<(&'static str, String)>,
    ) -> Option<Position> {
        let inputs = inputs.iter().map(|&input| self.name(input)).collect();
        let name = format!("l{}", self.network.layers.len() + 1);
        let output = std::mem::replace(&mut self.network.output, name.clone());
        self.network.layers.push(Layer { name, op, inputs, attributes });
        let fits = |shape: &Shape| (1..=MAX_ELEMENTS).contains(&shape.elements());
        match self.network.shapes().filter(|shapes| shapes.last().is_some_and(fits)) {
            Some(shapes) => {
                self.shapes = shapes;
                Some(self.shapes.len() - 1)
            }
            None => {
                self.network.layers.pop();
                self.network.output = output;
                None
            }
        }
    }

    fn name(&self, position: Position) -> String {
        match position.checked_sub(1) {
            Some(layer) => self.network.layers[layer].name.clone(),
            None => "input".to_owned(),
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.stream.below(bound as u32) as usize
    }

    fn one_of(&mut self, positions: &[Position]) -> Option<Position> {
        if positions.is_empty() { None } else { Some(positions[self.below(positions.len())]) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::read_network;
    use super::*;
    use std::collections::BTreeMap;
    use stratus_graph::Operation;

    #[test]
    fn networks_are_valid_and_functions_of_their_seed() {
        for seed in 0..300 {
            let network = random_network(seed);
            let (graph, settings) = read_network(&network.text()).unwrap();
            graph.verify().unwrap();
            assert_eq!(settings, network.settings);
            assert_eq!(random_network(seed), network);
        }
    }

    #[test]
    fn every_operation_and_both_losses_occur() {
        let mut counts: BTreeMap<&str, usize> = rows().iter().map(|row| (row.op, 0)).collect();
        let (mut of_pixels, mut auxiliary) = (0, 0);
        for seed in 0..600 {
            let graph = random_network(seed).graph().unwrap();
            of_pixels += usize::from(graph.shape(graph.output).0.len() == 3);
            auxiliary += graph.auxiliary.len();
            for node in &graph.nodes {
                *counts.get_mut(node.op.kind()).unwrap() += 1;
            }
        }
        assert!(counts.values().all(|&count| count >= 20), "{counts:?}");
        assert!((120..300).contains(&of_pixels) && auxiliary > 30, "{of_pixels} {auxiliary}");
    }
}
