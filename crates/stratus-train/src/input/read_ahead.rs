//! The number of batches that are read ahead, and the cores that may read them.

use super::InputPipeline;
use crate::TrainError;
use stratus_data::{Dataset, Loader, LoaderConfig};

/// Default of `data.prefetch_mib`.
const PREFETCH_MIB: usize = 1024;
/// Batches besides those that loader threads fill: one in training, and two that wait.
const EXTRA_BATCHES: usize = 3;
/// Minimum number of batches: one in training, and one being filled.
const MIN_BATCHES: u64 = 2;
/// Maximum number of loader threads, that of `data.workers`.
const MAX_LOADER_THREADS: usize = 1024;

/// The number of cores that this process may use, by its affinity mask and its control group's CPU quota.
#[must_use]
pub fn usable_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MAX_LOADER_THREADS)
}

impl InputPipeline {
    /// `config` with the number of batches that keeps its loader threads busy, within `data.prefetch_mib`.
    ///
    /// # Errors
    /// If two batches exceed `data.prefetch_mib`, or `config` is invalid for `dataset`.
    pub fn read_ahead(
        &self,
        dataset: &dyn Dataset,
        config: LoaderConfig,
    ) -> Result<LoaderConfig, TrainError> {
        let batch = batch_bytes(dataset, &config)?;
        let useful = config.workers.saturating_add(EXTRA_BATCHES) as u64;
        let fitting = match self.prefetch_mib {
            None => (((PREFETCH_MIB as u64) << 20) / batch).max(MIN_BATCHES),
            Some(mib) => ((mib as u64) << 20) / batch,
        };
        if fitting < MIN_BATCHES {
            let min_mib = batch.saturating_mul(MIN_BATCHES).div_ceil(1 << 20);
            return Err(TrainError::Configuration {
                problem: format!(
                    "data.prefetch_mib is {}, but {MIN_BATCHES} batches of {} images, the minimum to read \
                     ahead, take {min_mib} MiB",
                    self.prefetch_mib.unwrap_or(PREFETCH_MIB),
                    config.batch_size
                ),
                hint: format!(
                    "set data.prefetch_mib to at least {min_mib}, or use smaller batches with --set \
                     train.batch_size="
                ),
            });
        }
        Ok(LoaderConfig { slots: useful.min(fitting) as usize, ..config })
    }

    /// The share of `data.prefetch_mib` that two batches, the minimum to read ahead, need; 0 if it is unset.
    ///
    /// # Errors
    /// If `config` is invalid for `dataset`.
    pub fn prefetch_share(&self, dataset: &dyn Dataset, config: &LoaderConfig) -> Result<f64, TrainError> {
        let Some(mib) = self.prefetch_mib else { return Ok(0.0) };
        let min_bytes = batch_bytes(dataset, config)?.saturating_mul(MIN_BATCHES);
        Ok(min_bytes as f64 / ((mib as u64) << 20) as f64)
    }
}

/// The bytes of a batch that is read ahead; at least 1.
fn batch_bytes(dataset: &dyn Dataset, config: &LoaderConfig) -> Result<u64, TrainError> {
    Ok(Loader::batch_bytes(dataset, &LoaderConfig { slots: 1, ..config.clone() })?.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::BatchFormat;
    use stratus_data::{Element, Layout, Split, open};
    use stratus_experiment::Experiment;

    const BYTES: BatchFormat = BatchFormat { element: Element::U8, layout: Layout::Nhwc };

    /// The number of batches that are read ahead, of 64 synthetic images of 3 × 256 × 256 bytes: about 12
    /// MiB.
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
    fn reads_a_batch_per_thread_and_a_few_within_the_limit() {
        assert_eq!(batches(&[]).unwrap(), 4);
        assert_eq!(batches(&[("data.workers", "14")]).unwrap(), 17);
        assert_eq!(batches(&[("data.workers", "14"), ("data.prefetch_mib", "100")]).unwrap(), 8);
        assert_eq!(batches(&[("data.workers", "1000")]).unwrap(), 85);
        // Without a limit, at least two batches of any size.
        assert_eq!(batches(&[("train.batch_size", "1280"), ("data.synthetic.images", "9999")]).unwrap(), 4);
        let large = [("train.batch_size", "4096"), ("data.synthetic.images", "9999")];
        assert_eq!(batches(&large).unwrap(), 2);
    }

    #[test]
    fn rejects_a_limit_below_two_batches() {
        let error = batches(&[("data.workers", "14"), ("data.prefetch_mib", "24")]).unwrap_err();
        let TrainError::Configuration { problem, hint } = error else { panic!("{error}") };
        assert_eq!(
            problem,
            "data.prefetch_mib is 24, but 2 batches of 64 images, the minimum to read ahead, take 25 MiB"
        );
        assert_eq!(
            hint,
            "set data.prefetch_mib to at least 25, or use smaller batches with --set train.batch_size="
        );
        assert_eq!(batches(&[("data.workers", "14"), ("data.prefetch_mib", "25")]).unwrap(), 2);
    }
}
