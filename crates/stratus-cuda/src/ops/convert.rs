//! Moving values, and what all kernels share that take elements as they lie.

use super::{Maker, OnGpu, Operand, check_type, long, vector};
use crate::processor::{Argument, Made, Source, type_name};
use stratus_engine::ops::{Accumulate, AddTiles, Convert, Reorder};
use stratus_engine::{DType, Layout};

/// That a kernel can compute with what these operands hold.
pub(super) fn check_types<'a>(operands: impl IntoIterator<Item = &'a Operand>) -> Result<(), String> {
    operands.into_iter().try_for_each(|operand| check_type(operand.dtype()))
}

/// The number of elements, where all operands lie alike and nothing lies between: then a kernel whose elements depend on no other takes them in the
/// order of memory.
pub(super) fn alike<'a>(operands: impl IntoIterator<Item = &'a Operand>) -> Result<usize, String> {
    let mut operands = operands.into_iter();
    let first = operands.next().ok_or("it has no operands")?;
    let count = first.layout.shape.iter().product();
    if first.elements() != count {
        return Err(format!("`{}` has padding", first.value.name));
    }
    match operands.find(|other| !other.layout.same_bytes(&first.layout)) {
        Some(other) => Err(format!("`{}` and `{}` lie differently", first.value.name, other.value.name)),
        None => Ok(count),
    }
}

/// A file for elements of the types of a first input, a second one and an output, with as many at a time as suits `count`; returns that number too.
pub(super) fn elementwise(first: DType, second: DType, output: DType, count: usize) -> (Source, usize) {
    let vector = vector(&[first, second, output], &[count]);
    let mut source = Source::of("elementwise", first, vector);
    // Only what differs is defined: equal sources are compiled once.
    for (name, dtype) in [("T_OTHER", second), ("T_OUT", output)] {
        if dtype != first {
            source = source.with(name, type_name(dtype));
        }
    }
    (source, vector)
}

/// A kernel of elements, in one launch: the addresses of all operands, their number, and what else it takes.
pub(super) fn map(
    name: &str,
    operands: &[Operand],
    maker: &Maker<'_>,
    more: impl IntoIterator<Item = Argument>,
) -> Result<Made, String> {
    check_types(operands)?;
    let count = alike(operands)?;
    let (first, output) = (operands[0].dtype(), operands[operands.len() - 1].dtype());
    let second = if operands.len() > 2 { operands[1].dtype() } else { first };
    let (source, vector) = elementwise(first, second, output, count);
    let addresses = (0..operands.len()).map(Argument::Operand);
    let arguments = addresses.chain([long(count)]).chain(more).collect();
    Ok(Made::of(name, vec![maker.spread(&source, name, count / vector, arguments)?], 0))
}

impl OnGpu for Accumulate {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        map("accumulate", operands, maker, [])
    }
}

impl OnGpu for AddTiles {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        let (count, dtype) = (alike(operands)?, operands[0].dtype());
        if operands[1].dtype() != dtype {
            return Err(format!("parts are {dtype}, their sum is {}", operands[1].dtype()));
        }
        let vector = vector(&[dtype], &[count]);
        let source = Source::of("elementwise", dtype, vector);
        let arguments = vec![Argument::Operand(0), Argument::Operand(1), long(count), Argument::IsFirstOfAll];
        let launch = maker.spread(&source, "add_tiles", count / vector, arguments)?;
        Ok(Made::of("add_tiles", vec![launch], 0))
    }
}

impl OnGpu for Convert {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        map("convert", operands, maker, [])
    }
}

impl OnGpu for Reorder {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        check_types(operands)?;
        if alike(operands).is_ok() {
            return map("convert", operands, maker, []);
        }
        let (x, y) = (&operands[0].layout, &operands[1].layout);
        let (x, y) = (seen_as(x, y), seen_as(y, x));
        let count: usize = y.shape.iter().product();
        if x.shape != y.shape || x.shape.len() > 4 || !x.blocks.is_empty() || !y.blocks.is_empty() {
            return Err(format!("it cannot change {} into {}", x.tag, y.tag));
        }
        if x.elements() != count || y.elements() != count {
            return Err("it has padding".to_owned());
        }
        // Outermost first as `y` nests them, so that neighbouring threads write what lies side by side.
        let mut order: Vec<usize> = (0..y.shape.len()).collect();
        order.sort_by_key(|&dimension| std::cmp::Reverse(y.strides[dimension]));
        let nested = |of: &[usize], outer: usize| -> Vec<Argument> {
            let missing = std::iter::repeat_n(outer, 4 - order.len());
            missing.chain(order.iter().map(|&dimension| of[dimension])).map(long).collect()
        };
        let mut arguments = vec![Argument::Operand(0), Argument::Operand(1), long(count)];
        arguments.extend(nested(&y.shape, 1).into_iter().skip(1));
        arguments.extend(nested(&x.strides, 0));
        arguments.extend(nested(&y.strides, 0));
        let source = Source::of("elementwise", operands[0].dtype(), 1);
        Ok(Made::of("reorder", vec![maker.spread(&source, "reorder", count, arguments)?], 0))
    }
}

