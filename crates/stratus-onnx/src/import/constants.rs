//! Values that do not depend on the images: constants, and shapes whose first dimension is the batch.

use super::{Dim, ImportError, ImportResult, Importer, MAX_DIM, Value, display_name};
use crate::proto::Node;
use crate::tensor::{self, Constant, Elements, kind};
use stratus_base::printable;

/// The maximum length of a computed shape.
const MAX_SHAPE_LEN: usize = 64;

impl<'a> Importer<'a> {
    /// Evaluates a node with constant inputs. `None` if the node depends on the images.
    pub(super) fn constant_node(&mut self, node: &'a Node<'a>) -> ImportResult<Option<Value>> {
        match node.operator {
            "Constant" => return Ok(Some(Value::Constant(self.constant_attribute(node)?))),
            "Shape" => return self.shape_of(node),
            _ => {}
        }
        let known = |name: &&str| {
            matches!(
                self.values.get(*name),
                Some(Value::Initialiser(_) | Value::Constant(_) | Value::Dims(_))
            )
        };
        let mut inputs = node.inputs.iter().filter(|name| !name.is_empty());
        if node.inputs.is_empty() || !inputs.all(known) {
            return Ok(None);
        }
        if let Some(value) = self.float_arithmetic(node)? {
            return Ok(Some(value));
        }
        let value = match node.operator {
            "Identity" => self.value(node, 0)?.clone(),
            "Cast" => self.cast_constant(node)?,
            "Gather" | "Slice" | "Concat" | "Add" | "Mul" | "Div" => Value::Dims(self.shape_part(node)?),
            "Squeeze" | "Unsqueeze" | "Reshape" | "Transpose" => self.relayout_constant(node)?,
            _ => {
                return Err("constant folding is not supported for this operator".into());
            }
        };
        Ok(Some(value))
    }

    /// The value of a `Constant` node.
    fn constant_attribute(&self, node: &Node<'a>) -> ImportResult<Constant> {
        let [attribute] = &node.attributes[..] else {
            return Err(format!("expected one attribute, found {}", node.attributes.len()).into());
        };
        Ok(match attribute.name {
            "value" | "sparse_value" => match &attribute.tensor {
                Some(value) => {
                    self.budget.check(tensor::elements(value), display_name(node))?;
                    tensor::read(value, self.folder)?
                }
                None => return Err("`value` is not a tensor".into()),
            },
            "value_float" => Constant::floats(vec![], vec![attribute.float]),
            "value_floats" => Constant::floats(vec![attribute.floats.len()], attribute.floats.clone()),
            "value_int" => Constant::ints(vec![], vec![attribute.int]),
            "value_ints" => Constant::ints(vec![attribute.ints.len()], attribute.ints.clone()),
            other => return Err(format!("unsupported attribute `{}`", printable(other)).into()),
        })
    }

    /// Evaluates a `Cast` of a constant.
    fn cast_constant(&self, node: &Node<'a>) -> ImportResult<Value> {
        let to = node.attribute("to").map_or(0, |to| to.int);
        let value = self.value(node, 0)?;
        if let (Value::Dims(_), kind::INT32 | kind::INT64) = (value, to) {
            return Ok(value.clone());
        }
        let constant = self.constant(node, 0)?.ok_or("missing input 1")?;
        Ok(Value::Constant(constant.cast(to)?))
    }

