//! Operators that are compositions of layers.
//!
//! ```text
//! -x          a scale by -1
//! |x|         relu(x) + relu(-x)
//! selu(x)     gamma · elu(x)
//! celu(x)     a · elu(x / a)
//! swish(x)    silu(a x) / a
//! mean        the sum, and a scale
//! ```

use super::{ImportResult, Importer, LayerOutput, Value};
use crate::proto::Node;
use stratus_graph::ops::{Add, Elu, Relu, Scale, Silu};

/// The attributes of `Selu` that a node omits.
const SELU: [f32; 2] = [1.673_263_2, 1.050_701];

impl<'a> Importer<'a> {
    pub(super) fn composed(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let number = |name, otherwise| node.attribute(name).map_or(otherwise, |attribute| attribute.float);
        match node.operator {
            "Neg" => {
                let input = self.layer_input(node, 0)?;
                self.times(node, input, -1.0)
            }
            "Abs" => self.absolute(node),
            "Selu" => {
                let elu = Elu { alpha: number("alpha", SELU[0]) };
                self.scaled_elu(node, [1.0, number("gamma", SELU[1])], elu)
            }
            "Celu" => {
                let alpha = number("alpha", 1.0);
                if !alpha.is_normal() || alpha < 0.0 {
                    return Err(format!("unsupported `alpha` {alpha}, expected a number above 0").into());
                }
                self.scaled_elu(node, [alpha.recip(), alpha], Elu { alpha: 1.0 })
            }
            _ => self.mean_of_outputs(node),
        }
    }

    /// Imports `Swish`, which is SiLU if its `alpha` is 1.
    pub(super) fn swish(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let alpha = node.attribute("alpha").map_or(1.0, |alpha| alpha.float);
        if alpha == 1.0 {
            return self.elementwise(node, Silu);
        }
        if !alpha.is_normal() || !alpha.recip().is_normal() {
            return Err(format!("unsupported `alpha` {alpha}").into());
        }
        let input = self.layer_input(node, 0)?;
        let name = self.names.for_node(node);
        let x = self.scaled(input, alpha, &name)?;
        let x = self.push_as(name.clone(), Silu, &[x], vec![])?;
        let x = self.scaled(x, alpha.recip(), &name)?;
        Ok(self.as_output_of(node, x, input))
    }

    fn absolute(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let input = self.layer_input(node, 0)?;
        let name = self.names.for_node(node);
        let [above, below] = ["above", "below"].map(|part| self.names.with_suffix(&name, part));
        let above = self.push_as(above, Relu, &[input], vec![])?;
        let negated = self.negated(input, &name)?;
        let below = self.push_as(below, Relu, &[negated], vec![])?;
        let sum = self.push_as(name, Add, &[above, below], vec![])?;
        Ok(self.as_output_of(node, sum, input))
    }

    /// Adds `after · elu(before · x)`.
    fn scaled_elu(&mut self, node: &'a Node<'a>, [before, after]: [f32; 2], elu: Elu) -> ImportResult<Value> {
        let input = self.layer_input(node, 0)?;
        let name = self.names.for_node(node);
        let x = self.scaled(input, before, &name)?;
        let x = self.push_as(name.clone(), elu, &[x], vec![])?;
        let x = self.scaled(x, after, &name)?;
        Ok(self.as_output_of(node, x, input))
    }

    /// Imports the mean of several layer outputs.
    fn mean_of_outputs(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let inputs: Vec<LayerOutput> =
            (0..node.inputs.len()).map(|at| self.layer_input(node, at)).collect::<ImportResult<_>>()?;
        let first = *inputs.first().ok_or("it has no inputs")?;
        let name = self.names.for_node(node);
        let sum = self.names.with_suffix(&name, "sum");
        let sum = self.sum_of(&inputs, sum)?;
        let mean = self.push_as(name, Scale { factor: 1.0 / inputs.len() as f32 }, &[sum], vec![])?;
        Ok(self.as_output_of(node, mean, first))
    }
}
