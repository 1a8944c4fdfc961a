//! Checks of pipeline stages (`train.stages`).

use super::{Device, Experiment};

impl Experiment {
    /// The first setting that cannot be combined with pipeline stages, and a hint.
    pub(super) fn check_stages(&self) -> Option<(String, &'static str)> {
        let Self { train, validation, .. } = self;
        let stages = train.stages;
        if stages < 2 {
            return None;
        }
        if !stages.is_power_of_two() {
            return Some((
                format!("`train.stages` = {stages} is not a power of two"),
                "choose a power of two",
            ));
        }
        let conflicts = [
            ("train.micro_batches", train.micro_batches > 1, "use train.parts instead"),
            ("train.activations_kib", train.activations_kib.is_some(), "use more stages instead"),
            ("train.device", train.device == Device::Cuda, "stages run on CPUs only"),
            ("validation.mirror", validation.mirror, "evaluate views with `stratus eval`"),
            ("validation.shift", validation.shift > 0, "evaluate views with `stratus eval`"),
        ];
        let (key, _, hint) = conflicts.into_iter().find(|(_, is_set, _)| *is_set)?;
        Some((format!("`{key}` cannot be combined with train.stages = {stages}"), hint))
    }
}
