//! Stochastic gradient descent, in one pass over memory that also writes the copy in the compute precision.

use super::convert::{check_types, common_element_count};
use super::loss_scale::scaled;
use super::{KernelBuilder, OnGpu, Operand, long, vector};
use crate::processor::{Argument, Implementation, Source, type_name};
use stratus_engine::ops::SgdUpdate;

/// What the updates of all optimisers share.
pub(super) struct Update {
    pub source: Source,
    /// Elements, and how many a thread loads at once.
    pub count: usize,
    pub vector: usize,
    /// Gradient, hyperparameters of the iteration, parameter, two states and copy; null where there is none.
    pub addresses: [Argument; 6],
    /// The loss scale, or null.
    pub scale: Argument,
}

impl Update {
    /// An update with one or two states. Operands: gradient, hyperparameters of the iteration, loss scale
    /// where gradients are scaled, parameter, states, and optionally the copy.
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
        let (count, dtype) = (common_element_count(elements())?, operands[0].dtype());
        if operands[parameter..copy].iter().any(|operand| operand.dtype() != dtype) {
            return Err("gradient, parameter and states have several types".to_owned());
        }
        let copy_dtype = operands.get(copy).map_or(dtype, Operand::dtype);
        let vector = vector(&[dtype, copy_dtype], &[count]);
        let source = Source::of(file, dtype, vector).with("T_OUT", type_name(copy_dtype));
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
    fn build(
        &self,
        operands: &[Operand],
        _counts: [usize; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
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
        let launch = builder.grid_stride(&source, "sgd_update", count / vector, arguments)?;
        Ok(Implementation::native("sgd", vec![launch], 0))
    }
}
