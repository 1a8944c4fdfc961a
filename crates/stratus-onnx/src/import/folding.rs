//! Arithmetic of constants in floating point, such as of a batch norm that a converter wrote as
//! `gamma / sqrt(variance + epsilon)`.

use super::{ImportResult, Importer, Value};
use crate::proto::Node;
use crate::tensor::{Constant, Elements};

impl<'a> Importer<'a> {
    /// Evaluates an operator on floating-point constants. `None` if an input is not such a constant, or the
    /// operator none of these.
    pub(super) fn float_arithmetic(&self, node: &Node<'a>) -> ImportResult<Option<Value>> {
        if self.opset < 7 || node.inputs.len() > 2 || !self.is_float(node, 0)? {
            return Ok(None);
        }
        let Some((shape, values)) = self.weight(node, 0)? else { return Ok(None) };
        let unary: fn(f32) -> f32 = match node.operator {
            "Sqrt" => f32::sqrt,
            "Reciprocal" => f32::recip,
            "Neg" => |x| -x,
            _ => return self.binary(node, (shape, values)),
        };
        let values = values.into_iter().map(unary).collect();
        Ok(Some(Value::Constant(Constant::floats(shape, values))))
    }

    fn binary(&self, node: &Node<'a>, a: (Vec<usize>, Vec<f32>)) -> ImportResult<Option<Value>> {
        let operation: fn(f32, f32) -> f32 = match node.operator {
            "Add" => |a, b| a + b,
            "Sub" => |a, b| a - b,
            "Mul" => |a, b| a * b,
            "Div" => |a, b| a / b,
            _ => return Ok(None),
        };
        if !self.is_float(node, 1)? {
            return Ok(None);
        }
        let b = self.weight(node, 1)?.ok_or("missing input 2")?;
        let shape = broadcast_shape(&a.0, &b.0)
            .ok_or_else(|| format!("its inputs of the shapes {:?} and {:?} cannot be broadcast", a.0, b.0))?;
        let count = shape.iter().try_fold(1usize, |count, &dim| count.checked_mul(dim));
        let count = count.ok_or("its result is larger than memory")?;
        self.budget.check(count, super::display_name(node))?;
        let (a, b) = (broadcast(a, &shape, count), broadcast(b, &shape, count));
        let values = a.into_iter().zip(b).map(|(a, b)| operation(a, b)).collect();
        Ok(Some(Value::Constant(Constant::floats(shape, values))))
    }

    /// Returns whether an input is a constant of floating-point numbers.
    fn is_float(&self, node: &Node<'a>, position: usize) -> ImportResult<bool> {
        Ok(match self.value(node, position)? {
            Value::Initialiser(at) => crate::tensor::is_float(self.graph.initialisers[*at].kind),
            Value::Constant(constant) => matches!(constant.elements, Elements::Floats(_)),
            _ => false,
        })
    }
}

/// The shape that both shapes are broadcast to.
fn broadcast_shape(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let dim = |shape: &[usize], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |at| shape[at]);
    let joined = |axis| match (dim(a, axis), dim(b, axis)) {
        (a, b) if a == b || b == 1 => Some(a),
        (1, b) => Some(b),
        _ => None,
    };
    (0..rank).map(joined).collect()
}

/// Repeats values of a shape to a larger shape of `count` elements.
fn broadcast((from, values): (Vec<usize>, Vec<f32>), to: &[usize], count: usize) -> Vec<f32> {
    if values.len() == count {
        return values;
    }
    let position = |index: usize| {
        let (mut rest, mut at, mut step) = (index, 0, 1);
        for (axis, &extent) in to.iter().enumerate().rev() {
            let coordinate = rest % extent.max(1);
            rest /= extent.max(1);
            if let Some(own) = (axis + from.len()).checked_sub(to.len()) {
                at += if from[own] == 1 { 0 } else { coordinate * step };
                step *= from[own];
            }
        }
        values[at]
    };
    (0..count).map(position).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_broadcast_as_in_onnx() {
        assert_eq!(broadcast_shape(&[2, 1, 3], &[4, 1]), Some(vec![2, 4, 3]));
        assert_eq!(broadcast_shape(&[], &[2]), Some(vec![2]));
        assert_eq!(broadcast_shape(&[2], &[3]), None);
        assert_eq!(broadcast_shape(&[0], &[1]), Some(vec![0]));
        let column = (vec![2, 1], vec![1.0, 2.0]);
        assert_eq!(broadcast(column, &[2, 3], 6), [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
        assert_eq!(broadcast((vec![], vec![5.0]), &[2, 1], 2), [5.0, 5.0]);
        assert_eq!(broadcast((vec![3], vec![1.0, 2.0, 3.0]), &[2, 3], 6), [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    }
}
