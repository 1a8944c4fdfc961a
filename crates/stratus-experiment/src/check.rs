//! Constraints on combinations of keys.

use crate::deadline::Deadline;
use crate::{Augment, Constraint, Experiment, ExperimentError, Origin, ScheduleName, Value};

impl Experiment {
    /// Checks constraints on combinations of keys.
    pub(crate) fn check(&self) -> Result<(), ExperimentError> {
        let conflict = |problem: String, hint: &str| {
            Err(ExperimentError::Conflict { origin: Origin::Resolved, problem, hint: hint.to_owned() })
        };
        if self.layer_file().is_some()
            && !Constraint::FolderName.allows(&Value::String(self.name().to_owned()))
        {
            return conflict(
                format!("`{}` is not a valid folder name for runs", self.name()),
                "set experiment.name, made of letters, digits, `.`, `_` and `-`",
            );
        }
        if let (Some(mean), Some(std)) = (&self.data.mean, &self.data.std)
            && mean.len() != std.len()
        {
            return conflict(
                format!("`data.mean` has {} channels, but `data.std` has {}", mean.len(), std.len()),
                "set both to one number per channel of the images",
            );
        }
        if let (Some(mean), Some(std)) = (&self.data.target_mean, &self.data.target_std)
            && mean.len() != std.len()
        {
            return conflict(
                format!(
                    "`data.target_mean` has {} numbers, but `data.target_std` has {}",
                    mean.len(),
                    std.len()
                ),
                "set both to one number per target",
            );
        }
        if self.data.target_mean.is_some() != self.data.target_std.is_some() {
            return conflict(
                "only one of `data.target_mean` and `data.target_std` is set".to_owned(),
                "set both, or none",
            );
        }
        if let Some(separator) = &self.data.label_separator
            && separator.chars().count() != 1
        {
            return conflict(
                format!("`data.label_separator` is \"{separator}\""),
                "set a single character, such as |",
            );
        }
        for (key, list) in [("data.mean", &self.data.mean), ("data.std", &self.data.std)] {
            if list.as_ref().is_some_and(Vec::is_empty) {
                return conflict(
                    format!("`{key}` is an empty list"),
                    "set a number per channel, or remove it",
                );
            }
        }
        if let Some(shape) = &self.data.shape
            && shape.len() != 3
        {
            return conflict(
                format!("`data.shape` has {} numbers", shape.len()),
                "set channels, height and width, like [3, 224, 224]",
            );
        }
        if let Some(lists) = &self.data.lists {
            if !(2..=3).contains(&lists.len()) {
                return conflict(
                    format!("`data.lists` names {} files", lists.len()),
                    "name a training list, a validation list and, if there is one, a test list",
                );
            }
            if self.data.split_seed.is_some() {
                return conflict(
                    "`data.lists` and `data.split_seed` are both set".to_owned(),
                    "set only one of the two",
                );
            }
        }
        let (batch, micro_batches) = (self.train.batch_size, self.train.micro_batches);
        if !batch.is_multiple_of(micro_batches) {
            return conflict(
                format!(
                    "`train.micro_batches` = {micro_batches} does not divide `train.batch_size` = {batch}"
                ),
                "choose a divisor of the batch size",
            );
        }
        let parts = self.train.parts;
        if parts > 0 && (!parts.is_power_of_two() || !batch.is_multiple_of(parts)) {
            return conflict(
                format!(
                    "`train.parts` = {parts} is not a power of two that divides `train.batch_size` = {batch}"
                ),
                "choose a power of two that divides the batch size",
            );
        }
        if parts > 1 && micro_batches > 1 {
            return conflict(
                "`train.parts` and `train.micro_batches` are both more than 1".to_owned(),
                "set only train.parts: a worker processes its parts one after the other",
            );
        }
        if self.train.synchronise_batch_norm && micro_batches > 1 {
            return conflict(
                "`train.synchronise_batch_norm` cannot be combined with train.micro_batches".to_owned(),
                "use train.parts instead",
            );
        }
        if self.teacher().is_some() && self.first_stage.network.is_some() {
            return conflict(
                "`train.teacher` and `first_stage.network` are both set".to_owned(),
                "train the network of that stage in a run of its own, and set model.weights to that run",
            );
        }
        self.check_stages().map_or(Ok(()), |(problem, hint)| conflict(problem, hint))?;
        self.check_fake_quantisation().map_or(Ok(()), |(problem, hint)| conflict(problem, hint))?;
        if let Some(deadline) = &self.train.deadline
            && let Err(problem) = Deadline::parse(deadline)
        {
            return conflict(format!("invalid `train.deadline` = \"{deadline}\""), &problem);
        }
        if self.train.price_per_hour.is_some() && self.train.instance.is_some() {
            return conflict(
                "`train.price_per_hour` and `train.instance` are both set".to_owned(),
                "set only one of the two",
            );
        }
        if self.train.budget.is_some() && self.train.price_per_hour.is_none() && self.train.instance.is_none()
        {
            return conflict(
                "`train.budget` needs a price".to_owned(),
                "set train.price_per_hour, or the cloud instance type of this machine as train.instance",
            );
        }
        let Augment { scale, ratio, zoom, random_crop, random_resized_crop, .. } = &self.augment;
        for (key, range) in [("scale", Some(scale)), ("ratio", Some(ratio)), ("zoom", zoom.as_ref())] {
            let Some(range) = range else { continue };
            if range.len() != 2 || range[0] <= 0.0 || range[0] > range[1] {
                return conflict(
                    format!("`data.augment.{key}` is {}", Value::FloatList(range.clone())),
                    "set the smallest value, above 0, and the largest",
                );
            }
        }
        if *random_crop && *random_resized_crop {
            return conflict(
                "`data.augment.random_crop` and `data.augment.random_resized_crop` are both true".to_owned(),
                "set only one of the two",
            );
        }
        let (warmup, epochs) = (self.schedule.warmup_epochs, self.train.epochs);
        if warmup > 0.0 && warmup >= epochs as f64 {
            return conflict(
                format!("`schedule.warmup_epochs` = {warmup} is not less than `train.epochs` = {epochs}"),
                "choose a warm-up that ends before training does",
            );
        }
        if matches!(self.schedule.name, ScheduleName::Cosine | ScheduleName::Poly)
            && self.schedule.final_learning_rate > self.optimiser.learning_rate
        {
            return conflict(
                format!(
                    "`schedule.final_learning_rate` = {} exceeds `optimiser.learning_rate` = {}",
                    self.schedule.final_learning_rate, self.optimiser.learning_rate
                ),
                "choose a final learning rate that is at most the initial one",
            );
        }
        Ok(())
    }

    /// The first setting that cannot be combined with pipeline stages, and a hint.
    fn check_stages(&self) -> Option<(String, &'static str)> {
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
            (
                "train.synchronise_batch_norm",
                train.synchronise_batch_norm,
                "use several workers without stages instead",
            ),
            ("train.teacher", self.teacher().is_some(), "use train.parts and several workers instead"),
            ("train.activations_kib", train.activations_kib.is_some(), "use more stages instead"),
            ("validation.mirror", validation.mirror, "evaluate views with `stratus eval`"),
            ("validation.shift", validation.shift > 0, "evaluate views with `stratus eval`"),
        ];
        let (key, _, hint) = conflicts.into_iter().find(|(_, is_set, _)| *is_set)?;
        Some((format!("`{key}` cannot be combined with train.stages = {stages}"), hint))
    }
}
