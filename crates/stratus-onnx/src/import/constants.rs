//! What does not depend on the images: numbers that layers are made with, and shapes, whose first extent is
//! the open batch.

use super::moving::takes_zero;
use super::{Extent, ImportResult, Importer, LARGEST, Refusal, Value, called, too_much_filled};
use crate::proto::Node;
use crate::tensor::{self, Constant, Elements, kind};
use stratus_base::printable;

/// The most numbers of a shape that is computed.
const LONGEST_SHAPE: usize = 64;

impl<'a> Importer<'a> {
    /// The value of a node whose result is known; none where a layer computes it.
    pub(super) fn constant_node(&mut self, node: &'a Node<'a>) -> ImportResult<Option<Value>> {
        match node.operator {
            "Constant" => return Ok(Some(Value::Constant(self.given(node)?))),
            "Shape" => return self.shape_of(node),
            _ => {}
        }
        let known = |name: &&str| {
            matches!(
                self.values.get(*name),
                Some(Value::Initialiser(_) | Value::Constant(_) | Value::Extents(_))
            )
        };
        let mut inputs = node.inputs.iter().filter(|name| !name.is_empty());
        if node.inputs.is_empty() || !inputs.all(known) {
            return Ok(None);
        }
        let value = match node.operator {
            "Identity" => self.value(node, 0)?.clone(),
            "Cast" => self.cast_constant(node)?,
            "Gather" | "Slice" | "Concat" | "Add" | "Mul" | "Div" => Value::Extents(self.shape_part(node)?),
            "Squeeze" | "Unsqueeze" | "Reshape" | "Transpose" => self.moved(node)?,
            _ => {
                return Err("all its inputs are fixed numbers, and it is not one of the operators that are \
                             computed with them"
                    .into());
            }
        };
        Ok(Some(value))
    }

    /// The value of a `Constant` node.
    fn given(&mut self, node: &Node<'a>) -> ImportResult<Constant> {
        let [attribute] = &node.attributes[..] else {
            return Err(format!("it has {} values instead of one", node.attributes.len()).into());
        };
        Ok(match attribute.name {
            "value" | "sparse_value" => match &attribute.tensor {
                Some(value) => {
                    if value.indices.is_some() {
                        self.fill(node, tensor::elements(value))?;
                    }
                    tensor::read(value, self.folder)?
                }
                None => return Err("its value is no tensor".into()),
            },
            "value_float" => Constant::floats(vec![], vec![attribute.float]),
            "value_floats" => Constant::floats(vec![attribute.floats.len()], attribute.floats.clone()),
            "value_int" => Constant::ints(vec![], vec![attribute.int]),
            "value_ints" => Constant::ints(vec![attribute.ints.len()], attribute.ints.clone()),
            other => return Err(format!("its `{}` is no number", printable(other)).into()),
        })
    }

    /// Numbers of another type: rounded, or cut off after the point, as ONNX has it.
    fn cast_constant(&self, node: &Node<'a>) -> ImportResult<Value> {
        let to = node.attribute("to").map_or(0, |to| to.int);
        let given = self.value(node, 0)?;
        if let (Value::Extents(_), kind::INT32 | kind::INT64) = (given, to) {
            return Ok(given.clone());
        }
        let constant = self.constant(node, 0)?.ok_or("it has no input")?;
        Ok(Value::Constant(constant.cast(to)?))
    }

    /// What `ConstantOfShape` makes: one number, over and over.
    pub(super) fn filled(&mut self, node: &Node<'a>) -> ImportResult<Value> {
        let mut shape = Vec::new();
        for extent in self.extents(node, 0)? {
            match extent {
                Extent::Known(extent) => {
                    let extent = usize::try_from(extent).ok().filter(|&extent| extent <= LARGEST);
                    shape.push(extent.ok_or("its shape has an extent that no tensor has")?);
                }
                Extent::Batch => {
                    return Err("its shape depends on how many images there are".into());
                }
            }
        }
        let count = shape.iter().try_fold(1usize, |count, &extent| count.checked_mul(extent));
        let count = count.ok_or("its shape has more elements than memory")?;
        self.fill(node, count)?;
        let value = match node.attribute("value") {
            None => Constant::floats(vec![1], vec![0.0]),
            Some(attribute) => match &attribute.tensor {
                Some(value) => tensor::read(value, self.folder)?,
                None => return Err("its `value` is no tensor".into()),
            },
        };
        let elements = match &value.elements {
            Elements::Floats(values) if values.len() == 1 => Elements::Floats(vec![values[0]; count]),
            Elements::Ints(values) if values.len() == 1 => Elements::Ints(vec![values[0]; count]),
            _ => return Err(format!("its `value` has the shape {:?}; it is one number", value.shape).into()),
        };
        Ok(Value::Constant(Constant { shape, elements }))
    }

