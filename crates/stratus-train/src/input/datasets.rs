//! Opens the data sets of an experiment.

use super::pipeline::annotation;
use crate::cache::cache_folder;
use crate::network::check_data_set;
use crate::{LayerFile, TrainError};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use stratus_base::printable;
use stratus_data::datasets::class_targets::{LabelsOfClasses, NumbersOfClasses};
use stratus_data::datasets::{SyntheticOptions, folder};
use stratus_data::stats::target_statistics;
use stratus_data::{DataError, Dataset, OpenOptions, Split, SplitMethod, TableOptions, TargetKind};
use stratus_experiment::{Annotation, Experiment, LossFunction, OnBadSample};
use stratus_run::data::class_difference;

/// The training and validation data of an experiment.
pub struct Datasets {
    /// The training set.
    pub train: Arc<dyn Dataset>,
    /// The validation set.
    pub validation: Arc<dyn Dataset>,
}

/// The names of constant targets that a warning lists, at most.
const MAX_NAMED_TARGETS: usize = 5;

impl Datasets {
    /// Warnings about the data, a sentence each: damaged images that are skipped, files that are not images,
    /// unusual properties, and targets of which nothing can be learned.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let Self { train, validation } = self;
        let mut warnings = Vec::new();
        let damaged = train.damaged().len() + validation.damaged().len();
        if damaged > 0 {
            let plural = if damaged == 1 { "" } else { "s" };
            warnings.push(format!("skipping {damaged} damaged image{plural}; the summary lists them"));
        }
        let mut ignored_files = train.ignored_files();
        ignored_files.extend(&validation.ignored_files());
        warnings.extend(ignored_files.warning());
        // Both splits may be of one table.
        for unusual in train.warnings().into_iter().chain(validation.warnings()) {
            if !warnings.contains(&unusual) {
                warnings.push(unusual);
            }
        }
        warnings.extend(constant_targets(train.as_ref()));
        warnings
    }
}

/// The warning about constant targets; `None` if there are none.
fn constant_targets(train: &dyn Dataset) -> Option<String> {
    let kind = train.target_kind()?;
    let statistics = target_statistics(train);
    let is_constant = |target: &usize| statistics[*target].is_constant();
    let constant: Vec<usize> = (0..statistics.len()).filter(is_constant).collect();
    if constant.is_empty() {
        return None;
    }
    let name = |&target: &usize| format!("`{}`", printable(&train.class_name(target)));
    let mut names = constant.iter().take(MAX_NAMED_TARGETS).map(name).collect::<Vec<_>>().join(", ");
    if constant.len() > MAX_NAMED_TARGETS {
        names.push_str(&format!(" and {} more", constant.len() - MAX_NAMED_TARGETS));
    }
    let (plural, is, it) = if constant.len() == 1 { ("", "is", "it") } else { ("s", "are", "them") };
    let noun = match kind {
        TargetKind::Labels => "label",
        TargetKind::Numbers => "number",
    };
    Some(format!(
        "{noun}{plural} {names} {is} constant in the training images: nothing can be learned about {it}"
    ))
}

/// The options for opening an experiment's data set. Synthetic images have the shape that the network is
/// published for, unless `data.shape` is set.
#[must_use]
pub fn open_options(experiment: &Experiment) -> OpenOptions {
    let defaults = OpenOptions::default();
    let synthetic = SyntheticOptions {
        images: experiment.synthetic.images,
        validation_images: experiment.synthetic.validation_images,
        classes: experiment.synthetic.classes,
        delay: Duration::from_millis(experiment.synthetic.delay_ms),
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
        split_method: match (&experiment.data.lists, experiment.data.split_seed) {
            (Some(lists), _) => SplitMethod::Lists(lists.iter().map(PathBuf::from).collect()),
            (None, Some(seed)) => SplitMethod::Seeded(seed),
            (None, None) => SplitMethod::Published,
        },
        table: table_options(experiment),
        cache: match &experiment.data.cache {
            Some(folder) => Some(PathBuf::from(folder)),
            None => cache_folder().map(|folder| folder.join("data")),
        },
        cache_bytes: (experiment.data.cache_mib as u64) << 20,
        give_up_after: Duration::from_secs_f64(experiment.data.patience_seconds),
    }
}

