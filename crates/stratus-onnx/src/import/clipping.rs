//! `Clip`, `Min` and `Max` with any bounds, also of a shifted input: a hard sigmoid, and with it hard swish,
//! in older operators.
//!
//! ```text
//! clip(x, 0, 6)          ReLU6, a layer
//! clip(x + b, lo, hi)    lo + w · hard_sigmoid(x / w + (b - lo) / w) with w = hi - lo
//! clip(x, lo, hi)        hi · hard_sigmoid(x / hi) + lo · hard_sigmoid(x / lo) for lo <= 0 <= hi
//! max(x, lo)             relu(x) + lo · hard_sigmoid(x / lo) for lo <= 0
//! min(x, hi)             hi · hard_sigmoid(x / hi) - relu(-x) for hi >= 0
//! ```

use super::layers::in_order;
use super::{ImportResult, Importer, LayerOutput, Value};
use crate::proto::Node;
use stratus_graph::Op;
use stratus_graph::ops::{Add, HardSigmoid, Relu, Relu6, Scale};

/// A layer's output plus a number, the beginning of a hard sigmoid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shifted {
    pub input: LayerOutput,
    shift: f32,
    /// True if the sum is also bounded by 0 from below.
    is_floored: bool,
}

/// The error of a node that reads an unfinished hard sigmoid.
pub(super) const PARTIAL_CLIP: &str = "incomplete hard sigmoid, expected `clip(x + b, low, high)`";

/// The bounds of a `Clip`, infinite if it has none.
type Bounds = [f32; 2];

impl<'a> Importer<'a> {
    /// Returns the sum of a layer output and a number as the beginning of a hard sigmoid, if it is one.
    pub(super) fn shifted(&self, node: &Node<'a>, input: LayerOutput, shift: f32) -> Option<Value> {
        let reader = self.single_reader(node).filter(|_| shift.is_finite())?;
        let reads_first = reader.inputs.first() == node.outputs.first();
        let is_clipped = match reader.operator {
            "Clip" if reads_first => self.clip_bounds(reader).is_ok_and(|[low, high]| is_interval(low, high)),
            "Relu" => self.single_reader(reader).is_some_and(|next| next.operator == "Min"),
            _ => false,
        };
        is_clipped.then_some(Value::Shifted(Shifted { input, shift, is_floored: false }))
    }

    /// Imports the ReLU of a shifted input, which [`Self::shifted`] knows to be followed by `Min`.
    pub(super) fn relu(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        if let Value::Shifted(shifted) = *self.value(node, 0)? {
            return Ok(Value::Shifted(Shifted { is_floored: true, ..shifted }));
        }
        let input = self.layer_input(node, 0)?;
        self.elementwise_of(node, input, Relu)
    }

    pub(super) fn clip(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let [low, high] = self.clip_bounds(node)?;
        if low > high || low.is_nan() || high.is_nan() {
            return Err(format!("unsupported bounds {low} and {high}, expected numbers in order").into());
        }
        if let Value::Shifted(Shifted { input, shift, .. }) = *self.value(node, 0)? {
            return self.hard_sigmoid(node, input, shift, [low, high]);
        }
        let input = self.layer_input(node, 0)?;
        self.clipped(node, input, [low, high])
    }

    /// The bounds of a `Clip`, of which those beyond f32 are infinite.
    fn clip_bounds(&self, node: &Node<'a>) -> ImportResult<Bounds> {
        let low = self.scalar_input(node, "min", 1)?.filter(|&low| low > f32::MIN || low.is_nan());
        let high = self.scalar_input(node, "max", 2)?.filter(|&high| high < f32::MAX || high.is_nan());
        Ok([low.unwrap_or(f32::NEG_INFINITY), high.unwrap_or(f32::INFINITY)])
    }