    /// Evaluates `ConstantOfShape`.
    pub(super) fn filled(&self, node: &Node<'a>) -> ImportResult<Value> {
        let mut shape = Vec::new();
        for dim in self.dims(node, 0)? {
            match dim {
                Dim::Known(dim) => {
                    let dim = usize::try_from(dim).ok().filter(|&dim| dim <= MAX_DIM);
                    shape.push(dim.ok_or("invalid dimension in its shape")?);
                }
                Dim::Batch => {
                    return Err("its shape depends on the batch size".into());
                }
            }
        }
        let count = shape.iter().try_fold(1usize, |count, &dim| count.checked_mul(dim));
        let count = count.ok_or("its shape is larger than memory")?;
        self.budget.check(count, display_name(node))?;
        let value = match node.attribute("value") {
            None => Constant::floats(vec![1], vec![0.0]),
            Some(attribute) => match &attribute.tensor {
                Some(value) => {
                    self.budget.check(tensor::elements(value), display_name(node))?;
                    tensor::read(value, self.folder)?
                }
                None => return Err("`value` is not a tensor".into()),
            },
        };
        let elements = match &value.elements {
            Elements::Floats(values) if values.len() == 1 => Elements::Floats(vec![values[0]; count]),
            Elements::Ints(values) if values.len() == 1 => Elements::Ints(vec![values[0]; count]),
            _ => return Err(format!("`value` has the shape {:?}, expected one element", value.shape).into()),
        };
        Ok(Value::Constant(Constant { shape, elements }))
    }

    /// Evaluates `Shape`.
    fn shape_of(&self, node: &Node<'a>) -> ImportResult<Option<Value>> {
        let Value::LayerOutput(input) = self.value(node, 0)? else {
            return Err("supported only for layer outputs".into());
        };
        let input = match input.pad {
            Some(_) => return Err("the shape of a padded input is not supported".into()),
            None => input,
        };
        if matches!(input.order, super::DimOrder::Grouped(_) | super::DimOrder::GroupsTransposed(_)) {
            return Err("the shape of grouped channels is not supported".into());
        }
        let shape = &self.layer_shape(input.id).0;
        let mut dims = vec![Dim::Batch];
        dims.extend(shape.iter().map(|&dim| Dim::Known(dim as i64)));
        if input.order == super::DimOrder::ChannelsLast && dims.len() == 4 {
            dims[1..].rotate_left(1);
        }
        let count = dims.len() as i64;
        let at = |name: &str, otherwise: i64| {
            let position = node.attribute(name).map_or(otherwise, |attribute| attribute.int);
            (if position < 0 { position.saturating_add(count) } else { position }).clamp(0, count) as usize
        };
        let (start, end) = (at("start", 0), at("end", count));
        Ok(Some(Value::Dims(dims.get(start..end).unwrap_or_default().to_vec())))
    }

    /// An input as a list of dimensions.
    pub(crate) fn dims(&self, node: &Node<'a>, position: usize) -> ImportResult<Vec<Dim>> {
        if let Value::Dims(dims) = self.value(node, position)? {
            return Ok(dims.clone());
        }
        match self.constant(node, position)? {
            Some(Constant { shape, elements: Elements::Ints(values) })
                if values.len() <= MAX_SHAPE_LEN && shape.len() < 2 =>
            {
                Ok(values.into_iter().map(Dim::Known).collect())
            }
            _ => Err(format!("its input {} is not a shape", position + 1).into()),
        }
    }

    /// A list of integers, which is an attribute or, in later operator sets, an input.
    pub(super) fn int_list(
        &self,
        node: &Node<'a>,
        name: &str,
        position: usize,
    ) -> ImportResult<Option<Vec<i64>>> {
        if let Some(attribute) = node.attribute(name) {
            return Ok(Some(attribute.ints.clone()));
        }
        match self.constant(node, position)?.map(|constant| constant.elements) {
            None => Ok(None),
            Some(Elements::Ints(values)) => Ok(Some(values)),
            Some(Elements::Floats(_)) => Err(format!("`{name}` must be integers").into()),
        }
    }

