//! Optimisers with a rate per weight: Adam, AdamW, Adagrad and Adadelta.

use super::sgd::Update;
use super::{BuildResult, GpuOp, KernelBuilder, Operand, long};
use crate::processor::{Argument, Implementation};
use stratus_engine::ops::{Adaptive, AdaptiveUpdate, KernelSpec};

impl GpuOp for AdaptiveUpdate {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        // The rule's number in the kernel, the decay of its states, and the epsilon of the divisor.
        let (rule, decays, epsilon) = match self.rule {
            Adaptive::Adam { betas, epsilon, decoupled } => (u8::from(decoupled), betas, epsilon),
            Adaptive::Adagrad { epsilon } => (2, [1.0; 2], epsilon),
            Adaptive::Adadelta { rho, epsilon } => (3, [rho; 2], epsilon),
        };
        let states = self.rule.states().len();
        let Update { source, count, vector, addresses, scale } =
            Update::new("adaptive", operands, states, self.loss_scaled)?;
        let mut arguments = addresses.to_vec();
        arguments.push(long(count));
        arguments.extend(
            [self.rate_factor, self.weight_decay, decays[0], decays[1], epsilon].map(Argument::Double),
        );
        arguments.push(scale);
        let source = source.with("RULE", rule);
        let launch = builder.grid_stride(&source, "adaptive_update", count / vector, arguments)?;
        Ok(Implementation::native(self.name(), vec![launch], 0))
    }
}