    /// Imports the minimum or the maximum of a layer output and a number, or of two layer outputs.
    pub(super) fn extremum(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let is_minimum = node.operator == "Min";
        let is_output = |value: &Value| matches!(value, Value::LayerOutput(_) | Value::Shifted(_));
        let is_second = !is_output(self.value(node, 0)?);
        if node.inputs.len() != 2 {
            return Err("unsupported number of inputs, expected a layer output and a number".into());
        }
        let (first, other) = (usize::from(is_second), usize::from(!is_second));
        if is_output(self.value(node, other)?) {
            return self.extremum_of_outputs(node);
        }
        let value = self.value(node, first)?.clone();
        let (Value::LayerOutput(input) | Value::Shifted(Shifted { input, .. })) = value else {
            return Err(super::ImportError::UnsupportedInput);
        };
        let bound = self.constant(node, other)?.and_then(|constant| self.scalar_constant(input, &constant));
        let bound = bound.filter(|bound| !bound.is_nan());
        let bound = bound.ok_or("unsupported bound, expected one number")?;
        let bounds = if is_minimum { [f32::NEG_INFINITY, bound] } else { [bound, f32::INFINITY] };
        if let Value::Shifted(Shifted { input, shift, is_floored }) = value {
            let low = if is_floored { 0.0 } else { bounds[0] };
            return self.hard_sigmoid(node, input, shift, [low, bounds[1]]);
        }
        let input = self.layer_input(node, first)?;
        let not_negative = input.id > 0 && self.layers[input.id - 1].not_negative;
        if is_minimum && not_negative && bound >= 0.0 {
            return self.clipped(node, input, [0.0, bound]);
        }
        self.clipped(node, input, bounds)
    }

    /// Imports `max(a, b)` as `a + relu(b - a)`, `min(a, b)` as `a - relu(a - b)`.
    fn extremum_of_outputs(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let [a, b] = [self.layer_input(node, 0)?, self.layer_input(node, 1)?];
        if a.order != b.order || self.layer_shape(a.id) != self.layer_shape(b.id) {
            return Err("its inputs differ in shape or dimension order".into());
        }
        let name = self.names.for_node(node);
        let (larger, smaller, sign) = if node.operator == "Max" { (b, a, 1.0) } else { (a, b, -1.0) };
        let [difference, excess, part] =
            ["difference", "excess", "part"].map(|suffix| self.names.with_suffix(&name, suffix));
        let negated = self.negated(smaller, &name)?;
        let difference = self.push_as(difference, Add, &[larger, negated], vec![])?;
        let excess = self.push_as(excess, Relu, &[difference], vec![])?;
        let excess = self.scaled(excess, sign, &part)?;
        let output = self.push_as(name, Add, &[a, excess], vec![])?;
        Ok(self.as_output_of(node, output, a))
    }

    /// Adds the layers of an input within bounds.
    fn clipped(
        &mut self,
        node: &'a Node<'a>,
        input: LayerOutput,
        [low, high]: Bounds,
    ) -> ImportResult<Value> {
        match [low, high] {
            [f32::NEG_INFINITY, f32::INFINITY] => return Ok(self.alias(node, input)),
            [0.0, f32::INFINITY] => return self.elementwise_of(node, input, Relu),
            [0.0, Relu6::CEILING] => return self.relu6(node, input),
            _ => {}
        }
        if low > 0.0 || high < 0.0 {
            if low.is_finite() && high.is_finite() && low < high {
                return self.hard_sigmoid(node, input, 0.0, [low, high]);
            }
            return Err(format!("unsupported bounds {low} and {high}, expected 0 between them").into());
        }
        let name = self.names.for_node(node);
        let mut parts = Vec::new();
        for (bound, sign) in [(high, 1.0), (low, -1.0)] {
            if bound == 0.0 {
                continue;
            }
            let part = self.names.with_suffix(&name, if sign > 0.0 { "above" } else { "below" });
            let mut x = input;
            if sign < 0.0 {
                x = self.negated(x, &part)?;
            }
            if bound.is_infinite() {
                x = self.push_as(part.clone(), Relu, &[x], vec![])?;
            } else {
                let sigmoid = HardSigmoid { alpha: bound.abs().recip(), beta: 0.0 };
                x = self.push_as(part.clone(), sigmoid, &[x], vec![])?;
            }
            let factor = if bound.is_infinite() { sign } else { bound };
            parts.push(self.scaled(x, factor, &part)?);
        }
        let output = match parts[..] {
            [part] => part,
            [above, below] => self.push_as(name, Add, &[above, below], vec![])?,
            // The bounds are 0 and 0.
            _ => return Err("both bounds are 0: its result is constant".into()),
        };
        Ok(self.as_output_of(node, output, input))
    }

