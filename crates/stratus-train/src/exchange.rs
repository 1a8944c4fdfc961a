//! The exchange of gradients between workers, as the configuration sets it.

use crate::resolve::ResolvedProcess;
use stratus_engine::ops::SumMethod;
use stratus_experiment::{ExchangeType, Experiment};

/// How workers sum gradients.
#[must_use]
pub fn gradient_sums(settings: &Experiment) -> SumMethod {
    SumMethod { as_bf16: settings.train.exchange_type == ExchangeType::Bf16 }
}

/// The warning of a key that has no effect, because no other worker computes the same gradients.
#[must_use]
pub fn unused_key(resolved: &ResolvedProcess) -> Option<String> {
    let value = resolved.settings().train.exchange_type;
    let is_unused = resolved.rank().world_size < 2 && value != ExchangeType::F32;
    is_unused.then(|| format!("train.exchange_type = \"{value}\" has no effect with one worker"))
}

/// Announces that gradients are rounded on their way, if they are.
#[must_use]
pub(crate) fn rounding_note(resolved: &ResolvedProcess) -> Option<String> {
    let is_rounded = resolved.rank().world_size > 1 && gradient_sums(resolved.settings()).as_bf16;
    is_rounded.then(|| "gradients travel as bf16: results depend on the number of workers".to_owned())
}
