//! The networks that a machine is calibrated with: small networks with all kinds of layers, in the range of
//! sizes of real networks.
//!
//! Network `i` draws its sizes from the Kronecker sequence, the fractional part of `(i + 1) √prime`, with a
//! different prime for each draw, so that neighbours differ, and no two networks have the same sizes. None of
//! them is a published network.

use stratus_graph::ops::{
    AdaptiveAvgPool2d, Add, AvgPool2d, BatchNorm2d, Concat, Conv2d, Dropout, Flatten, Linear,
    LocalResponseNorm, MaxPool2d, Op, Relu, Relu6,
};
use stratus_graph::{Graph, GraphBuilder, GraphError, Shape, TensorId};

/// A network with the batch size that it is measured with.
#[derive(Clone, Debug, PartialEq)]
pub struct Design {
    /// The network.
    pub graph: Graph,
    /// Images per step.
    pub batch: usize,
}

const PRIMES: [u32; 24] =
    [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89];
/// Minimum and maximum FLOPs of a step, for which a CPU core takes 0.1 to 1 second.
const STEP_FLOPS: [f64; 2] = [6e9, 60e9];
/// The same of small networks, whose kernels take microseconds to milliseconds.
const SMALL_STEP_FLOPS: [f64; 2] = [2e7, 6e9];
/// One of this number of networks is small.
const SMALL_NETWORK_PERIOD: usize = 4;
/// The number of images of a batch of [`speed_reference`].
const REFERENCE_BATCH: usize = 4;
/// Maximum number of elements of the images of a batch and all activations.
const MAX_ELEMENTS: f64 = 1.2e8;
/// Maximum number of images of a batch.
const MAX_BATCH: f64 = 192.0;
/// The number of classes.
const CLASSES: usize = 100;

/// The quasi-random numbers of a network.
struct QuasiRandom {
    network: usize,
    drawn: usize,
}

impl QuasiRandom {
    /// A number in `[0, 1)`.
    fn unit(&mut self) -> f64 {
        let (turn, at) = (self.drawn / PRIMES.len(), self.drawn % PRIMES.len());
        self.drawn += 1;
        ((self.network + 1) as f64 * f64::from(PRIMES[at]).sqrt() + turn as f64 * 0.618).fract()
    }

    fn choose<T: Copy, const N: usize>(&mut self, options: [T; N]) -> T {
        options[(self.unit() * N as f64) as usize % N]
    }

    /// A log-uniform number.
    fn log_uniform(&mut self, min: f64, max: f64) -> f64 {
        min * (max / min).powf(self.unit())
    }

    /// A log-uniform number of channels, a multiple of eight.
    fn channels(&mut self, min: f64, max: f64) -> usize {
        ((self.log_uniform(min, max) / 8.0).round() as usize).max(1) * 8
    }
}

/// Builds a network layer by layer.
struct ChainBuilder {
    graph: GraphBuilder,
    x: TensorId,
    layers: usize,
}

impl ChainBuilder {
    fn add_to(&mut self, op: impl Into<Op>, inputs: &[TensorId]) -> Result<TensorId, GraphError> {
        self.layers += 1;
        self.graph.add(&self.layers.to_string(), op, inputs)
    }

    fn add(&mut self, op: impl Into<Op>) -> Result<(), GraphError> {
        self.x = self.add_to(op, &[self.x])?;
        Ok(())
    }

    fn channels(&self) -> usize {
        self.graph.shape(self.x).0[0]
    }

    fn height(&self) -> usize {
        self.graph.shape(self.x).0.get(1).copied().unwrap_or(1)
    }

    /// A convolution without bias that keeps the size of the feature map, except for its stride.
    fn conv(&mut self, outputs: usize, kernel: [usize; 2], stride: usize) -> Result<(), GraphError> {
        let padding = kernel.map(|taps| taps / 2);
        let conv = Conv2d {
            kernel,
            padding_before: padding,
            padding_after: padding,
            ..Conv2d::new(self.channels(), outputs, 1, stride, 0)
        };
        self.add(conv)
    }

    fn norm(&mut self) -> Result<(), GraphError> {
        self.add(BatchNorm2d::new(self.channels()))
    }

    /// Convolution, batch norm, ReLU.
    fn unit(&mut self, outputs: usize, kernel: [usize; 2], stride: usize) -> Result<(), GraphError> {
        self.conv(outputs, kernel, stride)?;
        self.norm()?;
        self.add(Relu)
    }

    /// Convolution with bias, ReLU.
    fn plain(&mut self, outputs: usize, kernel: usize, stride: usize) -> Result<(), GraphError> {
        let conv = Conv2d::new(self.channels(), outputs, kernel, stride, kernel / 2);
        self.add(Conv2d { bias: true, ..conv })?;
        self.add(Relu)
    }