    /// Adds the layers of `clip(x + shift, low, high)`, bounded on both sides.
    fn hard_sigmoid(
        &mut self,
        node: &'a Node<'a>,
        input: LayerOutput,
        shift: f32,
        [low, high]: Bounds,
    ) -> ImportResult<Value> {
        if !is_interval(low, high) {
            return Err(format!("unsupported bounds {low} and {high} of a sum, expected two numbers").into());
        }
        let width = high - low;
        // A preceding product with a number becomes a part of the slope.
        let mut x = input;
        let mut slope = 1.0;
        if let Some(layer) = self.single_use_layer(input)
            && let Op::Scale(Scale { factor }) = layer.op
            && factor > 0.0
        {
            slope = factor;
            x = LayerOutput { id: layer.inputs[0], single_use: false, ..input };
        }
        let sigmoid = HardSigmoid { alpha: slope / width, beta: (shift - low) / width };
        let name = self.names.for_node(node);
        let mut output = self.push_as(name.clone(), rounded(sigmoid), &[x], vec![])?;
        if low == 0.0 {
            output = self.scaled(output, width, &name)?;
        } else {
            let channels = self.image_shape(input).map_err(|_| "of a vector needs a lower bound of 0")?[0];
            let name = self.names.with_suffix(&name, "affine");
            output = self.affine(name, output, vec![width; channels], vec![low; channels])?;
        }
        Ok(self.as_output_of(node, output, input))
    }

    /// Adds the product with -1.
    pub(super) fn negated(&mut self, x: LayerOutput, name: &str) -> ImportResult<LayerOutput> {
        let name = self.names.with_suffix(name, "negated");
        self.push_as(name, Scale { factor: -1.0 }, &[x], vec![])
    }

    /// Adds the product with a factor, which is merged with products behind it. None is added for 1.
    pub(super) fn scaled(&mut self, x: LayerOutput, factor: f32, name: &str) -> ImportResult<LayerOutput> {
        if factor == 1.0 {
            return Ok(x);
        }
        let name = self.names.with_suffix(name, "scaled");
        let scaled = self.push_as(name, Scale { factor }, &[x], vec![])?;
        self.layers[scaled.id - 1].is_derived = true;
        Ok(scaled)
    }

    /// Returns an output as that of a node, in the dimension order of the node's input.
    pub(super) fn as_output_of(&self, node: &Node<'a>, output: LayerOutput, input: LayerOutput) -> Value {
        let value = Value::LayerOutput(LayerOutput { single_use: self.is_single_use(node), ..output });
        in_order(value, input.order)
    }

    /// Multiplies by a number. The product with a factor that the import added itself is merged with it.
    pub(super) fn times(
        &mut self,
        node: &'a Node<'a>,
        input: LayerOutput,
        factor: f32,
    ) -> ImportResult<Value> {
        let derived = self.single_use_layer(input).filter(|layer| layer.is_derived);
        let merged = derived.and_then(|layer| match layer.op {
            Op::Scale(Scale { factor: known }) => Some((layer, known * factor)),
            _ => None,
        });
        let Some((layer, product)) = merged.filter(|(_, product)| product.is_finite()) else {
            return self.elementwise_of(node, input, Scale { factor });
        };
        let id = layer.inputs[0];
        if (product - 1.0).abs() < 1e-6 {
            // The scale has no readers left and is dropped.
            let output = LayerOutput { id, ..input };
            return Ok(self.as_output_of(node, output, input));
        }
        layer.op = Scale { factor: product }.into();
        Ok(self.alias(node, input))
    }

    /// Adds ReLU6, replacing a preceding ReLU.
    fn relu6(&mut self, node: &'a Node<'a>, input: LayerOutput) -> ImportResult<Value> {
        if let Some(layer) = self.single_use_layer(input)
            && matches!(layer.op, Op::Relu(_))
        {
            layer.op = Relu6.into();
            return Ok(self.alias(node, input));
        }
        self.elementwise_of(node, input, Relu6)
    }
}

fn is_interval(low: f32, high: f32) -> bool {
    low.is_finite() && high.is_finite() && low < high
}

/// The standard hard sigmoid if the attributes are its own except for rounding.
fn rounded(sigmoid: HardSigmoid) -> HardSigmoid {
    let standard = HardSigmoid::default();
    let is_standard = (sigmoid.alpha - standard.alpha).abs() < 1e-7 && sigmoid.beta == standard.beta;
    if is_standard { standard } else { sigmoid }
}
