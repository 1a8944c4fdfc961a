//! Stochastic gradient descent: everything is read and written once, the copy in the compute precision with it.

use super::convert::{alike, check_types};
use super::{Maker, OnGpu, Operand, long, vector};
use crate::processor::{Argument, Made, Source, type_name};
use stratus_engine::ops::SgdUpdate;

/// The file of an optimiser's step, and the number of elements and how many a thread takes. Operands are the gradient, the iteration's numbers, the
/// parameter, so many states, and where it is wanted a copy.
pub(super) fn update(
    file: &'static str,
    operands: &[Operand],
    states: usize,
) -> Result<(Source, usize, usize), String> {
    let elements = || operands[..1].iter().chain(&operands[2..]);
    check_types(elements())?;
    let (count, dtype) = (alike(elements())?, operands[0].dtype());
    if operands[2..3 + states].iter().any(|operand| operand.dtype() != dtype) {
        return Err("gradient, parameter and states have several types".to_owned());
    }
    let copy = operands.get(3 + states).map_or(dtype, Operand::dtype);
    let vector = vector(&[dtype, copy], &[count]);
    Ok((Source::of(file, dtype, vector).with("T_OUT", type_name(copy)), count, vector))
}

/// The address of an operand that may be missing.
pub(super) fn optional(operands: &[Operand], position: usize) -> Argument {
    operands.get(position).map_or(Argument::Null, |_| Argument::Operand(position))
}

impl OnGpu for SgdUpdate {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        let (source, count, vector) = update("update", operands, 1)?;
        let mut arguments: Vec<Argument> = (0..4).map(Argument::Operand).collect();
        arguments.extend([
            optional(operands, 4),
            long(count),
            Argument::Double(f64::from(self.rate)),
            Argument::Float(self.momentum),
            Argument::Float(self.weight_decay),
            Argument::Int(i32::from(self.nesterov)),
        ]);
        let launch = maker.spread(&source, "sgd_update", count / vector, arguments)?;
        Ok(Made::of("sgd", vec![launch], 0))
    }
}
