//! Local response normalisation: `LRN`.

use super::{ExportedLayer, OnnxOperation};
use crate::encode::{Attributes, Export};
use crate::import::{ImportResult, Importer, Value, count};
use crate::proto::Node;
use stratus_graph::Op;
use stratus_graph::ops::LocalResponseNorm;

pub(super) const OPERATION: OnnxOperation = OnnxOperation {
    kind: "local_response_norm",
    written_as: "`LRN`; even sizes cannot be expressed",
    read_from: "`LRN` of odd size",
    broadcasts: false,
    write,
    operators: &[("LRN", 7, "alpha:f beta:f bias:f size:i", 1)],
    read,
};

/// ONNX shifts a window of even size by one channel, so it cannot be expressed.
fn write(export: &mut Export<'_>, layer: &ExportedLayer<'_>) -> bool {
    let Op::LocalResponseNorm(LocalResponseNorm { size, alpha, beta, k }) = layer.node.op else {
        return false;
    };
    if size % 2 == 0 {
        return false;
    }
    let attributes = Attributes::default().int("size", size as i64).float("alpha", alpha);
    let attributes = attributes.float("beta", beta).float("bias", k);
    export.push(&layer.node.name, "LRN", "", &layer.inputs, layer.output, &attributes);
    true
}

fn read<'a>(importer: &mut Importer<'a>, node: &'a Node<'a>) -> ImportResult<Value> {
    let input = importer.channels_first_input(node, 0)?;
    let number = |name, otherwise| node.attribute(name).map_or(otherwise, |attribute| attribute.float);
    let size = count(node, "size", 0)?;
    if size % 2 == 0 {
        return Err(
            format!("even `size` {size} is not supported: its window is shifted by one channel").into()
        );
    }
    let (alpha, beta, k) = (number("alpha", 1e-4), number("beta", 0.75), number("bias", 1.0));
    importer.push(node, LocalResponseNorm { size, alpha, beta, k }, &[input], vec![])
}
