//! Networks of the operations' examples, for tests of backends, layer files and ONNX.

use super::{DECLARATIONS, OpDeclaration};
use crate::Graph;
use crate::layer_file::{LayerFileError, parse};

/// A network for each of the operations' examples: a convolution of images `[3, 6, 5]` to eight channels, the
/// operation, and a linear layer with ten outputs.
///
/// # Errors
/// If an operation rejects one of its examples.
pub fn example_networks() -> Result<Vec<Graph>, LayerFileError> {
    let texts = DECLARATIONS.iter().flat_map(|op: &OpDeclaration| {
        op.examples.iter().enumerate().map(|(number, attributes)| {
            format!(
                "name = '{kind}-{number}'\ninput = [3, 6, 5]\n\
                 [[layer]]\nname = 'conv'\nop = 'conv2d'\nout_channels = 8\nkernel = 1\n\
                 [[layer]]\nname = '{kind}'\nop = '{kind}'\n{attributes}\n\
                 [[layer]]\nname = 'flatten'\nop = 'flatten'\n\
                 [[layer]]\nname = 'fc'\nop = 'linear'\nout_features = 10\n",
                kind = op.name
            )
        })
    });
    texts.map(|text| parse(&text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer_file::write;

    #[test]
    fn examples_survive_layer_files() {
        for graph in example_networks().unwrap() {
            graph.verify().unwrap();
            let text = write(&graph).unwrap();
            assert_eq!(parse(&text).unwrap(), graph, "{text}");
        }
    }
}