    fn depthwise(&mut self, kernel: usize, stride: usize) -> Result<(), GraphError> {
        let channels = self.channels();
        let conv = Conv2d::new(channels, channels, kernel, stride, kernel / 2);
        self.add(Conv2d { groups: channels, ..conv })?;
        self.norm()?;
        self.add(Relu6)
    }

    fn linear(&mut self, outputs: usize) -> Result<(), GraphError> {
        self.add(Linear::new(self.channels(), outputs))
    }

    fn end(mut self, hidden: Option<usize>) -> Result<Graph, GraphError> {
        match hidden {
            Some(hidden) => {
                self.add(Flatten)?;
                for _ in 0..2 {
                    self.add(Dropout { p: 0.5 })?;
                    self.linear(hidden)?;
                    self.add(Relu)?;
                }
            }
            None => {
                self.add(AdaptiveAvgPool2d::GLOBAL)?;
                self.add(Flatten)?;
            }
        }
        self.linear(CLASSES)?;
        self.graph.finish(self.x)
    }
}

/// Generates a network of one kind.
type Generator = fn(&mut QuasiRandom, ChainBuilder) -> Result<Graph, GraphError>;

/// The generators of all kinds, in measuring order.
const GENERATORS: [Generator; 7] =
    [residual, plain, bottlenecks, branches, depthwise, large_taps, factorised];

/// The network with an index. Small ones have small images.
///
/// # Errors
/// Only if the design is invalid (covered by a test).
pub fn network(index: usize) -> Result<Design, GraphError> {
    let mut draws = QuasiRandom { network: index, drawn: 0 };
    let is_small = index % SMALL_NETWORK_PERIOD == SMALL_NETWORK_PERIOD - 1;
    let (sizes, step_flops) = match is_small {
        true => ([24, 28, 28, 32, 32, 40, 48, 64], SMALL_STEP_FLOPS),
        false => ([32, 48, 80, 112, 144, 176, 208, 240], STEP_FLOPS),
    };
    let size = draws.choose(sizes);
    let (graph, x) = GraphBuilder::new(&format!("design {index}"), Shape::image(3, size, size));
    let operations = draws.log_uniform(step_flops[0], step_flops[1]);
    let graph = GENERATORS[index % GENERATORS.len()](&mut draws, ChainBuilder { graph, x, layers: 0 })?;
    // A step costs three forward passes.
    let by_operations = operations / (3.0 * graph.forward_flops().max(1) as f64);
    let elements: usize = graph.nodes.iter().map(|node| graph.shape(node.output).elements()).sum();
    let by_elements = MAX_ELEMENTS / elements.max(1) as f64;
    let batch = by_operations.min(by_elements).clamp(2.0, MAX_BATCH) as usize;
    Ok(Design { graph, batch })
}

/// The network whose step tells the speed of a machine at a moment: convolutions with much arithmetic, and
/// batch norms that mostly move memory. A step has about 3 GFLOP.
///
/// # Errors
/// Only if the design is invalid (covered by a test).
pub fn speed_reference() -> Result<Design, GraphError> {
    let (graph, x) = GraphBuilder::new("speed reference", Shape::image(3, 56, 56));
    let mut chain = ChainBuilder { graph, x, layers: 0 };
    chain.unit(64, [3, 3], 1)?;
    chain.unit(64, [3, 3], 1)?;
    chain.unit(128, [1, 1], 2)?;
    Ok(Design { graph: chain.end(None)?, batch: REFERENCE_BATCH })
}

/// The number of stages that halve the feature map, while it has at least six rows.
fn stages(draws: &mut QuasiRandom, chain: &ChainBuilder) -> usize {
    let max = ((chain.height() as f64 / 6.0).log2().floor().max(0.0) as usize).min(3);
    (1 + (draws.unit() * 3.0) as usize).min(max)
}

/// Adds the usual downsampling of images.
fn stem(draws: &mut QuasiRandom, chain: &mut ChainBuilder) -> Result<(), GraphError> {
    let channels = draws.channels(16.0, 80.0);
    match chain.height() {
        0..64 => chain.unit(channels, [3, 3], 1),
        _ => {
            let taps = draws.choose([3, 5, 7]);
            chain.unit(channels, [taps, taps], 2)?;
            if draws.unit() < 0.7 { chain.add(MaxPool2d::new(3, 2, 1)) } else { Ok(()) }
        }
    }
}

