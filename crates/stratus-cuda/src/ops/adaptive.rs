//! Optimisers that give each weight a rate of its own.

use super::sgd::Update;
use super::{Maker, OnGpu, Operand, long};
use crate::processor::{Argument, Made};
use stratus_engine::ops::{Adaptive, AdaptiveUpdate, KernelSpec};

impl OnGpu for AdaptiveUpdate {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        // The rule's number in the kernel, what it keeps of its states, and what keeps it from dividing by nothing.
        let (rule, kept, epsilon) = match self.rule {
            Adaptive::Adam { betas, epsilon, decoupled } => (u8::from(decoupled), betas, epsilon),
            Adaptive::Adagrad { epsilon } => (2, [1.0; 2], epsilon),
            Adaptive::Adadelta { rho, epsilon } => (3, [rho; 2], epsilon),
        };
        let states = self.rule.states().len();
        let Update { source, count, vector, addresses, scale } =
            Update::of("adaptive", operands, states, self.scaled)?;
        let mut arguments = addresses.to_vec();
        arguments.push(long(count));
        arguments.extend([self.rate, self.weight_decay, kept[0], kept[1], epsilon].map(Argument::Double));
        arguments.push(scale);
        let source = source.with("RULE", rule);
        let launch = maker.spread(&source, "adaptive_update", count / vector, arguments)?;
        Ok(Made::of(self.name(), vec![launch], 0))
    }
}