    /// Evaluates an operator on shapes: slices, concatenation and arithmetic.
    fn shape_part(&self, node: &Node<'a>) -> ImportResult<Vec<Dim>> {
        let first = self.dims(node, 0)?;
        let position = |index: i64| {
            let index = if index < 0 { index.checked_add(first.len() as i64)? } else { index };
            usize::try_from(index).ok()
        };
        // A shape is a vector.
        let axis = node.attribute("axis").map_or(0, |axis| axis.int);
        if axis != 0 && axis != -1 {
            return Err(format!("`axis` {axis} is out of range for a shape").into());
        }
        let found = match node.operator {
            "Gather" => match self.constant(node, 1)? {
                Some(Constant { shape, elements: Elements::Ints(indices) }) if shape.len() < 2 => {
                    indices.into_iter().map(|index| first.get(position(index)?).copied()).collect()
                }
                _ => None,
            },
            "Slice" => {
                let bound = |name, position| -> ImportResult<Option<i64>> {
                    match self.int_list(node, name, position)?.as_deref() {
                        None => Ok(None),
                        Some([bound]) => Ok(Some(*bound)),
                        Some(bounds) => {
                            Err(format!("`{name}` {bounds:?} has more than one axis of a shape").into())
                        }
                    }
                };
                if bound("axes", 3)?.is_some_and(|axis| axis != 0 && axis != -1) {
                    return Err("`axes` is out of range for a shape".into());
                }
                let step = bound("steps", 4)?;
                let (start, end) = (bound("starts", 1)?, bound("ends", 2)?);
                let clamped = |index: Option<i64>| Some(position(index?).unwrap_or(0).min(first.len()));
                match (clamped(start), clamped(end), step.unwrap_or(1)) {
                    (Some(start), Some(end), 1) => Some(first.get(start..end).unwrap_or_default().to_vec()),
                    _ => None,
                }
            }
            "Add" | "Mul" | "Div" => {
                let computed = |a: i64, b: i64| match node.operator {
                    "Add" => a.checked_add(b),
                    "Mul" => a.checked_mul(b),
                    _ => a.checked_div(b),
                };
                let second = self.dims(node, 1)?;
                let len = first.len().max(second.len());
                let at = |list: &[Dim], i: usize| {
                    if list.len() == 1 { list.first().copied() } else { list.get(i).copied() }
                };
                (0..len)
                    .map(|i| match (at(&first, i)?, at(&second, i)?) {
                        (Dim::Known(a), Dim::Known(b)) => computed(a, b).map(Dim::Known),
                        _ => None,
                    })
                    .collect()
            }
            _ => {
                let mut all = first;
                for position in 1..node.inputs.len() {
                    all.extend(self.dims(node, position)?);
                    if all.len() > MAX_SHAPE_LEN {
                        return Err("its shape has too many dimensions".into());
                    }
                }
                Some(all)
            }
        };
        found.ok_or_else(|| "unsupported computation of a shape".into())
    }

