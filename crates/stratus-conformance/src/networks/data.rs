//! The weights, images and labels of a network: functions of its settings.

use super::Settings;
use stratus_engine::LossFunction;
use stratus_engine::ops::TARGET_WEIGHT_ROWS;
use stratus_graph::{Graph, Op, Parameter};
use stratus_random::{Purpose, Stream};

/// The data of a training step.
#[derive(Clone, Debug)]
pub struct Data {
    /// The values of each parameter, in the order of the graph.
    pub parameters: Vec<Vec<f64>>,
    /// The images, `[N, C, H, W]`.
    pub images: Vec<f64>,
    /// The labels, `[N]` or `[N, H, W]`; negative ones are ignored. Empty if there are targets.
    pub labels: Vec<i32>,
    /// The targets, `[N, T]`, from 0 to 1; NaN is missing. Empty if there are labels.
    pub targets: Vec<f64>,
    /// The weights of the classes or targets, if the settings have them.
    pub class_weights: Option<Vec<f64>>,
}

/// Purposes of the sequences of one seed.
const PARAMETERS: u32 = 1;
const IMAGES: u32 = 2;
const LABELS: u32 = 3;
const CLASS_WEIGHTS: u32 = 4;
const SHIFTS: u32 = 5;

impl Data {
    /// The data of a network's step.
    #[must_use]
    pub fn new(graph: &Graph, settings: &Settings) -> Self {
        let stream = |index: usize, purpose| Stream::new(settings.data, Purpose::Test, index as u64, purpose);
        let uniform = |stream: &mut Stream, [low, high]: [f32; 2], count: usize| -> Vec<f64> {
            (0..count).map(|_| f64::from(stream.uniform_between(low, high))).collect()
        };
        let parameters = graph.parameters.iter().enumerate();
        let parameters = parameters.map(|(index, parameter)| {
            uniform(&mut stream(index, PARAMETERS), range(graph, parameter), parameter.elements())
        });
        let images = settings.batch * graph.input_shape().elements();
        let output = graph.shape(graph.output);
        let classes = graph.classes() as u32;
        let mut draw = stream(0, LABELS);
        let has_targets = settings.loss(output) != LossFunction::CrossEntropy;
        let labelled = if has_targets { 0 } else { settings.batch * output.elements() / graph.classes() };
        let is_ignored = |draw: &mut Stream, position: usize| {
            settings.ignored_labels && position > 0 && draw.below(6) == 0
        };
        let labels = (0..labelled)
            .map(|position| match is_ignored(&mut draw, position) {
                true => -1,
                false => draw.below(classes) as i32,
            })
            .collect();
        let targets = if has_targets { settings.batch * output.elements() } else { 0 };
        let targets = (0..targets)
            .map(|position| match is_ignored(&mut draw, position) {
                true => f64::NAN,
                false => f64::from(draw.below(5)) / 4.0,
            })
            .collect();
        let weights = if has_targets { TARGET_WEIGHT_ROWS } else { 1 } * graph.classes();
        let class_weights = || uniform(&mut stream(0, CLASS_WEIGHTS), [0.3, 2.0], weights);
        Self {
            parameters: parameters.collect(),
            images: uniform(&mut stream(0, IMAGES), [-1.0, 1.0], images),
            labels,
            targets,
            class_weights: settings.class_weights.then(class_weights),
        }
    }

    /// The same data with each weight and each pixel moved by up to `size` times its magnitude, in a
    /// direction that is a function of `seed`.
    pub(super) fn shifted(&self, size: f64, seed: u64) -> Self {
        let shift = |values: &[f64], index: usize| -> Vec<f64> {
            let mut stream = Stream::new(seed, Purpose::Test, index as u64, SHIFTS);
            let mut direction = || f64::from(stream.uniform_between(-1.0, 1.0));
            values.iter().map(|value| value + size * (value.abs() + 0.1) * direction()).collect()
        };
        Self {
            parameters: self.parameters.iter().enumerate().map(|(n, p)| shift(p, n + 1)).collect(),
            images: shift(&self.images, 0),
            ..self.clone()
        }
    }
}

/// The range of a parameter's values: it keeps the size of a signal.
fn range(graph: &Graph, parameter: &Parameter) -> [f32; 2] {
    let (layer, part) = parameter.name.rsplit_once('.').unwrap_or(("", &parameter.name));
    let op = graph.nodes.iter().find(|node| node.name == layer).map(|node| &node.op);
    match (op, part) {
        (Some(Op::Prelu(_)), _) => [0.05, 0.45],
        (_, "running_var") => [0.6, 1.6],
        _ if parameter.shape.len() == 1 => match part {
            "weight" => [0.6, 1.4],
            _ => [-0.3, 0.3],
        },
        _ => {
            let fan_in: usize = parameter.shape[1..].iter().product();
            let bound = (3.0 / fan_in as f32).sqrt();
            [-bound, bound]
        }
    }
}
