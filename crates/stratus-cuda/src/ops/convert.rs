//! Conversions of types and layouts, and helpers of all elementwise kernels.

use super::{BuildResult, GpuOp, KernelBuilder, Operand, check_type, long, vector};
use crate::processor::{Argument, Implementation, Source, type_name};
use stratus_engine::ops::{Accumulate, AddTiles, Convert, Flatten, Reorder};
use stratus_engine::{DType, Layout};

/// Checks that kernels support the types of these operands.
///
/// # Errors
/// For f64.
pub(super) fn check_types<'a>(operands: impl IntoIterator<Item = &'a Operand>) -> Result<(), String> {
    operands.into_iter().try_for_each(|operand| check_type(operand.dtype()))
}

/// The number of elements of operands with one layout and no padding, which an elementwise kernel may process
/// in memory order.
///
/// # Errors
/// If layouts differ or have padding.
pub(super) fn common_element_count<'a>(
    operands: impl IntoIterator<Item = &'a Operand>,
) -> Result<usize, String> {
    let mut operands = operands.into_iter();
    let first = operands.next().ok_or("no operands")?;
    let count = first.layout.shape.iter().product();
    if first.elements() != count {
        return Err(format!("`{}` has padding", first.value.name));
    }
    match operands.find(|other| !other.layout.same_bytes(&first.layout)) {
        Some(other) => {
            Err(format!("`{}` and `{}` have different layouts", first.value.name, other.value.name))
        }
        None => Ok(count),
    }
}

/// The source of a kernel of `elementwise.cu`: see [`elementwise_in`].
pub(super) fn elementwise(first: DType, second: DType, output: DType, count: usize) -> (Source, usize) {
    elementwise_in("elementwise", [first, second, output], count)
}

/// The source of an elementwise kernel of a file, for the types of its two inputs and its output, and the
/// elements that a thread loads at once, which divide `count`.
pub(super) fn elementwise_in(file: &'static str, types: [DType; 3], count: usize) -> (Source, usize) {
    let vector = vector(&types, &[count]);
    let [first, second, output] = types;
    let mut source = Source::new(file, first, vector);
    // Only differences are defined: equal sources are compiled once.
    for (name, dtype) in [("T_OTHER", second), ("T_OUT", output)] {
        if dtype != first {
            source = source.with(name, type_name(dtype));
        }
    }
    (source, vector)
}

/// A kernel of `elementwise.cu` in one launch: see [`map_in`].
pub(super) fn map(
    name: &str,
    operands: &[Operand],
    builder: &KernelBuilder<'_>,
    more: impl IntoIterator<Item = Argument>,
) -> Result<Implementation, String> {
    map_in("elementwise", name, operands, builder, more)
}

/// An elementwise kernel of a file in one launch, with the parameters: addresses of all operands, number of
/// elements, `more`.
pub(super) fn map_in(
    file: &'static str,
    name: &str,
    operands: &[Operand],
    builder: &KernelBuilder<'_>,
    more: impl IntoIterator<Item = Argument>,
) -> Result<Implementation, String> {
    check_types(operands)?;
    let count = common_element_count(operands)?;
    let (first, output) = (operands[0].dtype(), operands[operands.len() - 1].dtype());
    let second = if operands.len() > 2 { operands[1].dtype() } else { first };
    let (source, vector) = elementwise_in(file, [first, second, output], count);
    let addresses = (0..operands.len()).map(Argument::Operand);
    let arguments = addresses.chain([long(count)]).chain(more).collect();
    Ok(Implementation::native(name, vec![builder.grid_stride(&source, name, count / vector, arguments)?], 0))
}

impl GpuOp for Accumulate {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        map("accumulate", operands, builder, [])
    }
}

impl GpuOp for AddTiles {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let (count, dtype) = (common_element_count(operands)?, operands[0].dtype());
        if operands[1].dtype() != dtype {
            return Err(format!("parts have type {dtype}, but their sum {}", operands[1].dtype()));
        }
        let vector = vector(&[dtype], &[count]);
        let source = Source::new("elementwise", dtype, vector);
        let arguments = vec![Argument::Operand(0), Argument::Operand(1), long(count), Argument::IsFirstOfAll];
        let launch = builder.grid_stride(&source, "add_tiles", count / vector, arguments)?;
        Ok(Implementation::native("add_tiles", vec![launch], 0))
    }
}

impl GpuOp for Convert {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        map("convert", operands, builder, [])
    }
}

impl GpuOp for Reorder {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        check_types(operands)?;
        if common_element_count(operands).is_ok() {
            return map("convert", operands, builder, []);
        }
        let x = viewed_as(&operands[0].layout, &operands[1].layout);
        let y = viewed_as(&operands[1].layout, &x);
        let count: usize = y.shape.iter().product();
        if x.shape != y.shape || x.shape.len() > 4 || !x.blocks.is_empty() || !y.blocks.is_empty() {
            return Err(format!("cannot convert layout {} to {}", x.tag, y.tag));
        }
        if x.elements() != count || y.elements() != count {
            return Err("padding is not supported".to_owned());
        }
        // Dimensions in the order of `y`, outermost first, so that neighbouring threads write contiguous
        // elements.
        let mut order: Vec<usize> = (0..y.shape.len()).collect();
        order.sort_by_key(|&dimension| std::cmp::Reverse(y.strides[dimension]));
        let nested = |values: &[usize], outer: usize| -> Vec<Argument> {
            let missing = std::iter::repeat_n(outer, 4 - order.len());
            missing.chain(order.iter().map(|&dimension| values[dimension])).map(long).collect()
        };
        let mut arguments = vec![Argument::Operand(0), Argument::Operand(1), long(count)];
        arguments.extend(nested(&y.shape, 1).into_iter().skip(1));
        arguments.extend(nested(&x.strides, 0));
        arguments.extend(nested(&y.strides, 0));
        let (source, _) = elementwise(operands[0].dtype(), operands[0].dtype(), operands[1].dtype(), 1);
        Ok(Implementation::native(
            "reorder",
            vec![builder.grid_stride(&source, "reorder", count, arguments)?],
            0,
        ))
    }
}

