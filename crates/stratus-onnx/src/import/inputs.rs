//! The inputs of nodes, and the layers that nodes add.

use super::clipping::PARTIAL_CLIP;
use super::gelu::PARTIAL_GELU;
use super::{Dim, DimOrder, ImportError, ImportResult, Importer, Layer, LayerOutput, MAX_LAYERS, Value};
use crate::error::Problem;
use crate::proto::Node;
use crate::tensor::{self, Constant};
use stratus_graph::{Op, Operation, Shape};

impl<'a> Importer<'a> {
    /// The value of an input.
    pub(crate) fn value(&self, node: &Node<'a>, position: usize) -> ImportResult<&Value> {
        let name = node.input(position).ok_or_else(|| format!("missing input {}", position + 1))?;
        match self.values.get(name) {
            Some(Value::Unknown) | None => Err(ImportError::UnsupportedInput),
            Some(value) => Ok(value),
        }
    }

    /// An input that does not depend on the images, or `None` if it is omitted.
    pub(super) fn constant(&self, node: &Node<'a>, position: usize) -> ImportResult<Option<Constant>> {
        if node.input(position).is_none() {
            return Ok(None);
        }
        match self.value(node, position)? {
            Value::Initialiser(position) => {
                let tensor = &self.graph.initialisers[*position];
                self.budget.check(tensor::elements(tensor), tensor.name)?;
                Ok(Some(tensor::read(tensor, self.folder)?))
            }
            Value::Constant(constant) => Ok(Some(constant.clone())),
            Value::Dims(dims) => {
                let known = dims.iter().map(|dim| match dim {
                    Dim::Known(value) => Some(*value),
                    Dim::Batch => None,
                });
                let values: Option<Vec<i64>> = known.collect();
                let values = values.ok_or("a constant depends on the batch size")?;
                Ok(Some(Constant::ints(vec![values.len()], values)))
            }
            Value::Gelu(..) => Err(PARTIAL_GELU.into()),
            Value::Shifted(_) => Err(PARTIAL_CLIP.into()),
            Value::LayerOutput(_) | Value::Unknown => {
                Err(format!("its input {} depends on the images, expected a constant", position + 1).into())
            }
        }
    }

    /// An input that depends on the images, padded or not.
    pub(super) fn padded_layer_input(&self, node: &Node<'a>, position: usize) -> ImportResult<LayerOutput> {
        match self.value(node, position)? {
            Value::LayerOutput(LayerOutput {
                order: DimOrder::Grouped(_) | DimOrder::GroupsTransposed(_),
                ..
            }) => Err("grouped channels are supported only in a channel shuffle".into()),
            Value::LayerOutput(LayerOutput { order: DimOrder::FlatGroups(_), .. }) => {
                Err("groups of channels are supported only in a group norm".into())
            }
            Value::LayerOutput(input) => Ok(*input),
            Value::Gelu(..) => Err(PARTIAL_GELU.into()),
            Value::Shifted(_) => Err(PARTIAL_CLIP.into()),
            _ => Err(format!("its input {} does not depend on the images", position + 1).into()),
        }
    }

    /// An input that depends on the images.
    pub(super) fn layer_input(&self, node: &Node<'a>, position: usize) -> ImportResult<LayerOutput> {
        let input = self.padded_layer_input(node, position)?;
        match input.pad {
            Some(_) => Err("Pad is supported only before convolution and pooling".into()),
            None => Ok(input),
        }
    }

    /// An input that depends on the images, with channels first.
    pub(crate) fn channels_first_input(&self, node: &Node<'a>, position: usize) -> ImportResult<LayerOutput> {
        let input = self.layer_input(node, position)?;
        match input.order {
            DimOrder::ChannelsFirst => Ok(input),
            _ => Err("channels-last input is not supported".into()),
        }
    }

    /// The shape of a layer's output, channels first.
    pub(crate) fn layer_shape(&self, id: usize) -> &Shape {
        id.checked_sub(1).map_or(&self.input, |layer| &self.layers[layer].shape)
    }

    /// The channels, height and width of an image.
    pub(crate) fn image_shape(&self, input: LayerOutput) -> ImportResult<[usize; 3]> {
        Ok(self.layer_shape(input.id).as_image().map_err(|error| error.to_string())?)
    }

    /// The layer of a value, if the value has a single reader.
    pub(crate) fn single_use_layer(&mut self, input: LayerOutput) -> Option<&mut Layer> {
        input.id.checked_sub(1).filter(|_| input.single_use).map(|layer| &mut self.layers[layer])
    }

    pub(super) fn is_single_use(&self, node: &Node<'a>) -> bool {
        node.outputs.first().is_some_and(|name| self.uses.get(name) == Some(&1))
    }

    /// The node that reads the output of a node, if there is only one.
    pub(crate) fn single_reader(&self, node: &Node<'a>) -> Option<&'a Node<'a>> {
        let name = node.outputs.first().filter(|name| !name.is_empty() && self.is_single_use(node))?;
        self.readers.get(name).copied()
    }

    /// Returns the input itself as the output of a node.
    pub(crate) fn alias(&self, node: &Node<'a>, input: LayerOutput) -> Value {
        Value::LayerOutput(LayerOutput { single_use: input.single_use && self.is_single_use(node), ..input })
    }

    /// Adds the layer of a node.
    pub(crate) fn push(
        &mut self,
        node: &Node<'a>,
        op: impl Into<Op>,
        inputs: &[LayerOutput],
        parameters: Vec<Vec<f32>>,
    ) -> ImportResult<Value> {
        let name = self.names.for_node(node);
        let output = self.push_as(name, op, inputs, parameters)?;
        Ok(Value::LayerOutput(LayerOutput { single_use: self.is_single_use(node), ..output }))
    }

    /// Adds a layer with a given name and a single reader.
    pub(super) fn push_as(
        &mut self,
        name: String,
        op: impl Into<Op>,
        inputs: &[LayerOutput],
        parameters: Vec<Vec<f32>>,
    ) -> ImportResult<LayerOutput> {
        if self.layers.len() == MAX_LAYERS {
            return Err(Problem::Limit { items: "layers", limit: MAX_LAYERS as u64 }.into());
        }
        let op = op.into();
        let shapes: Vec<&Shape> = inputs.iter().map(|input| self.layer_shape(input.id)).collect();
        let shape = op.output_shape(&shapes).map_err(|error| error.to_string())?;
        for (spec, values) in op.parameters().iter().zip(&parameters) {
            let expected = Shape(spec.shape.clone()).elements();
            if values.len() != expected {
                return Err(
                    format!("its {} has {} values, expected {expected}", spec.name, values.len()).into()
                );
            }
        }
        self.budget.spend(parameters.iter().map(Vec::len).sum(), &name)?;
        let inputs_not_negative =
            inputs.iter().all(|input| input.id > 0 && self.layers[input.id - 1].not_negative);
        let not_negative = op.is_never_negative(inputs_not_negative);
        let inputs: Vec<usize> = inputs.iter().map(|input| input.id).collect();
        self.layers.push(Layer { name, op, inputs, shape, parameters, not_negative, is_derived: false });
        Ok(LayerOutput { id: self.layers.len(), order: DimOrder::ChannelsFirst, single_use: true, pad: None })
    }
}