    /// Takes account of numbers that the file does not list one by one.
    fn fill(&mut self, node: &Node<'a>, count: usize) -> ImportResult<()> {
        self.filled = self.filled.checked_sub(count).ok_or_else(|| too_much_filled(called(node)))?;
        // What is kept, and a layer's copy of it.
        self.numbers = self.numbers.saturating_add(2 * count);
        Ok(())
    }

    /// What `Shape` gives of a tensor.
    fn shape_of(&self, node: &Node<'a>) -> ImportResult<Option<Value>> {
        let Value::LayerOutput(made) = self.value(node, 0)? else {
            return Err("the shape of what does not depend on the images is not needed by any layer".into());
        };
        let made = match made.pad {
            Some(_) => return Err("the shape of what is padded is not known".into()),
            None => made,
        };
        if matches!(made.order, super::Order::Grouped(_) | super::Order::InTurn(_)) {
            return Err("the shape of channels in groups is not needed by any layer".into());
        }
        let shape = &self.shape(made.id).0;
        let mut extents = vec![Extent::Batch];
        extents.extend(shape.iter().map(|&extent| Extent::Known(extent as i64)));
        if made.order == super::Order::ChannelsLast && extents.len() == 4 {
            extents[1..].rotate_left(1);
        }
        let count = extents.len() as i64;
        let at = |name: &str, otherwise: i64| {
            let position = node.attribute(name).map_or(otherwise, |attribute| attribute.int);
            (if position < 0 { position.saturating_add(count) } else { position }).clamp(0, count) as usize
        };
        let (start, end) = (at("start", 0), at("end", count));
        Ok(Some(Value::Extents(extents.get(start..end).unwrap_or_default().to_vec())))
    }

    /// An input as a list of extents.
    pub(super) fn extents(&self, node: &Node<'a>, position: usize) -> ImportResult<Vec<Extent>> {
        if let Value::Extents(extents) = self.value(node, position)? {
            return Ok(extents.clone());
        }
        match self.constant(node, position)? {
            Some(Constant { shape, elements: Elements::Ints(values) })
                if values.len() <= LONGEST_SHAPE && shape.len() < 2 =>
            {
                Ok(values.into_iter().map(Extent::Known).collect())
            }
            _ => Err(format!("its input number {} is no shape", position + 1).into()),
        }
    }

