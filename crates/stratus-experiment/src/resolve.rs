//! Resolves an experiment: settles every key for a data set, network and device.
//!
//! ```text
//! Experiment     the configuration; many keys may be unset or "auto"
//! DatasetFacts   image shape, normalisation, samples
//! NetworkFacts   its output                                            ──▶ ResolvedExperiment
//! DeviceFacts    number formats, threads, caches
//! ```
//!
//! A run's `experiment.toml` is its [`ResolvedExperiment`]; resolving it again gives the same value, so a
//! resumed run equals the interrupted one.

use crate::task::{Annotation, check_metrics, task};
use crate::{Experiment, ExperimentError, LossFunction, Precision, Schedule};
use stratus_run::csv::Task;
use stratus_run::layout::NETWORK;

/// The facts of a data set that settle keys.
#[derive(Clone, Debug, PartialEq)]
pub struct DatasetFacts<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its number of samples.
    pub samples: usize,
    /// The annotation of its images.
    pub annotation: Annotation,
    /// Mean and standard deviation of each target of the training data, if it has numbers.
    pub target_scales: Option<[Vec<f32>; 2]>,
    /// The shape `[C, H, W]` of the network's input.
    pub input_shape: [usize; 3],
    /// The mean of each channel, for images scaled to 0 to 1.
    pub mean: Vec<f32>,
    /// The standard deviation of each channel.
    pub std: Vec<f32>,
}

/// The facts of a network that settle keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkFacts<'a> {
    /// Its name.
    pub name: &'a str,
    /// The shape of its output for one sample: `[classes]`, or `[classes, H, W]`.
    pub output_shape: &'a [usize],
    /// Its number of classes.
    pub classes: usize,
}

/// The facts of a device that settle keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts<'a> {
    /// The name of its backend.
    pub name: &'a str,
    /// The number formats that it computes in, such as `f32`.
    pub number_formats: Vec<String>,
    /// True if it has bf16 instructions.
    pub has_native_bf16: bool,
    /// Its number of threads.
    pub threads: usize,
    /// KiB of cache that a tile of the batch should fit; 0: no tiles.
    pub tile_kib: usize,
    /// The default of `data.workers`; `None` if the first iterations decide.
    pub loader_threads: Option<usize>,
}

/// The default of `validation.images`.
fn default_images(task: Task) -> usize {
    match task {
        Task::Classification => 24,
        Task::Segmentation => 8,
        Task::MultiLabel | Task::Regression => 24,
    }
}

impl DeviceFacts<'_> {
    /// The number format for `train.precision` on this device; never [`Precision::Auto`].
    ///
    /// # Errors
    /// If the device does not support it.
    pub fn precision(&self, key: Precision) -> Result<Precision, ExperimentError> {
        let precision = match key {
            Precision::Auto if self.has_native_bf16 => Precision::Bf16,
            Precision::Auto => Precision::F32,
            set => set,
        };
        if self.number_formats.iter().any(|format| format == precision.as_str()) {
            return Ok(precision);
        }
        let hint = match precision {
            Precision::F16 => "use a GPU with --set train.device=cuda, or another number format",
            _ => "set train.precision to one of these",
        };
        Err(ExperimentError::Unsuitable {
            problem: format!(
                "train.precision = {precision} is not supported: {} computes in {} on this machine",
                self.name,
                self.number_formats.join(", ")
            ),
            hint: hint.to_owned(),
        })
    }
}

/// An experiment with every key settled. Immutable.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedExperiment {
    /// Every key with its settled value.
    settings: Experiment,
    task: Task,
    /// The number of samples of the data set.
    samples: usize,
    /// True if the validation batch differs from the training micro-batch and stays fixed.
    fixed_validation_batch: bool,
    tail_batch: Option<usize>,
}