    /// Evaluates an operator that reshapes or reorders a constant.
    fn relayout_constant(&self, node: &Node<'a>) -> ImportResult<Value> {
        let value = self.value(node, 0)?;
        if let (Value::Dims(list), "Squeeze" | "Unsqueeze") = (value, node.operator)
            && list.len() < 2
        {
            // Readers of a shape do not distinguish a scalar from a list of one element.
            return Ok(value.clone());
        }
        let Some(mut constant) = self.constant(node, 0)? else { return Err(ImportError::UnsupportedInput) };
        let rank = constant.shape.len();
        if node.operator == "Transpose" {
            let order: Option<Vec<usize>> = match node.attribute("perm") {
                Some(order) => order.ints.iter().map(|&axis| usize::try_from(axis).ok()).collect(),
                None => Some((0..rank).rev().collect()),
            };
            let moved = order.and_then(|order| constant.transposed(&order));
            return moved.map(Value::Constant).ok_or_else(|| "`perm` is not a permutation".into());
        }
        let count: usize = constant.shape.iter().product();
        let shape = match node.operator {
            "Reshape" => {
                let target = self.int_list(node, "shape", 1)?.ok_or("missing shape")?;
                if allows_zero(node) && target.contains(&0) {
                    return Err("an empty tensor (`allowzero` 1) is not supported".into());
                }
                reshaped(&constant.shape, &target)
            }
            "Unsqueeze" => {
                let axes = self.int_list(node, "axes", 1)?.ok_or("missing `axes`")?;
                unsqueezed(&constant.shape, &axes)
            }
            _ => squeezed(&constant.shape, self.int_list(node, "axes", 1)?.as_deref()),
        };
        let fits =
            shape.filter(|shape| shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim)) == Some(count));
        constant.shape = fits.ok_or("its shape has another number of elements")?;
        Ok(Value::Constant(constant))
    }

    /// A constant input as a 32-bit floating-point weight.
    pub(super) fn weight(
        &self,
        node: &Node<'a>,
        position: usize,
    ) -> ImportResult<Option<(Vec<usize>, Vec<f32>)>> {
        match self.constant(node, position)? {
            None => Ok(None),
            Some(Constant { shape, elements: Elements::Floats(values) }) => Ok(Some((shape, values))),
            Some(_) => {
                Err(format!("its input {} has integers, expected floating-point weights", position + 1)
                    .into())
            }
        }
    }

    /// A number, which is an attribute or, in later operator sets, an input.
    pub(super) fn scalar_input(
        &self,
        node: &Node<'a>,
        name: &str,
        position: usize,
    ) -> ImportResult<Option<f32>> {
        if let Some(attribute) = node.attribute(name) {
            return Ok(Some(attribute.float));
        }
        match self.constant(node, position)? {
            None => Ok(None),
            Some(constant) => {
                let value = constant.scalar().ok_or_else(|| format!("`{name}` must be a single number"))?;
                Ok(Some(value))
            }
        }
    }
}

/// The result shape of `Reshape`, in which 0 keeps a dimension and -1 is inferred.
fn reshaped(shape: &[usize], target: &[i64]) -> Option<Vec<usize>> {
    if target.iter().filter(|&&dim| dim == -1).count() > 1 {
        return None;
    }
    let count = shape.iter().product::<usize>();
    let mut result = Vec::new();
    for (axis, &dim) in target.iter().enumerate() {
        result.push(match dim {
            0 => *shape.get(axis)?,
            -1 => 1,
            dim => usize::try_from(dim).ok()?,
        });
    }
    let known = result.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim))?;
    if let Some(inferred) = target.iter().position(|&dim| dim == -1) {
        result[inferred] = count.checked_div(known)?;
    }
    Some(result)
}

fn unsqueezed(shape: &[usize], axes: &[i64]) -> Option<Vec<usize>> {
    let rank = shape.len() + axes.len();
    let axes: Vec<usize> = axes
        .iter()
        .map(|&axis| usize::try_from(if axis < 0 { axis.checked_add(rank as i64)? } else { axis }).ok())
        .collect::<Option<_>>()?;
    let mut rest = shape.iter().copied();
    (0..rank).map(|axis| if axes.contains(&axis) { Some(1) } else { rest.next() }).collect()
}

/// The shape without the dimensions of 1 in `axes`, or without all of them.
fn squeezed(shape: &[usize], axes: Option<&[i64]>) -> Option<Vec<usize>> {
    let Some(axes) = axes else { return Some(shape.iter().copied().filter(|&dim| dim != 1).collect()) };
    let rank = shape.len() as i64;
    let mut kept: Vec<Option<usize>> = shape.iter().copied().map(Some).collect();
    for &axis in axes {
        let axis = if axis < 0 { axis.checked_add(rank)? } else { axis };
        let dropped = kept.get_mut(usize::try_from(axis).ok()?)?.take();
        if dropped != Some(1) {
            return None;
        }
    }
    Some(kept.into_iter().flatten().collect())
}

/// Returns whether a 0 in the shape of a `Reshape` is a dimension of 0 instead of the current dimension.
pub(super) fn allows_zero(node: &Node<'_>) -> bool {
    node.attribute("allowzero").is_some_and(|allow| allow.int != 0)
}

