//! Stochastic gradient descent: everything is read and written once, the copy in the compute precision with it.

use super::convert::{alike, check_types};
use super::loss_scale::scaled;
use super::{Maker, OnGpu, Operand, long, vector};
use crate::processor::{Argument, Made, Source, type_name};
use stratus_engine::ops::SgdUpdate;

/// What steps of optimisers share.
pub(super) struct Update {
    pub source: Source,
    /// Elements, and how many a thread takes at a time.
    pub count: usize,
    pub vector: usize,
    /// The addresses of gradient, iteration's numbers, parameter, two states and copy; what is not there has none.
    pub addresses: [Argument; 6],
    /// That of the loss's scale.
    pub scale: Argument,
}

impl Update {
    /// A step of one or two states. Operands are the gradient, the iteration's numbers, the loss's scale where gradients are `scaled`, the parameter,
    /// the states, and where it is wanted a copy.
    pub fn of(
        file: &'static str,
        operands: &[Operand],
        states: usize,
        is_scaled: bool,
    ) -> Result<Self, String> {
        let parameter = 2 + usize::from(is_scaled);
        let copy = parameter + states + 1;
        let elements = || operands[..1].iter().chain(&operands[parameter..]);
        check_types(elements())?;
        let (count, dtype) = (alike(elements())?, operands[0].dtype());
        if operands[parameter..copy].iter().any(|operand| operand.dtype() != dtype) {
            return Err("gradient, parameter and states have several types".to_owned());
        }
        let of_copy = operands.get(copy).map_or(dtype, Operand::dtype);
        let vector = vector(&[dtype, of_copy], &[count]);
        let source = Source::of(file, dtype, vector).with("T_OUT", type_name(of_copy));
        let (source, scale) = scaled(source, operands, 2, is_scaled)?;
        let at = |position: usize, is_there: bool| {
            if is_there { Argument::Operand(position) } else { Argument::Null }
        };
        let addresses = [
            at(0, true),
            at(1, true),
            at(parameter, true),
            at(parameter + 1, true),
            at(parameter + 2, states > 1),
            at(copy, operands.len() > copy),
        ];
        Ok(Self { source, count, vector, addresses, scale })
    }
}

impl OnGpu for SgdUpdate {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        let Update { source, count, vector, addresses, scale } =
            Update::of("update", operands, 1, self.scaled)?;
        let [gradient, hyper, parameter, velocity, _, copy] = addresses;
        let arguments = vec![
            gradient,
            hyper,
            parameter,
            velocity,
            copy,
            long(count),
            Argument::Double(f64::from(self.rate)),
            Argument::Float(self.momentum),
            Argument::Float(self.weight_decay),
            Argument::Int(i32::from(self.nesterov)),
            scale,
        ];
        let launch = maker.spread(&source, "sgd_update", count / vector, arguments)?;
        Ok(Made::of("sgd", vec![launch], 0))
    }
}
