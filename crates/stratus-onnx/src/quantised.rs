//! Layers that run in int8: their inputs and weights pass through `QuantizeLinear` and
//! `DequantizeLinear`, which run times fuse with the operator between them.

use crate::encode::{Attributes, Export};
use std::collections::BTreeMap;
use stratus_graph::Node;

/// The layers of a network that run in int8.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuantisedLayers {
    /// The maps that layers read in int8, by the name of the layer that computes them.
    pub maps: BTreeMap<String, Uint8Map>,
    /// The weights by the name of their layer.
    pub weights: BTreeMap<String, Int8Weights>,
}

/// A map in int8: `real = scale * (byte - zero_point)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Uint8Map {
    /// The difference of the numbers of consecutive bytes.
    pub scale: f32,
    /// The byte that stands for 0.
    pub zero_point: u8,
    /// True if all layers read it in uint8, false if only those of [`QuantisedLayers::weights`].
    pub is_stored: bool,
}

/// The weights of a layer in signed bytes, and its biases.
#[derive(Clone, Debug, PartialEq)]
pub struct Int8Weights {
    /// The bytes, row-major, output channels slowest.
    pub bytes: Vec<i8>,
    /// The weight that the byte 1 stands for, for each output channel.
    pub scales: Vec<f32>,
    /// The bias of each output channel; `None` for none.
    pub biases: Option<Vec<f32>>,
}

impl Export<'_> {
    /// Adds the nodes that convert the output of a layer to uint8 and back, if a layer reads it in int8, and
    /// remembers the name of the result.
    pub(crate) fn convert_to_bytes(&mut self, node: &Node) {
        let Some(&map) = self.quantised.and_then(|quantised| quantised.maps.get(&node.name)) else { return };
        let name = self.tensors[&node.output].clone();
        let scale = self.constant(&format!("{}.byte_scale", node.name), &[], &[map.scale]);
        let zero = self.byte_constant(&format!("{}.byte_zero", node.name), &[], &[map.zero_point]);
        let [bytes, real] = ["bytes", "real"].map(|part| self.unique(&format!("{}.{part}", node.name)));
        let plain = Attributes::default();
        let constants = [scale, zero];
        let inputs = |first: &str| [&[first.to_owned()][..], &constants].concat();
        self.push(&bytes, "QuantizeLinear", "", &inputs(&name), &bytes, &plain);
        self.push(&real, "DequantizeLinear", "", &inputs(&bytes), &real, &plain);
        self.in_int8.insert(node.output, (real, map));
    }

    /// The names of a layer's inputs: those that it reads in int8 after their conversion, and the weights of
    /// a layer that runs in int8 from bytes.
    pub(crate) fn layer_inputs(&mut self, node: &Node) -> Vec<String> {
        let weights = self.quantised.and_then(|quantised| quantised.weights.get(&node.name));
        let mut scale = 1.0;
        let mut inputs = Vec::new();
        for id in &node.inputs {
            let converted = self.in_int8.get(id).filter(|(_, map)| map.is_stored || weights.is_some());
            match converted {
                Some((name, map)) => {
                    scale = map.scale;
                    inputs.push(name.clone());
                }
                None => inputs.push(self.tensors[id].clone()),
            }
        }
        let Some(Int8Weights { bytes, scales, biases }) = weights else {
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
            inputs.push(self.biases(node, biases, scales, scale));
        }
        inputs
    }

    /// Adds the biases of a layer, and returns their name. Run times add them to the 32-bit sums of products;
    /// if one of them is too large for that, because the weights of its channel are tiny, they remain f32.
    fn biases(&mut self, node: &Node, biases: &[f32], scales: &[f32], input_scale: f32) -> String {
        const MAX_SUM: f64 = (1_u32 << 30) as f64;
        let name = &node.name;
        let channels = [scales.len()];
        let products: Vec<f32> = scales.iter().map(|weight| weight * input_scale).collect();
        let sums: Vec<f64> = std::iter::zip(biases, &products)
            .map(|(bias, product)| (f64::from(*bias) / f64::from(*product)).round())
            .collect();
        if !sums.iter().all(|sum| sum.abs() <= MAX_SUM) {
            return self.constant(&format!("{name}.biases"), &channels, biases);
        }
        let sums: Vec<i32> = sums.into_iter().map(|sum| sum as i32).collect();
        let sums = self.int32_constant(&format!("{name}.bias_sums"), &channels, &sums);
        let products = self.constant(&format!("{name}.bias_scales"), &channels, &products);
        let real = self.unique(&format!("{name}.real_bias"));
        let axis = Attributes::default().int("axis", 0);
        self.push(&real, "DequantizeLinear", "", &[sums, products], &real, &axis);
        real
    }
}