/// Adds a residual connection, with a 1×1 convolution if the shapes differ.
fn add_residual(chain: &mut ChainBuilder, before: TensorId, stride: usize) -> Result<(), GraphError> {
    let after = chain.x;
    let mut other = before;
    if chain.graph.shape(before) != chain.graph.shape(after) {
        let channels = chain.channels();
        chain.x = before;
        chain.conv(channels, [1, 1], stride)?;
        chain.norm()?;
        other = chain.x;
    }
    chain.x = chain.add_to(Add, &[after, other])?;
    chain.add(Relu)
}

fn residual(draws: &mut QuasiRandom, mut chain: ChainBuilder) -> Result<Graph, GraphError> {
    stem(draws, &mut chain)?;
    let mut channels = draws.channels(24.0, 160.0);
    for stage in 0..=stages(draws, &chain) {
        for block in 0..2 {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let before = chain.x;
            chain.unit(channels, [3, 3], stride)?;
            chain.conv(channels, [3, 3], 1)?;
            chain.norm()?;
            add_residual(&mut chain, before, stride)?;
        }
        channels = (channels as f64 * draws.log_uniform(1.2, 2.4) / 8.0) as usize * 8;
    }
    chain.end(None)
}

fn bottlenecks(draws: &mut QuasiRandom, mut chain: ChainBuilder) -> Result<Graph, GraphError> {
    stem(draws, &mut chain)?;
    let mut channels = draws.channels(24.0, 104.0);
    for stage in 0..=stages(draws, &chain) {
        for block in 0..2 {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let before = chain.x;
            chain.unit(channels, [1, 1], 1)?;
            chain.unit(channels, [3, 3], stride)?;
            chain.conv(4 * channels, [1, 1], 1)?;
            chain.norm()?;
            add_residual(&mut chain, before, stride)?;
        }
        channels = (channels as f64 * draws.log_uniform(1.2, 2.4) / 8.0) as usize * 8;
    }
    chain.end(None)
}

/// 3×3 convolutions with bias, pooling, large fully connected layers.
fn plain(draws: &mut QuasiRandom, mut chain: ChainBuilder) -> Result<Graph, GraphError> {
    let mut channels = draws.channels(24.0, 112.0);
    let norms = draws.unit() < 0.3;
    for _ in 0..=stages(draws, &chain) {
        for _ in 0..draws.choose([1, 2]) {
            if norms {
                chain.unit(channels, [3, 3], 1)?;
            } else {
                chain.plain(channels, 3, 1)?;
            }
        }
        chain.add(MaxPool2d::new(2, 2, 0))?;
        channels = (channels as f64 * draws.log_uniform(1.2, 2.4) / 8.0) as usize * 8;
    }
    while chain.height() > 9 {
        chain.add(MaxPool2d::new(2, 2, 0))?;
    }
    let hidden = draws.channels(300.0, 3000.0);
    chain.end(Some(hidden))
}

/// A first convolution with a large kernel, and a 5×5 convolution.
fn large_taps(draws: &mut QuasiRandom, mut chain: ChainBuilder) -> Result<Graph, GraphError> {
    let channels = draws.channels(32.0, 128.0);
    let taps = draws.choose([7, 9, 11]);
    let stride = if chain.height() < 64 { 1 } else { 4 };
    chain.plain(channels, taps, stride)?;
    if draws.unit() < 0.4 {
        chain.add(LocalResponseNorm { size: 5, alpha: 1e-4, beta: 0.75, k: 1.0 })?;
    }
    chain.add(MaxPool2d::new(3, 2, 0))?;
    let outputs = draws.channels(64.0, 320.0);
    chain.plain(outputs, 5, 1)?;
    if chain.height() > 12 {
        chain.add(MaxPool2d::new(3, 2, 0))?;
    }
    for _ in 0..2 {
        let outputs = draws.channels(96.0, 480.0);
        chain.plain(outputs, 3, 1)?;
    }
    while chain.height() > 8 {
        chain.add(MaxPool2d::new(3, 2, 0))?;
    }
    let hidden = draws.channels(300.0, 4000.0);
    chain.end(Some(hidden))
}