impl GpuOp for Flatten {
    fn build(&self, operands: &[Operand], counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        Reorder.build(operands, counts, builder)
    }
}

/// A layout over the dimensions of another: a row-major matrix may be viewed with four dimensions.
fn viewed_as(layout: &Layout, other: &Layout) -> Layout {
    if layout.shape != other.shape && layout.is_row_major() {
        return Layout::plain(&other.shape);
    }
    layout.clone()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::emulation::Emulation;
    use crate::ops::GpuOp;
    use crate::processor::Processor;
    use std::sync::Arc;
    use stratus_engine::backend::{Operands, Tile};
    use stratus_engine::{Role, Value};

    /// An operand with a layout.
    pub fn operand(dtype: DType, shape: &[usize], layout: Layout) -> Operand {
        let (name, shape) = ("operand".to_owned(), shape.to_vec());
        Operand {
            value: Value { name, shape, dtype, role: Role::Buffer, per_sample: false, origin: None },
            layout,
        }
    }

    /// Runs a kernel on a tile of the batch, with its operands at these addresses.
    pub fn run(kernel: &dyn GpuOp, operands: &[Operand], counts: [usize; 3], addresses: &[u64], tile: Tile) {
        let processor: Arc<dyn Processor> = Arc::new(Emulation::with(4, false).unwrap());
        let builder = KernelBuilder::without_libraries(&processor);
        let implementation = kernel.build(operands, counts, &builder).unwrap();
        let mut scratch = vec![0u64; implementation.scratch_bytes.div_ceil(8) + 1];
        let mut at = Operands::new(tile);
        for (position, address) in addresses.iter().enumerate() {
            at.set_address(position, *address);
        }
        at.set_address(operands.len(), address(&mut scratch));
        for mut call in implementation.calls {
            call.enqueue(&at, operands.len()).unwrap();
        }
    }

    /// The address of a slice.
    pub fn address<T>(memory: &mut [T]) -> u64 {
        memory.as_mut_ptr() as u64
    }

    fn numbers(count: usize) -> Vec<f64> {
        (0..count).map(|i| 0.1 + i as f64).collect()
    }

    #[test]
    fn tiles_are_summed_in_their_own_precision() {
        let second = Tile { run_index: 1, position: 1, count: 2, ..Tile::WHOLE };
        for count in [7, 12] {
            let operands_of = |dtype| vec![operand(dtype, &[count], Layout::plain(&[count])); 2];
            let (mut part, mut sum) = (numbers(count), vec![f64::NAN; count]);
            let addresses = [address(&mut part), address(&mut sum)];
            run(&AddTiles, &operands_of(DType::F64), [1, 0, 1], &addresses, Tile { count: 2, ..Tile::WHOLE });
            assert_eq!(sum, part);
            run(&AddTiles, &operands_of(DType::F64), [1, 0, 1], &addresses, second);
            assert_eq!(sum, part.iter().map(|x| x + x).collect::<Vec<_>>());

            let mut part: Vec<f32> = part.iter().map(|&x| x as f32).collect();
            let mut sum = vec![f32::NAN; count];
            let addresses = [address(&mut part), address(&mut sum)];
            run(&AddTiles, &operands_of(DType::F32), [1, 0, 1], &addresses, Tile::WHOLE);
            run(&AddTiles, &operands_of(DType::F32), [1, 0, 1], &addresses, second);
            assert_eq!(sum, part.iter().map(|x| x + x).collect::<Vec<_>>());
        }
    }

    #[test]
    fn layouts_are_converted_into_each_other() {
        let shape = [2, 3, 4, 5];
        let (plain, last) = (Layout::plain(&shape), Layout::channels_last(&shape));
        let matrix = Layout::plain(&[2, 60]);
        for (from, to) in
            [(&plain, &last), (&last, &plain), (&matrix, &last), (&last, &matrix), (&last, &last)]
        {
            let mut x: Vec<f32> = numbers(120).iter().map(|&x| x as f32).collect();
            let mut y = vec![0.0f32; 120];
            let operands =
                [operand(DType::F32, &shape, from.clone()), operand(DType::F32, &shape, to.clone())];
            run(&Reorder, &operands, [1, 0, 1], &[address(&mut x), address(&mut y)], Tile::WHOLE);
            let (mut x_plain, mut y_plain) = (vec![0.0; 120], vec![0.0; 120]);
            from.for_each(&shape, |offset, plain| x_plain[plain] = x[offset]);
            to.for_each(&shape, |offset, plain| y_plain[plain] = y[offset]);
            assert_eq!(x_plain, y_plain);
        }
    }
}
