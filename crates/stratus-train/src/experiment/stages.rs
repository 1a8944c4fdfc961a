//! What does not go with stages of a pipeline (`train.stages`).

use super::{Device, Experiment};

impl Experiment {
    /// What is set that networks in stages do not have, and what to do about it.
    pub(super) fn check_stages(&self) -> Option<(String, &'static str)> {
        let Self { train, validation, .. } = self;
        let stages = train.stages;
        if stages < 2 {
            return None;
        }
        if !stages.is_power_of_two() {
            return Some((format!("`train.stages` is {stages}"), "take a power of two"));
        }
        let others = [
            ("train.micro_batches", train.micro_batches > 1, "set train.parts in its place"),
            ("train.activations_kib", train.activations_kib.is_some(), "take more stages in its place"),
            ("train.device", train.device == Device::Cuda, "stages are processes on CPUs"),
            ("validation.mirror", validation.mirror, "measure views with `stratus eval`"),
            ("validation.shift", validation.shift > 0, "measure views with `stratus eval`"),
        ];
        let (other, _, hint) = others.into_iter().find(|(_, is_set, _)| *is_set)?;
        Some((format!("`train.stages` is {stages}, and `{other}` is set"), hint))
    }
}