/// Concatenated branches with different kernels.
fn branches(draws: &mut QuasiRandom, mut chain: ChainBuilder) -> Result<Graph, GraphError> {
    stem(draws, &mut chain)?;
    for stage in 0..=stages(draws, &chain) {
        if stage > 0 {
            chain.add(MaxPool2d::new(3, 2, 1))?;
        }
        let input = chain.x;
        let large = draws.choose([3, 5]);
        let [one, before_three, three, before_large, last, pooled] =
            [160.0, 120.0, 256.0, 48.0, 112.0, 96.0].map(|max| draws.channels(max / 6.0, max));
        chain.unit(one, [1, 1], 1)?;
        let mut joined = vec![chain.x];
        chain.x = input;
        chain.unit(before_three, [1, 1], 1)?;
        chain.unit(three, [3, 3], 1)?;
        joined.push(chain.x);
        chain.x = input;
        chain.unit(before_large, [1, 1], 1)?;
        chain.unit(last, [large, large], 1)?;
        joined.push(chain.x);
        chain.x = input;
        match draws.unit() < 0.5 {
            true => chain.add(MaxPool2d::new(3, 1, 1))?,
            false => chain.add(AvgPool2d::new(3, 1, 1))?,
        }
        chain.unit(pooled, [1, 1], 1)?;
        joined.push(chain.x);
        chain.x = chain.add_to(Concat, &joined)?;
    }
    chain.end(None)
}

/// Blocks that expand, convolve each channel separately and project.
fn depthwise(draws: &mut QuasiRandom, mut chain: ChainBuilder) -> Result<Graph, GraphError> {
    stem(draws, &mut chain)?;
    let mut channels = draws.channels(16.0, 72.0);
    for stage in 0..=stages(draws, &chain) {
        for block in 0..2 {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let before = chain.x;
            let wide = chain.channels() * draws.choose([3, 4, 6]);
            chain.conv(wide, [1, 1], 1)?;
            chain.norm()?;
            chain.add(Relu6)?;
            let taps = draws.choose([3, 3, 5]);
            chain.depthwise(taps, stride)?;
            chain.conv(channels, [1, 1], 1)?;
            chain.norm()?;
            if chain.graph.shape(before) == chain.graph.shape(chain.x) {
                chain.x = chain.add_to(Add, &[before, chain.x])?;
            }
        }
        channels = (channels as f64 * draws.log_uniform(1.2, 2.4) / 8.0) as usize * 8;
    }
    let last = draws.channels(200.0, 1000.0);
    chain.unit(last, [1, 1], 1)?;
    chain.end(None)
}

/// Convolutions with a single row or column.
fn factorised(draws: &mut QuasiRandom, mut chain: ChainBuilder) -> Result<Graph, GraphError> {
    stem(draws, &mut chain)?;
    let mut channels = draws.channels(32.0, 160.0);
    for stage in 0..=stages(draws, &chain) {
        let stride = if stage > 0 { 2 } else { 1 };
        chain.unit(channels, [3, 3], stride)?;
        let taps = draws.choose([3, 5, 7]);
        let before = chain.x;
        chain.unit(channels, [1, taps], 1)?;
        chain.unit(channels, [taps, 1], 1)?;
        chain.unit(channels, [1, 1], 1)?;
        add_residual(&mut chain, before, 1)?;
        channels = (channels as f64 * draws.log_uniform(1.2, 2.4) / 8.0) as usize * 8;
    }
    chain.end(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_graph::zoo::NETWORKS;

    #[test]
    fn every_network_has_a_step_in_the_designed_range() {
        for index in 0..60 {
            let Design { graph, batch } = network(index).unwrap();
            let operations = 3.0 * (graph.forward_flops() * batch as u64) as f64;
            assert!(batch >= 2, "{index}");
            assert!((2e8..2.0 * STEP_FLOPS[1]).contains(&operations), "{index}: {operations}, batch {batch}");
            assert_eq!(network(index).unwrap().graph, graph);
        }
    }

    #[test]
    fn speed_reference_is_valid_and_short() {
        let Design { graph, batch } = speed_reference().unwrap();
        let operations = 3.0 * (graph.forward_flops() * batch as u64) as f64;
        assert!((1e9..STEP_FLOPS[0]).contains(&operations), "{operations}");
    }

    /// The calibration networks differ from those that forecasts are evaluated on: no network of the zoo has
    /// most of their convolutions.
    #[test]
    fn no_design_is_a_network_of_the_zoo() {
        let convolutions = |graph: &Graph| -> Vec<Conv2d> {
            let as_conv = |op: &Op| if let Op::Conv2d(conv) = op { Some(*conv) } else { None };
            graph.nodes.iter().filter_map(|node| as_conv(&node.op)).collect()
        };
        let zoo: Vec<_> = NETWORKS
            .iter()
            .map(|network| convolutions(&(network.build)(&(network.defaults)()).unwrap()))
            .collect();
        for index in 0..60 {
            let design = convolutions(&network(index).unwrap().graph);
            let shared = |network: &Vec<Conv2d>| design.iter().filter(|conv| network.contains(conv)).count();
            let max = zoo.iter().map(shared).max().unwrap();
            assert!(2 * max <= design.len(), "{index}: {max} of {}", design.len());
        }
    }
}
