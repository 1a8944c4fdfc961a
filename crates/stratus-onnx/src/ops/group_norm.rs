//! Group norm, as PyTorch exports it: the image is reshaped to its groups, `[N, groups, elements]`, whose
//! norm is `InstanceNormalization`, and back; `Mul` and `Add` apply weight and bias. `GroupNormalization` of
//! operator sets 18 and 21 and an `InstanceNormalization` of images are imported too.

use super::{ExportedLayer, OnnxOperation};
use crate::encode::{Attributes, Export};
use crate::import::{
    DimOrder, ImportResult, Importer, Layer, LayerOutput, Value, count, count_first, in_order,
    shape_per_image,
};
use crate::proto::Node;
use crate::tensor::{Constant, kind};
use stratus_graph::Op;
use stratus_graph::ops::GroupNorm;

pub(super) const OPERATION: OnnxOperation = OnnxOperation {
    kind: "group_norm",
    written_as: "`Reshape`, `InstanceNormalization`, `Reshape`, and with `affine` `Mul` and `Add`, called \
        `LAYER/Reshape` and so on; weight and bias are written as `[C, 1, 1]`",
    read_from: "the same nodes; `InstanceNormalization` of images, whose groups are the channels; \
        `GroupNormalization`. Factors of 1 and terms of 0 without a name such as `norm1.weight` are read as \
        no `affine`, with a note",
    broadcasts: true,
    write,
    operators: &[
        ("GroupNormalization", 18, "epsilon:f num_groups:i", 3),
        ("GroupNormalization", 21, "epsilon:f num_groups:i stash_type:i", 3),
        ("InstanceNormalization", 7, "epsilon:f", 3),
    ],
    read,
};

fn write(export: &mut Export<'_>, layer: &ExportedLayer<'_>) -> bool {
    let Op::GroupNorm(GroupNorm { channels, groups, epsilon, affine }) = layer.node.op else { return false };
    let (name, plain) = (&layer.node.name, Attributes::default);
    let shape = export.graph.shape(layer.node.output).0.clone();
    let elements = shape.iter().product::<usize>() / groups.max(1);
    // A dimension of 0 keeps the batch.
    let grouped = export.int64_constant(&format!("{name}.grouped"), &[0, groups, elements]);
    let whole = export.int64_constant(&format!("{name}.whole"), &[0, channels, shape[1], shape[2]]);
    let ones = export.constant(&format!("{name}.ones"), &[groups], &vec![1.0; groups]);
    let zeros = export.constant(&format!("{name}.zeros"), &[groups], &vec![0.0; groups]);
    let [split, normalised] = ["groups", "normalised"].map(|part| export.unique(&format!("{name}.{part}")));
    let x = layer.inputs[0].clone();
    export.push(&format!("{name}/Reshape"), "Reshape", "", &[x, grouped], &split, &plain());
    let (operator, epsilon) = ("InstanceNormalization", plain().float("epsilon", epsilon));
    let inputs = [split, ones, zeros];
    export.push(&format!("{name}/{operator}"), operator, "", &inputs, &normalised, &epsilon);
    let back = format!("{name}/Reshape_1");
    if !affine {
        export.push(&back, "Reshape", "", &[normalised, whole], layer.output, &plain());
        return true;
    }
    let [image, weighted] = ["image", "weighted"].map(|part| export.unique(&format!("{name}.{part}")));
    export.push(&back, "Reshape", "", &[normalised, whole], &image, &plain());
    let factors = [image, layer.inputs[1].clone()];
    export.push(&format!("{name}/Mul"), "Mul", "", &factors, &weighted, &plain());
    let terms = [weighted, layer.inputs[2].clone()];
    export.push(&format!("{name}/Add"), "Add", "", &terms, layer.output, &plain());
    true
}

fn read<'a>(importer: &mut Importer<'a>, node: &'a Node<'a>) -> ImportResult<Value> {
    let grouped = match importer.value(node, 0)? {
        Value::LayerOutput(input @ LayerOutput { order: DimOrder::FlatGroups(groups), .. }) => {
            Some((*input, *groups))
        }
        _ => None,
    };
    let (input, groups) = match grouped {
        Some(grouped) => grouped,
        None => (importer.channels_first_input(node, 0)?, 0),
    };
    let [channels, ..] = importer.image_shape(input)?;
    let is_group_norm = node.operator == "GroupNormalization";
    let groups = match (is_group_norm, grouped) {
        (true, Some(_)) => return Err("its input is already divided into groups".into()),
        (true, None) => count(node, "num_groups", 0)?,
        (false, Some(_)) => groups,
        (false, None) => channels,
    };
    // Layers compute statistics in 32-bit floating point.
    let stash = node.attribute("stash_type").map_or(kind::FLOAT, |stash| stash.int);
    if stash != kind::FLOAT {
        return Err(format!("unsupported `stash_type` {}, expected FLOAT", kind::name(stash)).into());
    }
    // Before operator set 21, `GroupNormalization` has one factor and term per group.
    let per_channel = is_group_norm && importer.opset >= 21;
    let values = if per_channel { channels } else { groups };
    let weight = importer.vector_input(node, 1, values)?.ok_or("missing scale")?;
    let bias = importer.vector_input(node, 2, values)?.ok_or("missing bias")?;
    // PyTorch's exporters write constants of 1 and 0 for a layer without `affine`, and give the weights of
    // one with it their own names, also if it is untrained.
    let affine = weight.iter().any(|&factor| factor != 1.0)
        || bias.iter().any(|&term| term != 0.0)
        || importer.names.weighted(node).is_some();
    if !affine && grouped.is_none() {
        count_first(&mut importer.unweighted, node);
    }
    let epsilon = node.attribute("epsilon").map_or(1e-5, |epsilon| epsilon.float);
    let norm = GroupNorm { channels, groups, epsilon, affine };
    let repeat = if per_channel { 1 } else { norm.group_channels() };
    let spread = |values: Vec<f32>| -> Vec<f32> {
        values.into_iter().flat_map(|value| std::iter::repeat_n(value, repeat)).collect()
    };
    let parameters = if affine { vec![spread(weight), spread(bias)] } else { vec![] };
    let value = importer.push(node, norm, &[input], parameters)?;
    Ok(in_order(value, input.order))
}

