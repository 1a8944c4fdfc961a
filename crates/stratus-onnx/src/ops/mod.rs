//! Operations whose export and import are one file, named as in `stratus-graph`. It has the `OPERATION`.

use crate::encode::Export;
use crate::import::{ImportResult, Importer, Value};
use crate::proto::Node;
use stratus_graph::Op;

/// An operator: its name, the first operator set of this version, its attributes with their types (the
/// letters of `import/operators.rs`), and the maximum number of inputs. A set that changes neither attributes
/// nor inputs has no line.
pub(crate) type Signature = (&'static str, i64, &'static str, usize);

/// An operation in ONNX, both ways.
pub(crate) struct OnnxOperation {
    /// The kind of the layers.
    kind: &'static str,
    /// The operators that layers are written as, for the page.
    written_as: &'static str,
    /// The operators that are read as layers, for the page.
    read_from: &'static str,
    /// True if ONNX's parameters broadcast over pixels: `[C]` is written as `[C, 1, 1]`.
    pub broadcasts: bool,
    /// Writes a layer; returns false if ONNX cannot express it.
    pub write: fn(&mut Export<'_>, &ExportedLayer<'_>) -> bool,
    /// The versions of its operators, with the attributes of each.
    operators: &'static [Signature],
    /// Reads one of its operators.
    read: for<'a> fn(&mut Importer<'a>, &'a Node<'a>) -> ImportResult<Value>,
}

/// A layer that is being written.
pub(crate) struct ExportedLayer<'a> {
    /// Its node in the graph.
    pub node: &'a stratus_graph::Node,
    /// The names of its inputs, then of its parameters.
    pub inputs: Vec<String>,
    /// The name of its output.
    pub output: &'a str,
}

macro_rules! operation_files {
    ({} $($module:ident: $operation:ident [$($kernel:ident),*];)*) => {
        $(pub(crate) mod $module;)*

        const OPERATIONS: &[OnnxOperation] = &[$($module::OPERATION),*];
    };
}

stratus_graph::with_operations!(operation_files);

/// The operation of a layer, if it has a file here.
pub(crate) fn find(op: &Op) -> Option<&'static OnnxOperation> {
    let kind = stratus_graph::Operation::kind(op);
    OPERATIONS.iter().find(|operation| operation.kind == kind)
}

/// The rows of the page of ONNX: a kind of layer, the operators it is exported as, and those it is imported
/// from.
pub fn operation_rows() -> impl Iterator<Item = [&'static str; 3]> {
    OPERATIONS.iter().map(|operation| [operation.kind, operation.written_as, operation.read_from])
}

/// The versions of all operators.
pub(crate) fn signatures() -> impl Iterator<Item = &'static Signature> {
    OPERATIONS.iter().flat_map(|operation| operation.operators)
}

/// Reads a node, if its operator belongs to an operation with a file here.
pub(crate) fn read<'a>(importer: &mut Importer<'a>, node: &'a Node<'a>) -> Option<ImportResult<Value>> {
    let has =
        |operation: &&OnnxOperation| operation.operators.iter().any(|(name, ..)| *name == node.operator);
    OPERATIONS.iter().find(has).map(|operation| (operation.read)(importer, node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_sorted_and_share_no_operator() {
        assert!(OPERATIONS.is_sorted_by_key(|operation| operation.kind));
        for operation in OPERATIONS {
            assert!(operation.operators.is_sorted_by_key(|(name, since, ..)| (name, since)));
            for other in OPERATIONS.iter().filter(|other| other.kind != operation.kind) {
                let shared = |(name, ..): &Signature| other.operators.iter().any(|(n, ..)| n == name);
                assert!(!operation.operators.iter().any(shared), "{} {}", operation.kind, other.kind);
            }
        }
    }
}
