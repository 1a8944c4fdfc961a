//! Opens the data sets that an experiment names.

use crate::cache::cache_folder;
use crate::experiment::OnBadSample;
use crate::network::LayerFile;
use crate::{Experiment, TrainError};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use stratus_data::datasets::synthetic;
use stratus_data::{Dataset, OpenOptions, Split, SplitBy};

/// The training and validation data of an experiment.
pub struct Datasets {
    /// The training set.
    pub train: Arc<dyn Dataset>,
    /// The validation set.
    pub validation: Arc<dyn Dataset>,
}

/// How an experiment opens its data set. Synthetic images get the shape that the network is published for,
/// unless `data.shape` is set.
#[must_use]
pub fn open_options(experiment: &Experiment) -> OpenOptions {
    let defaults = OpenOptions::default();
    let synthetic = synthetic::Size {
        images: experiment.synthetic.images,
        validation_images: experiment.synthetic.validation_images,
        classes: experiment.synthetic.classes,
    };
    OpenOptions {
        verify: experiment.data.verify,
        skip_damaged: experiment.data.on_bad_sample == OnBadSample::Skip,
        shape: experiment.shape().or_else(|| published_shape(experiment)).unwrap_or(defaults.shape),
        seed: experiment.train.seed,
        synthetic,
        class_list: experiment.data.classes.as_ref().map(PathBuf::from),
        images_per_class: experiment.data.images_per_class,
        shuffle_shards: experiment.data.shuffle_shards,
        split_by: match (&experiment.data.lists, experiment.data.split_seed) {
            (Some(lists), _) => SplitBy::Listed(lists.iter().map(PathBuf::from).collect()),
            (None, Some(seed)) => SplitBy::Seeded(seed),
            (None, None) => SplitBy::Given,
        },
        cache: match &experiment.data.cache {
            Some(folder) => Some(PathBuf::from(folder)),
            None => cache_folder().map(|folder| folder.join("data")),
        },
        cache_bytes: (experiment.data.cache_mib as u64) << 20,
        patience: Duration::from_secs_f64(experiment.data.patience_seconds),
    }
}

/// The image shape in the paper of a zoo network, or in the layer file.
fn published_shape(experiment: &Experiment) -> Option<[usize; 3]> {
    if let Some(path) = experiment.layer_file() {
        return LayerFile::read(path).ok().and_then(|(_, graph)| graph.input_shape().0[..].try_into().ok());
    }
    stratus_graph::zoo::find(&experiment.model.name).ok().map(|network| (network.defaults)().input)
}

/// Whether a path is an address with a query, which may be a signature or a token.
fn has_query(path: &str) -> bool {
    path.split_once("://").is_some_and(|(_, rest)| rest.contains('?'))
}

/// Opens one split of an experiment's data set, for classification.
///
/// # Errors
/// If it is missing or damaged, or has masks instead of labels.
pub fn open_dataset(experiment: &Experiment, split: Split) -> Result<Arc<dyn Dataset>, TrainError> {
    let set = open_any_dataset(experiment, split)?;
    reject_masks(set.as_ref())?;
    Ok(set)
}

/// As [`open_dataset`], with masks or without: for what does not train.
///
/// # Errors
/// If it is missing or damaged.
pub fn open_any_dataset(experiment: &Experiment, split: Split) -> Result<Arc<dyn Dataset>, TrainError> {
    if experiment.data.path.as_deref().is_some_and(has_query) {
        return Err(TrainError::Configuration {
            problem:
                "data.path: what follows the `?` of an address may be a secret, and the run directory would \
                      record it"
                    .to_owned(),
            hint: "give the address without it, and credentials in environment variables".to_owned(),
        });
    }
    let options = open_options(experiment);
    let set = stratus_data::open(&experiment.data.name, &experiment.data_path(), split, &options)?;
    Ok(Arc::from(set))
}

/// A classifier has one output per image: it cannot be trained on a class per pixel.
fn reject_masks(set: &dyn Dataset) -> Result<(), TrainError> {
    if !set.masks() {
        return Ok(());
    }
    Err(TrainError::Configuration {
        problem: format!(
            "data set `{}` has a class for every pixel, but a network gives one answer for an image",
            set.name()
        ),
        hint: "set data.name to a data set with a class for every image; `stratus data list` names them"
            .to_owned(),
    })
}

/// Opens an experiment's training and validation sets.
///
/// # Errors
/// If one is missing, damaged or empty, or smaller than a batch.
pub fn open_datasets(experiment: &Experiment) -> Result<Datasets, TrainError> {
    let train = open_dataset(experiment, Split::Train)?;
    let validation = open_dataset(experiment, Split::Validation)?;
    let (name, batch_size) = (&experiment.data.name, experiment.train.batch_size);
    let problem = if train.is_empty() || validation.is_empty() {
        Some(format!("data set `{name}` has no samples"))
    } else if batch_size > train.len() {
        Some(format!(
            "train.batch_size is {batch_size}, data set `{name}` has {} training images",
            train.len()
        ))
    } else {
        None
    };
    match problem {
        Some(problem) => Err(TrainError::Configuration { problem, hint: "take a smaller batch".to_owned() }),
        None => Ok(Datasets { train, validation }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_data::{DataError, Normalisation, Sample, Scratch};

    /// A data set of no content, with masks or without.
    struct Empty {
        masks: bool,
    }

    impl Dataset for Empty {
        fn name(&self) -> &str {
            "streets"
        }
        fn len(&self) -> usize {
            0
        }
        fn classes(&self) -> usize {
            2
        }
        fn sample_shape(&self) -> Option<[usize; 3]> {
            None
        }
        fn label(&self, index: usize) -> Result<u32, DataError> {
            Err(DataError::NoSuchSample { dataset: "streets".to_owned(), index, len: 0 })
        }
        fn read<'a>(&'a self, index: usize, _: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
            Err(DataError::NoSuchSample { dataset: "streets".to_owned(), index, len: 0 })
        }
        fn masks(&self) -> bool {
            self.masks
        }
        fn normalisation(&self) -> Normalisation {
            Normalisation::unit(3)
        }
        fn resident_bytes(&self) -> u64 {
            0
        }
    }

    #[test]
    fn a_data_set_with_masks_is_refused() {
        assert!(reject_masks(&Empty { masks: false }).is_ok());
        let error = reject_masks(&Empty { masks: true }).unwrap_err();
        assert!(error.is_usage(), "{error}");
        assert_eq!(
            error.to_string(),
            "data set `streets` has a class for every pixel, but a network gives one answer for an image"
        );
    }
}