/// The options of a table. A loss of labels or numbers decides what its columns hold.
fn table_options(experiment: &Experiment) -> TableOptions {
    let data = &experiment.data;
    TableOptions {
        columns: data.columns.clone().unwrap_or_default(),
        separator: data.label_separator.as_ref().and_then(|separator| separator.chars().next()),
        kind: experiment.train.loss.and_then(|loss| match loss {
            LossFunction::CrossEntropy => None,
            LossFunction::BinaryCrossEntropy => Some(TargetKind::Labels),
            LossFunction::SquaredError | LossFunction::Huber => Some(TargetKind::Numbers),
        }),
        group_by: data.group_by.clone(),
    }
}

/// The image shape of a zoo network's paper, or of a layer file.
fn published_shape(experiment: &Experiment) -> Option<[usize; 3]> {
    if let Some(path) = experiment.layer_file() {
        return LayerFile::read(path).ok().and_then(|(_, graph)| graph.input_shape().0[..].try_into().ok());
    }
    stratus_graph::zoo::find(&experiment.model.name).ok().map(|network| (network.defaults)().input)
}

/// Returns whether a path is an address with a query, which may be a signature or a token.
fn has_query(path: &str) -> bool {
    path.split_once("://").is_some_and(|(_, rest)| rest.contains('?'))
}

/// Opens one split of an experiment's data set.
///
/// # Errors
/// If it is missing or damaged.
pub fn open_dataset(experiment: &Experiment, split: Split) -> Result<Arc<dyn Dataset>, TrainError> {
    open_split(experiment, split, &open_options(experiment)).map(Arc::from)
}

/// Opens one split with other options than the experiment's.
///
/// # Errors
/// If it is missing or damaged.
pub(crate) fn open_split(
    experiment: &Experiment,
    split: Split,
    options: &OpenOptions,
) -> Result<Box<dyn Dataset>, TrainError> {
    check_data_set(experiment)?;
    if experiment.data.path.as_deref().is_some_and(has_query) {
        return Err(TrainError::Configuration {
            problem:
                "data.path has a query string, which may be a secret and would be stored in the run directory"
                    .to_owned(),
            hint: "remove it, and set credentials in environment variables".to_owned(),
        });
    }
    let (name, path) = (&experiment.data.name, experiment.data_path());
    let opened = stratus_data::open(name, &path, split, options);
    let opened = opened.and_then(|set| learned_as(set, experiment.train.loss));
    opened.map_err(|error| {
        let may_be_other = path.is_file()
            || matches!(
                error,
                DataError::MissingFile { .. }
                    | DataError::MissingMember { .. }
                    | DataError::InvalidOption { .. }
            );
        if name == folder::ENTRY.name || !may_be_other || !folder::looks_like_class_folder(&path) {
            return error.into();
        }
        let split_option = if folder::has_training_folder(&path) { "" } else { " --set data.split_seed=0" };
        let hint = format!(
            "{} contains class folders: use --set \
             data.name={}{split_option}",
            path.display(),
            folder::ENTRY.name
        );
        TrainError::Configuration { problem: error.to_string(), hint }
    })
}

