//! How many batches are read ahead, and the memory that a run takes in the process.

use super::{BatchFormat, Datasets, InputPipeline};
use crate::TrainError;
use crate::device::OpenDevice;
use crate::resolve::Resolved;
use serde::Serialize;
use stratus_data::{Dataset, Loader, LoaderConfig};
use stratus_engine::Plan;

/// MiB of batches that are read ahead, where `data.prefetch_mib` is not set.
const PREFETCH_MIB: usize = 1024;
/// Batches beside those that the workers fill: one that trains, and two that wait for it.
const BESIDE_WORKERS: usize = 3;
/// The fewest batches: one that trains, and one that is filled.
const FEWEST: u64 = 2;
/// The most worker threads, as `data.workers` has it.
const MOST_WORKERS: usize = 1024;

/// The cores that this process may use: those of its affinity mask, and no more than its control group's
/// share of processor time.
#[must_use]
pub fn usable_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MOST_WORKERS)
}

/// The loader threads beside a device, where `data.workers` is not set: all usable cores but the one that
/// feeds the device. `None` on a CPU, where the first iterations decide.
#[must_use]
pub fn workers_beside(device: &OpenDevice) -> Option<usize> {
    device.beside_cores.then(|| usable_cores().saturating_sub(1).max(1))
}

impl InputPipeline {
    /// `config` with as many batches as its workers keep in work, within `data.prefetch_mib`.
    ///
    /// # Errors
    /// If two batches do not fit, or `dataset` cannot be made into such batches.
    pub fn read_ahead(
        &self,
        dataset: &dyn Dataset,
        config: LoaderConfig,
    ) -> Result<LoaderConfig, TrainError> {
        let batch = Loader::batch_bytes(dataset, &LoaderConfig { slots: 1, ..config.clone() })?.max(1);
        let wanted = config.workers.saturating_add(BESIDE_WORKERS) as u64;
        let fitting = match self.prefetch_mib {
            None => (((PREFETCH_MIB as u64) << 20) / batch).max(FEWEST),
            Some(mib) => ((mib as u64) << 20) / batch,
        };
        if fitting < FEWEST {
            let least = batch.saturating_mul(FEWEST).div_ceil(1 << 20);
            return Err(TrainError::Configuration {
                problem: format!(
                    "data.prefetch_mib is {}; {FEWEST} batches of {} images, the fewest that are read ahead, \
                     take {least} MiB",
                    self.prefetch_mib.unwrap_or(PREFETCH_MIB),
                    config.batch_size
                ),
                hint: format!(
                    "set data.prefetch_mib to at least {least}, or take smaller batches with --set \
                     train.batch_size="
                ),
            });
        }
        Ok(LoaderConfig { slots: wanted.min(fitting) as usize, ..config })
    }
}

/// What a run takes of the process's memory beside its arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HostMemory {
    /// Training batches that are read ahead.
    pub batches: usize,
    /// Bytes of one.
    pub batch_bytes: u64,
    /// Bytes of the batches that validation reads ahead.
    pub validation_bytes: u64,
    /// Bytes of the data sets.
    pub dataset_bytes: u64,
}

impl HostMemory {
    /// Of a run that trains and measures by these plans.
    ///
    /// # Errors
    /// As [`InputPipeline::read_ahead`].
    pub fn of(
        resolved: &Resolved,
        datasets: &Datasets,
        train: &Plan,
        evaluate: &Plan,
    ) -> Result<Self, TrainError> {
        let Datasets { train: training, validation } = datasets;
        let input = resolved.input();
        let config = LoaderConfig {
            workers: resolved.most_workers(),
            share: resolved.share(),
            ..input.training(BatchFormat::of(train))
        };
        let config = input.read_ahead(training.as_ref(), config)?;
        let measuring = input.measuring(BatchFormat::of(evaluate), evaluate.program.batch);
        Ok(Self {
            batches: config.slots,
            batch_bytes: Loader::batch_bytes(training.as_ref(), &config)?,
            validation_bytes: Loader::batch_bytes(validation.as_ref(), &measuring)? * measuring.slots as u64,
            dataset_bytes: training.resident_bytes() + validation.resident_bytes(),
        })
    }

    /// All of it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.batch_bytes * self.batches as u64 + self.validation_bytes + self.dataset_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Experiment;
    use stratus_data::{Element, Layout, Split, open};

    const BYTES: BatchFormat = BatchFormat { element: Element::U8, layout: Layout::Nhwc };

    /// The batches that are read ahead of 64 synthetic images of 3 × 256 × 256 bytes: 12 MiB and a little.
    fn batches(keys: &[(&str, &str)]) -> Result<usize, TrainError> {
        let set = [
            ("data.name", "synthetic"),
            ("data.shape", "[3, 256, 256]"),
            ("train.batch_size", "64"),
            ("model.name", "resnet18"),
        ];
        let keys: Vec<_> = set.iter().chain(keys).copied().collect();
        let experiment = Experiment::builtin("resnet18").unwrap().with_overrides(&keys).unwrap();
        let options = crate::input::open_options(&experiment);
        let set = open("synthetic", std::path::Path::new(""), Split::Train, &options).unwrap();
        let input = InputPipeline::new(&experiment, set.as_ref());
        Ok(input.read_ahead(set.as_ref(), input.training(BYTES))?.slots)
    }

    #[test]
    fn as_many_batches_as_workers_and_a_few_within_the_bound() {
        assert_eq!(batches(&[]).unwrap(), 4);
        assert_eq!(batches(&[("data.workers", "14")]).unwrap(), 17);
        assert_eq!(batches(&[("data.workers", "14"), ("data.prefetch_mib", "100")]).unwrap(), 8);
        assert_eq!(batches(&[("data.workers", "1000")]).unwrap(), 85);
        // Two batches, however large, unless the bound is set.
        assert_eq!(batches(&[("train.batch_size", "1280"), ("data.synthetic.images", "9999")]).unwrap(), 4);
        let large = [("train.batch_size", "4096"), ("data.synthetic.images", "9999")];
        assert_eq!(batches(&large).unwrap(), 2);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_would() {
        let error = batches(&[("data.workers", "14"), ("data.prefetch_mib", "24")]).unwrap_err();
        let TrainError::Configuration { problem, hint } = error else { panic!("{error}") };
        assert_eq!(
            problem,
            "data.prefetch_mib is 24; 2 batches of 64 images, the fewest that are read ahead, take 25 MiB"
        );
        assert_eq!(
            hint,
            "set data.prefetch_mib to at least 25, or take smaller batches with --set train.batch_size="
        );
        assert_eq!(batches(&[("data.workers", "14"), ("data.prefetch_mib", "25")]).unwrap(), 2);
    }
}
