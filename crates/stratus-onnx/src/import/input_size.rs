//! The size of the images of a model whose height or width is open.
//!
//! The sizes that the file itself gives are tried: that of its metadata, and, if its layers do not take
//! images of any size (a linear layer behind the flattened map, shapes that the file records for its values),
//! the usual ones. If nothing determines the size, it is the user's choice.

use super::graph_io::is_channels_last;
use super::{ImportOptions, ImportedNetwork, import_sized};
use crate::error::{Parsed, Problem};
use crate::proto::{self, ValueInfo};
use crate::tensor::ModelFolder;
use std::collections::HashMap;
use stratus_base::printable;
use stratus_graph::ops::{AvgPool2d, LpPool2d, MaxPool2d, Resize, ResizeTo};
use stratus_graph::{Graph, Op};
use stratus_weights::NetworkMetadata;

/// The sizes that are tried, the most frequent first. The first two are also those that tell whether a
/// model takes images of any size.
const USUAL_SIZES: [usize; 28] = [
    224, 288, 32, 28, 299, 64, 96, 128, 256, 227, 112, 160, 192, 240, 260, 300, 320, 331, 380, 384, 416, 448,
    456, 480, 512, 528, 600, 640,
];

/// The shapes that the file records for values, by name, with which layers are compared while sizes are
/// tried.
pub(super) type RecordedShapes<'a> = HashMap<&'a str, &'a [Option<i64>]>;

/// The shapes of up to four dimensions that the file records.
pub(super) fn recorded_shapes<'a>(graph: &'a proto::Graph<'a>) -> RecordedShapes<'a> {
    let infos = graph.value_infos.iter().chain(&graph.outputs);
    infos.filter_map(|info| Some((info.name, info.shape.as_deref()?))).collect()
}

/// The channels, height and width of the input, of which open ones are `None`. `None` if there is not exactly
/// one input of four dimensions.
fn extents(graph: &proto::Graph<'_>) -> Option<[Option<usize>; 3]> {
    let is_weight = |input: &&ValueInfo<'_>| graph.initialisers.iter().any(|known| known.name == input.name);
    let mut inputs = graph.inputs.iter().filter(|input| !is_weight(input));
    let (Some(input), None) = (inputs.next(), inputs.next()) else { return None };
    let dims: [Option<i64>; 4] = match input.shape.as_deref() {
        Some(shape) => shape.try_into().ok()?,
        None => [None; 4],
    };
    let [_, a, b, c] = dims.map(|dim| dim.filter(|&dim| dim > 0).and_then(|dim| usize::try_from(dim).ok()));
    let is_last = is_channels_last(&graph.nodes, input.name);
    let [channels, height, width] = if is_last { [c, a, b] } else { [a, b, c] };
    Some([channels.or_else(|| first_channels(graph)), height, width])
}

/// The channels that the first convolution reads.
fn first_channels(graph: &proto::Graph<'_>) -> Option<usize> {
    let conv = graph.nodes.iter().find(|node| node.operator == "Conv")?;
    let weight = conv.input(1)?;
    let weight = graph.initialisers.iter().find(|known| known.name == weight)?;
    let groups = conv.attribute("group").map_or(1, |group| group.int);
    let channels = weight.dimensions.get(1)?.checked_mul(groups)?;
    usize::try_from(channels).ok().filter(|&channels| channels > 0)
}

/// Notes the layers that keep a size of the file when the images have another one: a resize to a fixed size,
/// and a pooling to one pixel that no longer reads the whole map.
pub(super) fn fixed_sizes(graph: &Graph) -> Vec<String> {
    let note = |node: &stratus_graph::Node| {
        let name = &node.name;
        let kernel = match node.op {
            Op::Resize(Resize { to: ResizeTo::Size([height, width]), .. }) => {
                return Some(format!("`{name}` still resizes to {height}x{width}"));
            }
            Op::AvgPool2d(AvgPool2d { kernel, .. })
            | Op::MaxPool2d(MaxPool2d { kernel, .. })
            | Op::LpPool2d(LpPool2d { kernel, .. }) => kernel,
            _ => return None,
        };
        let [_, height, width] = graph.shape(*node.inputs.first()?).as_image().ok()?;
        let is_global = graph.shape(node.output).0.get(1..) == Some(&[1, 1]);
        let [rows, columns] = kernel;
        (is_global && (rows < height || columns < width))
            .then(|| format!("`{name}` still reads {rows}x{columns} pixels, now of {height}x{width}"))
    };
    graph.nodes.iter().filter_map(note).collect()
}

/// Imports a model whose size is open with the size that the file determines. `None` if the size is not open.
pub(super) fn import_open(
    model: &proto::Model<'_>,
    folder: Option<&ModelFolder>,
    options: &ImportOptions,
) -> Option<Parsed<ImportedNetwork>> {
    let [Some(channels), height, width] = extents(&model.graph)? else { return None };
    if height.is_some() && width.is_some() {
        return None;
    }
    let sized = |size: [usize; 2]| {
        let input = Some([channels, height.unwrap_or(size[0]), width.unwrap_or(size[1])]);
        ImportOptions { input, ..options.clone() }
    };
    let noted = |mut network: ImportedNetwork, size: [usize; 2], reason: &str| {
        let [height, width] = [height.unwrap_or(size[0]), width.unwrap_or(size[1])];
        network
            .notes
            .insert(0, format!("its height or width is open: imported for {height}x{width}, {reason}"));
        network
    };
    let metadata = NetworkMetadata::read(model.metadata.iter().copied()).unwrap_or_default();
    if let &[known, height, width] = &metadata.input_shape[..]
        && known == channels
        && let Ok(network) = import_sized(model, folder, &sized([height, width]), true)
    {
        return Some(Ok(noted(network, [height, width], "the size in its metadata")));
    }
    let mut tried = USUAL_SIZES.iter().map(|&size| {
        let import = import_sized(model, folder, &sized([size; 2]), true);
        (size, import)
    });
    let fits = "which its layers fit (another with --input CHANNELS,HEIGHT,WIDTH)";
    match (tried.next()?, tried.next()?) {
        ((_, Ok(_)), (_, Ok(_))) => Some(Err(ask(model, "it takes images of any size"))),
        ((size, Ok(network)), _) | (_, (size, Ok(network))) => Some(Ok(noted(network, [size; 2], fits))),
        // The size does not matter to the problem.
        ((_, Err(first)), (_, Err(second))) if first.to_string() == second.to_string() => Some(Err(first)),
        _ => {
            let mut fitting = tried.filter_map(|(size, import)| Some((size, import.ok()?)));
            let Some((size, network)) = fitting.next() else {
                return Some(Err(ask(model, "its layers fit none of the usual sizes")));
            };
            // Sizes that differ by the rounding of strides give the same maps; those that are far from each
            // other do not, so that the layers do not determine one, as of a decoder.
            let is_far = |other: usize| other >= 2 * size || size >= 2 * other;
            match fitting.find(|(other, _)| is_far(*other)) {
                Some((other, _)) => {
                    let reason = format!("it takes images of several sizes, such as {size} and {other}");
                    Some(Err(ask(model, &reason)))
                }
                None => Some(Ok(noted(network, [size; 2], fits))),
            }
        }
    }
}

/// The error of a model whose size the user must choose.
fn ask(model: &proto::Model<'_>, reason: &str) -> Problem {
    let name = model.graph.inputs.first().map_or("", |input| input.name);
    Problem::UnsupportedModel {
        problem: format!("its input `{}` has dynamic height or width, and {reason}", printable(name)),
        remedy: "pass the image size: --input CHANNELS,HEIGHT,WIDTH",
    }
}
