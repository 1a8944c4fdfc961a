//! `digits`: the small network of the CloudUT decks for 28×28 digits.
//!
//! Three units of 3×3 convolution, batch norm and ReLU with 8, 16 and 32 filters; 2×2 max pooling after the
//! first two; one linear layer.

use super::{ModelConfig, Network, check_count, image};
use crate::ops::{BatchNorm2d, Conv2d, Flatten, Linear, MaxPool2d, Relu};
use crate::{Graph, GraphBuilder, GraphError};

pub(super) const NETWORK: Network = Network {
    name: "digits",
    description: "3 x (conv 3x3, batch norm, ReLU) of 8/16/32 filters, two max-pools, one linear layer \
            (CloudUT decks)",
    defaults: || ModelConfig { input: [1, 28, 28], classes: 10, width: None },
    build,
};

fn build(config: &ModelConfig) -> Result<Graph, GraphError> {
    let width = check_count("digits", "model.width", config.width.unwrap_or(8))?;
    let classes = check_count("digits", "model.classes", config.classes)?;
    let (mut graph, mut x) = GraphBuilder::new("digits", image(config.input));
    let mut channels = config.input[0];
    for (unit, filters) in [width, 2 * width, 4 * width].into_iter().enumerate() {
        let name = |part: usize| format!("layer{}.{part}", unit + 1);
        x = graph.add(&name(0), Conv2d::new(channels, filters, 3, 1, 1), &[x])?;
        x = graph.add(&name(1), BatchNorm2d::new(filters), &[x])?;
        x = graph.add(&name(2), Relu, &[x])?;
        if unit < 2 {
            x = graph.add(&format!("pool{}", unit + 1), MaxPool2d::new(2, 2, 0), &[x])?;
        }
        channels = filters;
    }
    x = graph.add("flatten", Flatten, &[x])?;
    let in_features = graph.shape(x).elements();
    x = graph.add("fc", Linear::new(in_features, classes), &[x])?;
    graph.finish(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_the_published_size() {
        let graph = build(&(NETWORK.defaults)()).unwrap();
        // Convolutions 72 + 1152 + 4608, batch norms 2 * (8 + 16 + 32), linear 1568 * 10 + 10.
        assert_eq!(graph.trained_parameters(), 72 + 1152 + 4608 + 112 + 15_690);
        assert_eq!(graph.shape(graph.output).to_string(), "10");
        let keys: Vec<&str> = graph.parameters.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(
            keys[..5],
            [
                "layer1.0.weight",
                "layer1.1.weight",
                "layer1.1.bias",
                "layer1.1.running_mean",
                "layer1.1.running_var"
            ]
        );
        assert_eq!(keys[15..], ["fc.weight", "fc.bias"]);
    }

    #[test]
    fn shape_errors_name_the_layer_and_both_shapes() {
        let tiny = ModelConfig { input: [1, 2, 2], classes: 10, width: None };
        let message = build(&tiny).unwrap_err().to_string();
        assert_eq!(
            message,
            "layer `pool2` (max_pool2d): window of 2 pixels exceeds the padded height 1 \
             (1 + 0 + 0)"
        );
        let mut graph = build(&(NETWORK.defaults)()).unwrap();
        graph.tensors[0] = crate::Shape::image(3, 28, 28);
        assert_eq!(
            graph.verify().unwrap_err().to_string(),
            "layer `layer1.0` (conv2d): the weight [8, 1, 3, 3] expects 1 channels, but the input 3x28x28 \
             has 3"
        );
    }
}