/// Imports a `Reshape` of an image to groups that `InstanceNormalization` reads, or of such groups to the
/// image; `None` if it is another one.
pub(crate) fn reshape<'a>(importer: &Importer<'a>, node: &'a Node<'a>) -> ImportResult<Option<Value>> {
    let Value::LayerOutput(input) = *importer.value(node, 0)? else { return Ok(None) };
    if node.operator != "Reshape" || input.pad.is_some() {
        return Ok(None);
    }
    let image = importer.layer_shape(input.id).0.clone();
    let target = |current: &[usize]| -> ImportResult<Option<Vec<usize>>> {
        Ok(shape_per_image(&importer.dims(node, 1)?, current, importer.batch))
    };
    match input.order {
        DimOrder::FlatGroups(groups) => {
            let elements = image.iter().product::<usize>() / groups.max(1);
            if target(&[groups, elements])?.as_ref() != Some(&image) {
                return Err("groups of channels can only be reshaped back to the image".into());
            }
            Ok(Some(importer.alias(node, LayerOutput { order: DimOrder::ChannelsFirst, ..input })))
        }
        DimOrder::ChannelsFirst
            if image.len() == 3
                && importer
                    .single_reader(node)
                    .is_some_and(|reader| reader.operator == "InstanceNormalization") =>
        {
            let groups = target(&image)?.filter(|target| *target != image);
            let groups = groups.and_then(|target| target.first().copied());
            let divides = |groups: &usize| *groups > 0 && image[0].is_multiple_of(*groups);
            let order = groups.filter(divides).map(DimOrder::FlatGroups);
            Ok(order.map(|order| importer.alias(node, LayerOutput { order, ..input })))
        }
        _ => Ok(None),
    }
}

/// Numbers that a node multiplies with, or adds to, the output of a group norm.
pub(crate) enum Fold {
    /// Factors per channel.
    Factors,
    /// Terms per channel.
    Terms,
}

/// If `input` is a group norm that no other node reads, multiplies its weight and bias by factors per
/// channel, or adds terms per channel to its bias, and returns true. A layer without weight gets the name of
/// the factors. A single number is not a weight: a factor of 1 or a term of 0 changes nothing, as PyTorch
/// exports layers without `affine`, and other factors are not folded.
pub(crate) fn fold<'a>(
    importer: &mut Importer<'a>,
    node: &Node<'a>,
    input: LayerOutput,
    constant: &Constant,
    fold: &Fold,
) -> ImportResult<bool> {
    let is_group_norm = |layer: &mut Layer| matches!(layer.op, Op::GroupNorm(_));
    let layer = importer.single_use_layer(input);
    if input.order != DimOrder::ChannelsFirst || !layer.is_some_and(is_group_norm) {
        return Ok(false);
    }
    let is_number = constant.scalar().is_some();
    let values = importer.per_channel(input, constant.clone())?;
    let (name, is_added) = (importer.names.weighted(node), importer.is_added(node));
    let Some(layer) = importer.single_use_layer(input) else { return Ok(false) };
    let Op::GroupNorm(norm) = &mut layer.op else { return Ok(false) };
    // Factors after a weight, before a residual sum, are a layer scale.
    if matches!(fold, Fold::Factors) && norm.affine && is_added {
        return Ok(false);
    }
    if is_number && norm.channels > 1 {
        match fold {
            Fold::Factors => return Ok(values.iter().all(|factor| *factor == 1.0)),
            Fold::Terms if values.iter().all(|term| *term == 0.0) => return Ok(true),
            Fold::Terms => {}
        }
    }
    if !std::mem::replace(&mut norm.affine, true) {
        layer.parameters = vec![vec![1.0; norm.channels], vec![0.0; norm.channels]];
        layer.name = name.unwrap_or_else(|| layer.name.clone());
    }
    match fold {
        Fold::Factors => {
            for parameter in &mut layer.parameters {
                parameter.iter_mut().zip(&values).for_each(|(value, factor)| *value *= factor);
            }
        }
        Fold::Terms => {
            let bias = layer.parameters.iter_mut().skip(1).flatten();
            bias.zip(values).for_each(|(value, term)| *value += term);
        }
    }
    Ok(true)
}