/// A layout over the dimensions of another: in row-major order a matrix may be seen as four-dimensional.
fn seen_as(layout: &Layout, other: &Layout) -> Layout {
    if layout.shape != other.shape && layout.is_row_major() {
        return Layout::plain(&other.shape);
    }
    layout.clone()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::emulation::Emulation;
    use crate::ops::OnGpu;
    use crate::processor::Processor;
    use std::sync::Arc;
    use stratus_engine::backend::{Operands, Tile};
    use stratus_engine::{Role, Value};

    /// An operand that lies in some way.
    pub fn operand(dtype: DType, shape: &[usize], layout: Layout) -> Operand {
        let (name, shape) = ("operand".to_owned(), shape.to_vec());
        Operand { value: Value { name, shape, dtype, role: Role::Buffer, per_sample: false }, layout }
    }

    /// Runs a kernel on a part of the batch, given where its operands lie.
    pub fn run(kernel: &dyn OnGpu, operands: &[Operand], counts: [usize; 3], addresses: &[u64], tile: Tile) {
        let processor: Arc<dyn Processor> = Arc::new(Emulation::with(4, false).unwrap());
        let maker = Maker { processor: &processor, library: None, wanted: None, measure: false };
        let made = kernel.make(operands, counts, &maker).unwrap();
        let mut scratch = vec![0u64; made.scratch_bytes.div_ceil(8) + 1];
        let mut at = Operands::new(tile);
        for (position, address) in addresses.iter().enumerate() {
            at.set_address(position, *address);
        }
        at.set_address(operands.len(), address(&mut scratch));
        for mut call in made.calls {
            call.enqueue(&at, operands.len()).unwrap();
        }
    }

    /// Where numbers lie.
    pub fn address<T>(memory: &mut [T]) -> u64 {
        memory.as_mut_ptr() as u64
    }

    fn numbers(count: usize) -> Vec<f64> {
        (0..count).map(|i| 0.1 + i as f64).collect()
    }

    #[test]
    fn tiles_are_added_in_their_own_precision() {
        let second = Tile { index: 1, place: 1, count: 2, ..Tile::WHOLE };
        for count in [7, 12] {
            let of = |dtype| vec![operand(dtype, &[count], Layout::plain(&[count])); 2];
            let (mut part, mut sum) = (numbers(count), vec![f64::NAN; count]);
            let addresses = [address(&mut part), address(&mut sum)];
            run(&AddTiles, &of(DType::F64), [1, 0, 1], &addresses, Tile { count: 2, ..Tile::WHOLE });
            assert_eq!(sum, part);
            run(&AddTiles, &of(DType::F64), [1, 0, 1], &addresses, second);
            assert_eq!(sum, part.iter().map(|x| x + x).collect::<Vec<_>>());

            let mut part: Vec<f32> = part.iter().map(|&x| x as f32).collect();
            let mut sum = vec![f32::NAN; count];
            let addresses = [address(&mut part), address(&mut sum)];
            run(&AddTiles, &of(DType::F32), [1, 0, 1], &addresses, Tile::WHOLE);
            run(&AddTiles, &of(DType::F32), [1, 0, 1], &addresses, second);
            assert_eq!(sum, part.iter().map(|x| x + x).collect::<Vec<_>>());
        }
    }

    #[test]
    fn layouts_are_changed_into_each_other() {
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
            let (mut of_x, mut of_y) = (vec![0.0; 120], vec![0.0; 120]);
            from.for_each(&shape, |offset, plain| of_x[plain] = x[offset]);
            to.for_each(&shape, |offset, plain| of_y[plain] = y[offset]);
            assert_eq!(of_x, of_y);
        }
    }
}
