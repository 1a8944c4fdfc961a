//! Power-average pooling: `LpPool`.

use super::{ExportedLayer, OnnxOperation};
use crate::encode::{Attributes, Export};
use crate::import::{ImportResult, Importer, Value};
use crate::proto::Node;
use stratus_graph::Op;
use stratus_graph::ops::LpPool2d;

pub(super) const OPERATION: OnnxOperation = OnnxOperation {
    kind: "lp_pool2d",
    written_as: "`LpPool` with a `p` of 2",
    read_from: "`LpPool` with a `p` of 2, without padding, `ceil_mode` or dilations that matter",
    broadcasts: false,
    write,
    operators: &[
        ("LpPool", 7, "auto_pad:s kernel_shape:I p:i pads:I strides:I", 1),
        ("LpPool", 18, "auto_pad:s ceil_mode:i dilations:I kernel_shape:I p:i pads:I strides:I", 1),
    ],
    read,
};

fn write(export: &mut Export<'_>, layer: &ExportedLayer<'_>) -> bool {
    let Op::LpPool2d(LpPool2d { kernel, stride }) = layer.node.op else { return false };
    let attributes = Attributes::default().ints("kernel_shape", &kernel).ints("strides", &stride).int("p", 2);
    export.push(&layer.node.name, "LpPool", "", &layer.inputs, layer.output, &attributes);
    true
}

fn read<'a>(importer: &mut Importer<'a>, node: &'a Node<'a>) -> ImportResult<Value> {
    let (input, kernel, stride) = importer.window(node)?;
    let p = node.attribute("p").map_or(2, |p| p.int);
    if p != 2 {
        return Err(format!("unsupported `p` {p}, expected 2").into());
    }
    let sides = importer.padding(node, input, kernel, stride, [1, 1], true)?;
    if sides != ([0; 2], [0; 2]) {
        return Err("padding is not supported".into());
    }
    let [_, height, width] = importer.image_shape(input)?;
    let pool = LpPool2d { kernel, stride };
    pool.output_size([height, width]).map_err(|error| error.to_string())?;
    let has_partial_window = node.attribute("ceil_mode").is_some_and(|mode| mode.int != 0)
        && (0..2).any(|axis| !([height, width][axis] - kernel[axis]).is_multiple_of(stride[axis]));
    if has_partial_window {
        return Err("`ceil_mode` adds windows beyond the image, which is not supported".into());
    }
    importer.push(node, pool, &[input], vec![])
}
