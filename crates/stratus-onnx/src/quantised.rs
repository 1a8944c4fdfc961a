//! Layers that compute with bytes: their inputs and weights pass through `QuantizeLinear` and
//! `DequantizeLinear`, which run times fuse with the operator between them.

use crate::encode::{Attributes, Export};
use std::collections::BTreeMap;
use stratus_graph::Node;

/// The layers of a network that compute with bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuantisedLayers {
    /// The maps that layers read in bytes, by the name of the layer that computes them.
    pub maps: BTreeMap<String, ByteMap>,
    /// The weights by the name of their layer.
    pub weights: BTreeMap<String, ByteWeights>,
}

/// A map in bytes: `real = scale * (byte - zero)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ByteMap {
    /// The difference of the numbers of consecutive bytes.
    pub scale: f32,
    /// The byte that stands for 0.
    pub zero: u8,
    /// True if all layers read it in bytes, false if only those of [`QuantisedLayers::weights`].
    pub is_stored: bool,
}

/// The weights of a layer in signed bytes, and its biases.
#[derive(Clone, Debug, PartialEq)]
pub struct ByteWeights {
    /// The bytes, row-major, output channels slowest.
    pub bytes: Vec<i8>,
    /// The weight that the byte 1 stands for, for each output channel.
    pub scales: Vec<f32>,
    /// The bias of each output channel; `None` for none.
    pub biases: Option<Vec<f32>>,
}

impl Export<'_> {
    /// Adds the nodes that convert the output of a layer to bytes and back, if a layer reads it in bytes, and
    /// remembers the name of the result.
    pub(crate) fn convert_to_bytes(&mut self, node: &Node) {
        let Some(&map) = self.quantised.and_then(|quantised| quantised.maps.get(&node.name)) else { return };
        let name = self.tensors[&node.output].clone();
        let scale = self.constant(&format!("{}.byte_scale", node.name), &[], &[map.scale]);
        let zero = self.byte_constant(&format!("{}.byte_zero", node.name), &[], &[map.zero]);
        let [bytes, real] = ["bytes", "real"].map(|part| self.unique(&format!("{}.{part}", node.name)));
        let plain = Attributes::default();
        let constants = [scale, zero];
        let inputs = |first: &str| [&[first.to_owned()][..], &constants].concat();
        self.push(&bytes, "QuantizeLinear", "", &inputs(&name), &bytes, &plain);
        self.push(&real, "DequantizeLinear", "", &inputs(&bytes), &real, &plain);
        self.in_bytes.insert(node.output, (real, map));
    }

    /// The names of a layer's inputs: those that it reads in bytes after their conversion, and the weights of
    /// a layer that computes with bytes from bytes.
    pub(crate) fn layer_inputs(&mut self, node: &Node) -> Vec<String> {
        let weights = self.quantised.and_then(|quantised| quantised.weights.get(&node.name));
        let mut scale = 1.0;
        let mut inputs = Vec::new();
        for id in &node.inputs {
            let converted = self.in_bytes.get(id).filter(|(_, map)| map.is_stored || weights.is_some());
            match converted {
                Some((name, map)) => {
                    scale = map.scale;
                    inputs.push(name.clone());
                }
                None => inputs.push(self.tensors[id].clone()),
            }
        }
        let Some(ByteWeights { bytes, scales, biases }) = weights else {
            inputs.extend(node.parameters.iter().map(|id| self.graph.parameters[id.0].name.clone()));
            return inputs;
        };
        let channels = [scales.len()];
        let shape = &self.graph.parameters[node.parameters[0].0].shape;
        // Pointwise linear layers are written as convolutions.
        let shape: Vec<usize> = shape.iter().copied().chain([1, 1]).take(shape.len().max(4)).collect();
        let bytes = self.signed_byte_constant(&format!("{}.weight_bytes", node.name), &shape, bytes);
        let scale_name = self.constant(&format!("{}.weight_scales", node.name), &channels, scales);
        let real = self.unique(&format!("{}.real_weight", node.name));
        let axis = Attributes::default().int("axis", 0);
        self.push(&real, "DequantizeLinear", "", &[bytes, scale_name], &real, &axis);
        inputs.push(real);
        if let Some(biases) = biases {
            // Run times add biases to the sums of products.
            let products: Vec<f32> = scales.iter().map(|weight| weight * scale).collect();
            let sums = biases.iter().zip(&products);
            let sums: Vec<i32> =
                sums.map(|(bias, product)| (f64::from(*bias) / f64::from(*product)).round() as i32).collect();
            let bias = self.int32_constant(&format!("{}.bias_sums", node.name), &channels, &sums);
            let scale_name = self.constant(&format!("{}.bias_scales", node.name), &channels, &products);
            let real = self.unique(&format!("{}.real_bias", node.name));
            self.push(&real, "DequantizeLinear", "", &[bias, scale_name], &real, &axis);
            inputs.push(real);
        }
        inputs
    }
}