    /// Whole numbers that an operator has as an attribute, or in later versions as an input.
    pub(super) fn integers(
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
            Some(Elements::Floats(_)) => Err(format!("its `{name}` are no whole numbers").into()),
        }
    }

    /// A part of a shape, or several one behind the other.
    fn shape_part(&self, node: &Node<'a>) -> ImportResult<Vec<Extent>> {
        let first = self.extents(node, 0)?;
        let place = |index: i64| {
            let index = if index < 0 { index.checked_add(first.len() as i64)? } else { index };
            usize::try_from(index).ok()
        };
        // Shapes have one dimension.
        let axis = node.attribute("axis").map_or(0, |axis| axis.int);
        if axis != 0 && axis != -1 {
            return Err(format!("its `axis` is {axis}, and a shape has one dimension").into());
        }
        let found = match node.operator {
            "Gather" => match self.constant(node, 1)? {
                Some(Constant { shape, elements: Elements::Ints(indices) }) if shape.len() < 2 => {
                    indices.into_iter().map(|index| first.get(place(index)?).copied()).collect()
                }
                _ => None,
            },
            "Slice" => {
                let bound = |name, position| -> ImportResult<Option<i64>> {
                    match self.integers(node, name, position)?.as_deref() {
                        None => Ok(None),
                        Some([bound]) => Ok(Some(*bound)),
                        Some(bounds) => {
                            Err(format!("its `{name}` are {bounds:?}, and a shape has one dimension").into())
                        }
                    }
                };
                if bound("axes", 3)?.is_some_and(|axis| axis != 0 && axis != -1) {
                    return Err("its `axes` are not the one dimension of a shape".into());
                }
                let step = bound("steps", 4)?;
                let (start, end) = (bound("starts", 1)?, bound("ends", 2)?);
                let cut = |index: Option<i64>| Some(place(index?).unwrap_or(0).min(first.len()));
                match (cut(start), cut(end), step.unwrap_or(1)) {
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
                let second = self.extents(node, 1)?;
                let one = first.len().max(second.len());
                let at = |list: &[Extent], i: usize| {
                    if list.len() == 1 { list.first().copied() } else { list.get(i).copied() }
                };
                (0..one)
                    .map(|i| match (at(&first, i)?, at(&second, i)?) {
                        (Extent::Known(a), Extent::Known(b)) => computed(a, b).map(Extent::Known),
                        _ => None,
                    })
                    .collect()
            }
            _ => {
                let mut all = first;
                for position in 1..node.inputs.len() {
                    all.extend(self.extents(node, position)?);
                    if all.len() > LONGEST_SHAPE {
                        return Err("it makes a shape of too many dimensions".into());
                    }
                }
                Some(all)
            }
        };
        found.ok_or_else(|| "it computes a shape in a way that is not known".into())
    }

    /// The same numbers in another shape or order.
    fn moved(&self, node: &Node<'a>) -> ImportResult<Value> {
        let given = self.value(node, 0)?;
        if let (Value::Extents(list), "Squeeze" | "Unsqueeze") = (given, node.operator)
            && list.len() < 2
        {
            // Whether it is a number or a list of one makes no difference to what reads it.
            return Ok(given.clone());
        }
        let Some(mut constant) = self.constant(node, 0)? else { return Err(Refusal::Unknown) };
        let rank = constant.shape.len();
        if node.operator == "Transpose" {
            let order: Option<Vec<usize>> = match node.attribute("perm") {
                Some(order) => order.ints.iter().map(|&axis| usize::try_from(axis).ok()).collect(),
                None => Some((0..rank).rev().collect()),
            };
            let moved = order.and_then(|order| constant.transposed(&order));
            return moved
                .map(Value::Constant)
                .ok_or_else(|| "its `perm` is no order of its dimensions".into());
        }
        let count: usize = constant.shape.iter().product();
        let shape = match node.operator {
            "Reshape" => {
                let wanted = self.integers(node, "shape", 1)?.ok_or("it has no shape")?;
                if takes_zero(node) && wanted.contains(&0) {
                    return Err("its `allowzero` is 1 and its shape has a 0: it makes an empty tensor".into());
                }
                reshaped(&constant.shape, &wanted)
            }
            "Unsqueeze" => {
                let axes = self.integers(node, "axes", 1)?.ok_or("it has no `axes`")?;
                unsqueezed(&constant.shape, &axes)
            }
            _ => squeezed(&constant.shape, self.integers(node, "axes", 1)?.as_deref()),
        };
        let fits = shape
            .filter(|shape| shape.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent)) == Some(count));
        constant.shape = fits.ok_or("its shape does not hold as many elements as there are")?;
        Ok(Value::Constant(constant))
    }

    /// The tensor of an input as 32-bit floating point: a weight.
    pub(super) fn weight(
        &self,
        node: &Node<'a>,
        position: usize,
    ) -> ImportResult<Option<(Vec<usize>, Vec<f32>)>> {
        match self.constant(node, position)? {
            None => Ok(None),
            Some(Constant { shape, elements: Elements::Floats(values) }) => Ok(Some((shape, values))),
            Some(_) => {
                Err(format!("its input number {} has whole numbers where weights should be", position + 1)
                    .into())
            }
        }
    }

    /// A number that an operator has as an attribute, or in later versions as an input.
    pub(super) fn number(&self, node: &Node<'a>, name: &str, position: usize) -> ImportResult<Option<f32>> {
        if let Some(attribute) = node.attribute(name) {
            return Ok(Some(attribute.float));
        }
        match self.constant(node, position)? {
            None => Ok(None),
            Some(constant) => {
                let value = constant.scalar().ok_or_else(|| format!("its `{name}` is not one number"))?;
                Ok(Some(value))
            }
        }
    }
}

