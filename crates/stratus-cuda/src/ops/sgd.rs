//! Stochastic gradient descent, in one pass over memory that also writes the copy in the compute precision.

use super::convert::{check_types, common_element_count};
use super::loss_scale::scaled;
use super::{BuildResult, GpuOp, KernelBuilder, Operand, long, vector};
use crate::processor::{Argument, Implementation, Source, type_name};
use stratus_engine::ops::SgdUpdate;

/// The parts that the updates of all optimisers share.
pub(super) struct Update {
    pub source: Source,
    /// The number of elements.
    pub count: usize,
    /// The number of elements that a thread loads at once.
    pub vector: usize,
    /// The addresses of gradient, iteration scalars, parameter, two states and copy; null if absent.
    pub addresses: [Argument; 6],
    /// The loss scale, or null.
    pub scale: Argument,
}

impl Update {
    /// An update with one or two states. Operands: gradient, iteration scalars, loss scale if gradients are
    /// scaled, parameter, states, and optionally the copy.
    pub fn new(
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
            return Err("gradient, parameter and states must have the same type".to_owned());
        }
        let copy_dtype = operands.get(copy).map_or(dtype, Operand::dtype);
        let vector = vector(&[dtype, copy_dtype], &[count]);
        let source = Source::new(file, dtype, vector).with("T_OUT", type_name(copy_dtype));
        let (source, scale) = scaled(source, operands, 2, is_scaled)?;
        let at = |position: usize, is_present: bool| {
            if is_present { Argument::Operand(position) } else { Argument::Null }
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

impl GpuOp for SgdUpdate {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let Update { source, count, vector, addresses, scale } =
            Update::new("update", operands, 1, self.loss_scaled)?;
        let [gradient, scalars, parameter, velocity, _, copy] = addresses;
        let arguments = vec![
            gradient,
            scalars,
            parameter,
            velocity,
            copy,
            long(count),
            Argument::Double(f64::from(self.rate_factor)),
            Argument::Float(self.momentum),
            Argument::Float(self.weight_decay),
            Argument::Int(i32::from(self.nesterov)),
            scale,
        ];
        let launch = builder.grid_stride(&source, "sgd_update", count / vector, arguments)?;
        Ok(Implementation::native("sgd", vec![launch], 0))
    }
}