/// A data set as a loss learns it: one class per image becomes labels, one of which applies, or the number
/// that is the name of the class. Other annotations stay as they are.
///
/// # Errors
/// If a name is not a number.
fn learned_as(set: Box<dyn Dataset>, loss: Option<LossFunction>) -> Result<Box<dyn Dataset>, DataError> {
    if annotation(set.as_ref()) != Annotation::Class {
        return Ok(set);
    }
    Ok(match loss {
        None | Some(LossFunction::CrossEntropy) => set,
        Some(LossFunction::BinaryCrossEntropy) => Box::new(LabelsOfClasses::new(Arc::from(set))),
        Some(LossFunction::SquaredError | LossFunction::Huber) => {
            Box::new(NumbersOfClasses::new(Arc::from(set))?)
        }
    })
}

/// Checks that every class has an undamaged image, since the network would not learn it otherwise.
fn check_images_of_each_class(set: &dyn Dataset) -> Result<(), TrainError> {
    if set.damaged().is_empty() {
        return Ok(());
    }
    let is_labels = set.target_kind() == Some(TargetKind::Labels);
    let mut usable = vec![0_u64; set.classes()];
    let mut damaged = usable.clone();
    for index in 0..set.len() {
        let class = set.label(index)? as usize;
        let is_damaged = set.damaged().binary_search_by_key(&(index as u32), |(damaged, _)| *damaged).is_ok();
        let counts = if is_damaged { &mut damaged } else { &mut usable };
        if is_labels {
            let targets = counts.iter_mut().zip(set.targets(index)?);
            targets.for_each(|(count, &target)| *count += u64::from(target > 0.5));
            continue;
        }
        // Images with masks have no single class.
        if let Some(count) = counts.get_mut(class) {
            *count += 1;
        }
    }
    let lost = (0..set.classes()).find(|&class| usable[class] == 0 && damaged[class] > 0);
    lost.map_or(Ok(()), |class| {
        let (name, count) = (set.class_name(class), damaged[class]);
        Err(TrainError::Configuration {
            problem: match is_labels {
                true => format!("every image with the label `{name}` is damaged ({count})"),
                false => format!("every image of class `{name}` is damaged ({count})"),
            },
            hint: if is_labels {
                "replace them, or list the other columns in data.columns".to_owned()
            } else {
                "replace them, or exclude the class: remove its folder, or list the others in data.classes"
                    .to_owned()
            },
        })
    })
}

/// Checks that training and validation split have the same classes with the same numbers.
fn check_same_classes(train: &dyn Dataset, validation: &dyn Dataset) -> Result<(), TrainError> {
    let names = |set: &dyn Dataset| (0..set.classes()).map(|class| set.class_name(class)).collect::<Vec<_>>();
    class_difference(&names(train), &names(validation)).map_or(Ok(()), |difference| {
        Err(TrainError::Configuration {
            problem: format!(
                "the training and validation splits of data set `{}` have different classes: {difference}",
                train.name()
            ),
            hint: "both need the same classes with the same numbers, even without images of some".to_owned(),
        })
    })
}

/// Opens an experiment's training and validation sets.
///
/// # Errors
/// If one is missing, damaged or empty, or smaller than a batch.
pub fn open_datasets(experiment: &Experiment) -> Result<Datasets, TrainError> {
    let train = open_dataset(experiment, Split::Train)?;
    let validation = open_dataset(experiment, Split::Validation)?;
    check_images_of_each_class(train.as_ref())?;
    check_same_classes(train.as_ref(), validation.as_ref())?;
    let (name, batch_size) = (&experiment.data.name, experiment.train.batch_size);
    let problem = if train.is_empty() || validation.is_empty() {
        Some(format!("data set `{name}` has no samples"))
    } else if batch_size > train.len() {
        Some(format!(
            "train.batch_size = {batch_size} exceeds the {} training images of data set `{name}`",
            train.len()
        ))
    } else {
        None
    };
    match problem {
        Some(problem) => {
            let max_log2 = train.len().max(1).ilog2();
            let hint = format!("use smaller batches, such as --set train.batch_size={}", 1usize << max_log2);
            Err(TrainError::Configuration { problem, hint })
        }
        None => Ok(Datasets { train, validation }),
    }
}