/// A shape as `Reshape` asks for it: 0 keeps an extent, -1 is what is left.
fn reshaped(shape: &[usize], wanted: &[i64]) -> Option<Vec<usize>> {
    if wanted.iter().filter(|&&extent| extent == -1).count() > 1 {
        return None;
    }
    let count = shape.iter().product::<usize>();
    let mut made = Vec::new();
    for (axis, &extent) in wanted.iter().enumerate() {
        made.push(match extent {
            0 => *shape.get(axis)?,
            -1 => 1,
            extent => usize::try_from(extent).ok()?,
        });
    }
    let known = made.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent))?;
    if let Some(open) = wanted.iter().position(|&extent| extent == -1) {
        made[open] = count.checked_div(known)?;
    }
    Some(made)
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

/// Without the extents of 1 that `axes` name, or without any.
fn squeezed(shape: &[usize], axes: Option<&[i64]>) -> Option<Vec<usize>> {
    let Some(axes) = axes else { return Some(shape.iter().copied().filter(|&extent| extent != 1).collect()) };
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

/// What a shape comes to for one image; none where it is not that of a batch of them. `batch` is how many
/// images the model was written for.
pub(super) fn per_image(extents: &[Extent], current: &[usize], batch: i64) -> Option<Vec<usize>> {
    let (first, rest) = extents.split_first()?;
    let count: usize = current.iter().product();
    // A batch that was fixed when the model was written is one all the same: what the rest holds decides, or
    // where that is open that the batch is the one of the images.
    let open = rest.iter().filter(|extent| **extent == Extent::Known(-1)).count();
    let is_batch = matches!(first, Extent::Batch | Extent::Known(0)) || *first == Extent::Known(batch);
    if open > 1 || (open == 1 && !is_batch) {
        return None;
    }
    let extent = |(axis, extent): (usize, &Extent)| match extent {
        Extent::Known(0) => current.get(axis).copied(),
        Extent::Known(-1) => Some(1),
        Extent::Known(extent) => usize::try_from(*extent).ok(),
        Extent::Batch => None,
    };
    let mut shape: Vec<usize> = rest.iter().enumerate().map(extent).collect::<Option<_>>()?;
    let product = |shape: &[usize]| shape.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent));
    if let Some(position) = rest.iter().position(|extent| *extent == Extent::Known(-1)) {
        shape[position] = count.checked_div(product(&shape)?)?;
    }
    (product(&shape) == Some(count)).then_some(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_those_of_one_image() {
        let known = |values: &[i64]| values.iter().map(|&value| Extent::Known(value)).collect::<Vec<_>>();
        let image = [4, 2, 3];
        let of = |extents: &[Extent]| per_image(extents, &image, 2);
        assert_eq!(of(&[Extent::Batch, Extent::Known(-1)]), Some(vec![24]));
        assert_eq!(of(&known(&[-1, 24])), Some(vec![24]));
        assert_eq!(of(&known(&[0, -1])), Some(vec![24]));
        assert_eq!(of(&known(&[1, 24])), Some(vec![24]));
        assert_eq!(of(&known(&[2, -1])), Some(vec![24]));
        assert_eq!(of(&known(&[0, 0, -1])), Some(vec![4, 6]));
        assert_eq!(of(&known(&[0, 0, 0, 0])), Some(vec![4, 2, 3]));
        for wrong in
            [&[][..], &[-1], &[-1, -1], &[-1, 12], &[6, -1], &[0, 5, -1], &[0, i64::MAX, i64::MAX], &[0, -2]]
        {
            assert_eq!(of(&known(wrong)), None, "{wrong:?}");
        }
        assert_eq!(of(&[Extent::Known(-1), Extent::Batch]), None);
    }

    #[test]
    fn constants_take_other_shapes() {
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