impl ResolvedExperiment {
    /// Resolves an experiment. For evaluation, `dataset` is the data set to evaluate on.
    ///
    /// # Errors
    /// If the device does not support the number format of `train.precision`, or the network is not for the
    /// task of the data set.
    pub fn new(
        experiment: &Experiment,
        dataset: &DatasetFacts<'_>,
        network: &NetworkFacts<'_>,
        device: &DeviceFacts<'_>,
    ) -> Result<Self, ExperimentError> {
        let precision = device.precision(experiment.train.precision)?;
        let (task, loss) = task(experiment, dataset, network)?;
        check_metrics(experiment, task)?;
        let mut settings = experiment.completed();
        settings.train.loss = Some(loss);
        if let Some([mean, std]) = &dataset.target_scales {
            settings.data.target_mean.get_or_insert_with(|| shortest_decimals(mean));
            settings.data.target_std.get_or_insert_with(|| shortest_decimals(std));
        }
        settings.data.workers = settings.data.workers.or(device.loader_threads);
        settings.train.precision = precision;
        settings.train.threads = device.threads;
        settings.train.tile_kib.get_or_insert(device.tile_kib);
        settings.model.classes = Some(network.classes);
        settings.data.shape = Some(dataset.input_shape.to_vec());
        settings.data.mean.get_or_insert_with(|| shortest_decimals(&dataset.mean));
        settings.data.std.get_or_insert_with(|| shortest_decimals(&dataset.std));
        settings.validation.images.get_or_insert(default_images(task));
        let fixed_validation_batch =
            experiment.validation.batch_size.is_some_and(|batch| batch != experiment.micro_batch_size());
        let resolved =
            Self { settings, task, samples: dataset.samples, fixed_validation_batch, tail_batch: None };
        Ok(resolved.with_tail())
    }

    fn with_tail(self) -> Self {
        let rest = self.samples % self.settings.train.batch_size;
        let tail_batch = (rest > 0 && !self.settings.data.drop_last).then_some(rest);
        Self { tail_batch, ..self }
    }

    /// The same experiment with another batch size, which is not 0.
    #[must_use]
    pub fn with_batch_size(&self, batch: usize) -> Self {
        let mut resolved = self.clone();
        resolved.settings.train.batch_size = batch.max(1);
        if !resolved.fixed_validation_batch {
            resolved.settings.validation.batch_size = Some(resolved.settings.micro_batch_size().max(1));
        }
        resolved.with_tail()
    }

    /// The same experiment with at most `kib` KiB of activations and gradients alive at once; `None` keeps
    /// all of them.
    #[must_use]
    pub fn with_activations_kib(&self, kib: Option<usize>) -> Self {
        let mut resolved = self.clone();
        resolved.settings.train.activations_kib = kib;
        resolved
    }

    /// Every configuration key with its settled value.
    #[must_use]
    pub fn settings(&self) -> &Experiment {
        &self.settings
    }

    /// The task of the network.
    #[must_use]
    pub fn task(&self) -> Task {
        self.task
    }

    /// The training loss.
    #[must_use]
    pub fn loss(&self) -> LossFunction {
        self.settings.train.loss.unwrap_or(LossFunction::CrossEntropy)
    }

    /// The number of samples of an epoch.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Samples in an epoch's last batch; `None` if it is whole or dropped.
    #[must_use]
    pub fn tail_batch(&self) -> Option<usize> {
        self.tail_batch
    }

    /// Samples in a validation batch.
    #[must_use]
    pub fn validation_batch(&self) -> usize {
        self.settings.validation_batch_size()
    }

    /// The number of parts of a batch, at least 1.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.settings.train.parts.max(1)
    }

    /// Bytes of cache that a tile of the batch should fit; 0: no tiles.
    #[must_use]
    pub fn tile_bytes(&self) -> usize {
        self.settings.train.tile_kib.unwrap_or(0) << 10
    }

    /// Maximum bytes of parameters, activations and scratch.
    #[must_use]
    pub fn memory_limit(&self) -> usize {
        self.settings.train.memory_limit_mib.map_or(usize::MAX, |mib| mib << 20)
    }

    /// The learning rate schedule.
    #[must_use]
    pub fn schedule(&self) -> Schedule {
        Schedule::from_experiment(&self.settings)
    }

    /// The content of a run's `experiment.toml`. It refers to the run's copy of a layer file.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut recorded = self.settings.clone();
        if recorded.layer_file().is_some() {
            recorded.model.name = NETWORK.to_owned();
        }
        recorded.to_toml()
    }
}