/// The shape of one image in a shape of a batch, with 0 and -1 resolved. `None` if it is not the shape of a
/// batch. `batch` is the batch size of the model.
pub(crate) fn shape_per_image(dims: &[Dim], current: &[usize], batch: i64) -> Option<Vec<usize>> {
    let (first, rest) = dims.split_first()?;
    let count: usize = current.iter().product();
    // A fixed batch size also counts as the batch. With a -1 in the rest, the first dimension must be the
    // batch.
    let inferred = rest.iter().filter(|dim| **dim == Dim::Known(-1)).count();
    let is_batch = matches!(first, Dim::Batch | Dim::Known(0)) || *first == Dim::Known(batch);
    if inferred > 1 || (inferred == 1 && !is_batch) {
        return None;
    }
    let dim = |(axis, dim): (usize, &Dim)| match dim {
        Dim::Known(0) => current.get(axis).copied(),
        Dim::Known(-1) => Some(1),
        Dim::Known(dim) => usize::try_from(*dim).ok(),
        Dim::Batch => None,
    };
    let mut shape: Vec<usize> = rest.iter().enumerate().map(dim).collect::<Option<_>>()?;
    let product = |shape: &[usize]| shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
    if let Some(position) = rest.iter().position(|dim| *dim == Dim::Known(-1)) {
        shape[position] = count.checked_div(product(&shape)?)?;
    }
    (product(&shape) == Some(count)).then_some(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolves_the_shape_of_one_image() {
        let known = |values: &[i64]| values.iter().map(|&value| Dim::Known(value)).collect::<Vec<_>>();
        let image = [4, 2, 3];
        let resolve = |dims: &[Dim]| shape_per_image(dims, &image, 2);
        assert_eq!(resolve(&[Dim::Batch, Dim::Known(-1)]), Some(vec![24]));
        assert_eq!(resolve(&known(&[-1, 24])), Some(vec![24]));
        assert_eq!(resolve(&known(&[0, -1])), Some(vec![24]));
        assert_eq!(resolve(&known(&[1, 24])), Some(vec![24]));
        assert_eq!(resolve(&known(&[2, -1])), Some(vec![24]));
        assert_eq!(resolve(&known(&[0, 0, -1])), Some(vec![4, 6]));
        assert_eq!(resolve(&known(&[0, 0, 0, 0])), Some(vec![4, 2, 3]));
        for wrong in
            [&[][..], &[-1], &[-1, -1], &[-1, 12], &[6, -1], &[0, 5, -1], &[0, i64::MAX, i64::MAX], &[0, -2]]
        {
            assert_eq!(resolve(&known(wrong)), None, "{wrong:?}");
        }
        assert_eq!(resolve(&[Dim::Known(-1), Dim::Batch]), None);
    }

    #[test]
    fn computes_reshaped_and_squeezed_shapes() {
        assert_eq!(reshaped(&[6], &[2, -1]), Some(vec![2, 3]));
        assert_eq!(reshaped(&[6, 2], &[0, 2]), Some(vec![6, 2]));
        assert_eq!(reshaped(&[6], &[0, 0]), None);
        assert_eq!(reshaped(&[6], &[0, -3]), None);
        assert_eq!(unsqueezed(&[5], &[1, 2]), Some(vec![5, 1, 1]));
        assert_eq!(unsqueezed(&[5], &[0, -1]), Some(vec![1, 5, 1]));
        assert_eq!(unsqueezed(&[5], &[7]), None);
        assert_eq!(squeezed(&[1, 4, 1], None), Some(vec![4]));
        assert_eq!(squeezed(&[1, 4, 1], Some(&[0])), Some(vec![4, 1]));
        assert_eq!(squeezed(&[1, 4, 1], Some(&[-1, 0])), Some(vec![4]));
        for axes in [&[1][..], &[3], &[-4], &[0, 0], &[i64::MIN]] {
            assert_eq!(squeezed(&[1, 4, 1], Some(axes)), None, "{axes:?}");
        }
    }
}