/// The shortest decimals that parse to the same `f32`, as `f64`: 0.1307, not 0.13070000708.
fn shortest_decimals(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| value.to_string().parse().unwrap_or(f64::from(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const DIGITS: NetworkFacts<'_> = NetworkFacts { name: "digits", output_shape: &[10], classes: 10 };

    fn images() -> DatasetFacts<'static> {
        DatasetFacts {
            name: "mnist",
            samples: 22,
            annotation: Annotation::Class,
            target_scales: None,
            input_shape: [1, 28, 28],
            mean: vec![0.1307],
            std: vec![0.3081],
        }
    }

    fn cpu() -> DeviceFacts<'static> {
        DeviceFacts {
            name: "onednn",
            number_formats: vec!["f32".to_owned(), "bf16".to_owned()],
            has_native_bf16: true,
            threads: 2,
            tile_kib: 4096,
            loader_threads: None,
        }
    }

    fn experiment(keys: &[(&str, &str)]) -> Experiment {
        let keys: Vec<_> = [("train.batch_size", "8")].iter().chain(keys).copied().collect();
        Experiment::builtin("digits").unwrap().with_overrides(&keys).unwrap()
    }

    #[test]
    fn keys_follow_from_data_set_network_and_device() {
        let resolved = ResolvedExperiment::new(&experiment(&[]), &images(), &DIGITS, &cpu()).unwrap();
        let Experiment { data, model, train, validation, .. } = resolved.settings();
        assert_eq!(data.shape.as_deref(), Some(&[1, 28, 28][..]));
        assert_eq!((data.mean.as_deref(), data.std.as_deref()), (Some(&[0.1307][..]), Some(&[0.3081][..])));
        assert_eq!((model.classes, train.precision, train.threads), (Some(10), Precision::Bf16, 2));
        assert_eq!((train.tile_kib, validation.batch_size, data.workers), (Some(4096), Some(8), None));
        assert_eq!((resolved.tail_batch(), resolved.with_batch_size(11).tail_batch()), (Some(6), None));
        let gpu = DeviceFacts { loader_threads: Some(7), ..cpu() };
        let resolved = ResolvedExperiment::new(&experiment(&[]), &images(), &DIGITS, &gpu).unwrap();
        assert_eq!(resolved.settings().data.workers, Some(7));
    }

    #[test]
    fn resolving_what_a_run_recorded_gives_the_same() {
        for keys in [&[][..], &[("data.mean", "[0.25]"), ("data.workers", "3")], &[("train.tile_kib", "64")]]
        {
            let resolve =
                |experiment: &_| ResolvedExperiment::new(experiment, &images(), &DIGITS, &cpu()).unwrap();
            let resolved = resolve(&experiment(keys));
            let recorded = Experiment::from_toml(&resolved.to_toml(), Path::new("experiment.toml")).unwrap();
            assert_eq!(resolve(&recorded), resolved, "{keys:?}");
        }
    }

    #[test]
    fn rejects_what_device_network_or_task_do_not_support() {
        let problem = |keys: &[(&str, &str)], dataset: &_, network: &_| {
            let error = ResolvedExperiment::new(&experiment(keys), dataset, network, &cpu()).unwrap_err();
            assert!(error.hint().is_some(), "{error}");
            error.to_string()
        };
        assert_eq!(
            problem(&[("train.precision", "f16")], &images(), &DIGITS),
            "train.precision = f16 is not supported: onednn computes in f32, bf16 on this machine"
        );
        assert_eq!(
            problem(&[], &DatasetFacts { annotation: Annotation::Mask, ..images() }, &DIGITS),
            "data set `mnist` is for segmentation, but network `digits` is for classification"
        );
        assert_eq!(
            problem(&[], &images(), &NetworkFacts { output_shape: &[10, 7, 7], ..DIGITS }),
            "network `digits` is for segmentation, but data set `mnist` has one class per image"
        );
        assert_eq!(
            problem(&[("checkpoint.keep_best", "val_miou")], &images(), &DIGITS),
            "checkpoint.keep_best: this run does not record val_miou"
        );
    }
}
