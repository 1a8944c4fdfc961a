//! From an experiment to a session: network, programs, plans, memory.

use crate::device::Opened;
use crate::experiment::{self, OnBadSample, OptimiserName};
use crate::feed::{Lines, image_shape, measuring_lines, mixing, training_lines};
use crate::network::{LayerFile, Network};
use crate::plan_cache::{self, PlanCache};
use crate::{Experiment, TrainError};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use stratus_base::checksum::sha256_hex;
use stratus_data::datasets::synthetic;
use stratus_data::{Dataset, Division, OpenOptions, Split};
use stratus_engine::differentiate::differentiate;
use stratus_engine::fuse::fuse_as;
use stratus_engine::images::images_as_bytes;
use stratus_engine::lower::{lower, mix_labels, refresh, smooth_labels};
use stratus_engine::micro_batch::micro_batches;
use stratus_engine::ops::{Adaptive, AdaptiveUpdate, SgdUpdate};
use stratus_engine::plan::{Persistent, PreparedPlan};
use stratus_engine::program::Mode;
use stratus_engine::recompute::{AGAIN_SUFFIX, recompute};
use stratus_engine::tile::tile;
use stratus_engine::update::{LARGE, Optimiser, Optimisers, update_joined};
use stratus_engine::{Backend, Choices, Plan, Program, Session};
use stratus_graph::Graph;

/// The training and validation data of an experiment.
pub struct Datasets {
    /// What is trained on.
    pub train: Arc<dyn Dataset>,
    /// What is measured on.
    pub validation: Arc<dyn Dataset>,
    /// Channels, height, width of the images that the network gets.
    pub shape: [usize; 3],
}

/// How an experiment opens its data set. Images that are made up get the shape that the network is published for, where none is set.
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
        division: match (&experiment.data.lists, experiment.data.split_seed) {
            (Some(lists), _) => Division::Listed(lists.iter().map(PathBuf::from).collect()),
            (None, Some(seed)) => Division::Seeded(seed),
            (None, None) => Division::Given,
        },
        cache: match &experiment.data.cache {
            Some(folder) => Some(PathBuf::from(folder)),
            None => plan_cache::folder().map(|folder| folder.join("data")),
        },
        cache_bytes: (experiment.data.cache_mib as u64) << 20,
        patience: Duration::from_secs_f64(experiment.data.patience_seconds),
    }
}

/// What the network is published for, where there is such a network; a layer file says it.
fn published_shape(experiment: &Experiment) -> Option<[usize; 3]> {
    if let Some(path) = experiment.layer_file() {
        return LayerFile::read(path).ok().and_then(|(_, graph)| graph.input_shape().0[..].try_into().ok());
    }
    stratus_graph::zoo::find(&experiment.model.name).ok().map(|network| (network.defaults)().input)
}

/// Whether a path is an address with something that is not to be written down.
fn has_secret(path: &str) -> bool {
    path.split_once("://").is_some_and(|(_, rest)| rest.contains('?'))
}

/// Opens a part of an experiment's data set; the second is the shape of the images that the network gets: channels, height, width.
///
/// # Errors
/// Where it is not there, or damaged, or has masks instead of labels.
pub fn open_dataset(
    experiment: &Experiment,
    split: Split,
) -> Result<(Arc<dyn Dataset>, [usize; 3]), TrainError> {
    let (set, shape) = open_any_dataset(experiment, split)?;
    without_masks(set.as_ref())?;
    Ok((set, shape))
}

/// As [`open_dataset`], for what does not train.
///
/// # Errors
/// Where it is not there, or damaged.
pub fn open_any_dataset(
    experiment: &Experiment,
    split: Split,
) -> Result<(Arc<dyn Dataset>, [usize; 3]), TrainError> {
    if experiment.data.path.as_deref().is_some_and(has_secret) {
        return Err(TrainError::Configuration {
            problem: "data.path: what follows the `?` of an address may be a secret, and the run would write it down"
                .to_owned(),
            hint: "give the address without it, and what it takes to get there in the environment".to_owned(),
        });
    }
    let options = open_options(experiment);
    let set = stratus_data::open(&experiment.data.name, &experiment.data_path(), split, &options)?;
    let shape = image_shape(experiment, set.as_ref());
    Ok((Arc::from(set), shape))
}

/// A network has one output for each image, so that there is nothing to compare the classes of pixels with.
fn without_masks(set: &dyn Dataset) -> Result<(), TrainError> {
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

/// Opens an experiment's data sets.
///
/// # Errors
/// Where they are not there, damaged, or do not fit together.
pub fn open_datasets(experiment: &Experiment) -> Result<Datasets, TrainError> {
    let (train, shape) = open_dataset(experiment, Split::Train)?;
    let (validation, _) = open_dataset(experiment, Split::Validation)?;
    let sets = Datasets { train, validation, shape };
    let problem = if sets.train.is_empty() || sets.validation.is_empty() {
        Some(format!("data set `{}` has no samples", experiment.data.name))
    } else if experiment.train.batch_size > sets.train.len() {
        Some(format!(
            "train.batch_size is {}, data set `{}` has {} training images",
            experiment.train.batch_size,
            experiment.data.name,
            sets.train.len()
        ))
    } else {
        None
    };
    match problem {
        Some(problem) => Err(TrainError::Configuration { problem, hint: "take a smaller batch".to_owned() }),
        None => Ok(sets),
    }
}

/// The network of an experiment, for the images that it gets.
///
/// # Errors
/// As [`Network::of`].
pub fn network(
    experiment: &Experiment,
    dataset: &dyn Dataset,
    shape: [usize; 3],
) -> Result<Graph, TrainError> {
    Ok(Network::of(experiment, dataset, shape)?.graph)
}

/// Kernels share a tile's samples out among threads and blocks: with fewer than this they lose more than the caches give.
const FEWEST_SAMPLES: usize = 32;

/// The programs of a run before a backend sees them.
#[derive(Clone, Debug, PartialEq)]
pub struct Programs {
    /// A whole batch: forward, backward, update.
    pub train: Program,
    /// The last batch of an epoch, where it is smaller and kept.
    pub tail: Option<Program>,
    /// Validation.
    pub evaluate: Program,
    /// Brings bf16 copies up to date; has no steps in f32.
    pub refresh: Program,
}

/// The optimisers that the configuration asks for.
fn optimisers(settings: &experiment::Optimiser) -> Optimisers {
    let weights = optimiser(settings);
    Optimisers { weights, biases: weights.faster(settings.bias_rate) }
}

fn optimiser(settings: &experiment::Optimiser) -> Optimiser {
    let weight_decay = settings.weight_decay;
    let adaptive =
        |rule| Optimiser::Adaptive(AdaptiveUpdate { rule, weight_decay, rate: 1.0, scaled: false });
    let epsilon = |usual| settings.epsilon.unwrap_or(usual);
    let adam = |decoupled| Adaptive::Adam {
        betas: [settings.beta1, settings.beta2],
        epsilon: epsilon(1e-8),
        decoupled,
    };
    match settings.name {
        OptimiserName::Sgd => Optimiser::Sgd(SgdUpdate {
            momentum: settings.momentum as f32,
            weight_decay: weight_decay as f32,
            nesterov: settings.nesterov,
            rate: 1.0,
            scaled: false,
        }),
        OptimiserName::Adam => adaptive(adam(false)),
        OptimiserName::AdamW => adaptive(adam(true)),
        OptimiserName::Adagrad => adaptive(Adaptive::Adagrad { epsilon: epsilon(1e-10) }),
        OptimiserName::Adadelta => adaptive(Adaptive::Adadelta { rho: settings.rho, epsilon: epsilon(1e-6) }),
    }
}

/// The programs of an experiment that trains on `dataset`, by whose normalisation it measures too where none is set.
///
/// # Errors
/// Where the network cannot be lowered or differentiated.
pub fn programs(
    experiment: &Experiment,
    graph: &Graph,
    opened: &Opened,
    dataset: &dyn Dataset,
) -> Result<Programs, TrainError> {
    let optimisers = optimisers(&experiment.optimiser);
    let smoothing = experiment.train.label_smoothing as f32;
    let mixed = mixing(&experiment.augment).is_on();
    let precision = opened.precision(experiment.train.precision)?;
    let lines = training_lines(experiment, dataset);
    let training = |batch| -> Result<Program, TrainError> {
        let parts = parts(batch, experiment.micro_batch_size());
        let forward = smooth_labels(lower(graph, Mode::Train, precision, batch / parts)?, smoothing)?;
        let forward = if mixed { mix_labels(forward)? } else { forward };
        let forward = as_bytes(fuse_as(&forward, opened.backend.fusions())?, lines, opened)?;
        let alive = experiment.train.activations_kib.map_or(usize::MAX, |kib| kib << 10);
        let program = recompute(&differentiate(&forward)?, alive)?;
        let program = match experiment.train.micro_batches {
            0 | 1 => tiled(program, experiment, opened)?,
            _ => micro_batches(&program, parts)?,
        };
        Ok(update_joined(&program, optimisers, LARGE)?)
    };
    let rest = dataset.len() % experiment.train.batch_size;
    let train = training(experiment.train.batch_size)?;
    Ok(Programs {
        tail: (rest > 0 && !experiment.data.drop_last).then(|| training(rest)).transpose()?,
        evaluate: evaluation(experiment, graph, opened, dataset)?,
        refresh: refresh(&train)?,
        train,
    })
}

/// Into how many equal parts a batch is cut that has no more than `largest` samples: for the last batch of an epoch, which may be smaller.
fn parts(batch: usize, largest: usize) -> usize {
    (batch.div_ceil(largest.max(1))..batch).find(|parts| batch.is_multiple_of(*parts)).unwrap_or(batch)
}

/// A forward program that takes images as bytes, where its backend gains from them and they can be had.
fn as_bytes(program: Program, lines: Option<Lines>, opened: &Opened) -> Result<Program, TrainError> {
    match lines.filter(|_| opened.backend.gains_from_bytes()) {
        Some(lines) => Ok(images_as_bytes(program, lines)?),
        None => Ok(program),
    }
}

/// The program of validation, for images that are normalised as those of `dataset`.
fn evaluation(
    experiment: &Experiment,
    graph: &Graph,
    opened: &Opened,
    dataset: &dyn Dataset,
) -> Result<Program, TrainError> {
    let precision = opened.precision(experiment.train.precision)?;
    let batch = experiment.validation_batch_size();
    let forward = lower(graph, Mode::Evaluate, precision, batch)?;
    let forward = fuse_as(&forward, opened.backend.fusions())?;
    tiled(as_bytes(forward, measuring_lines(experiment, dataset), opened)?, experiment, opened)
}

/// A program in tiles that fit this device's caches.
fn tiled(program: Program, experiment: &Experiment, opened: &Opened) -> Result<Program, TrainError> {
    let tile_bytes = opened.tile_kib(experiment.train.tile_kib) << 10;
    if tile_bytes == 0 { Ok(program) } else { Ok(tile(&program, tile_bytes, FEWEST_SAMPLES)?) }
}

/// The plans of a run: the content of `plan.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plans {
    /// Bytes allocated: persistent values, and the transient ones of the largest program.
    pub arena_bytes: usize,
    /// A whole batch.
    pub train: Plan,
    /// The last batch of an epoch.
    pub tail: Option<Plan>,
    /// Validation.
    pub evaluate: Plan,
    /// Copies brought up to date.
    pub refresh: Plan,
}

impl Plans {
    /// A checksum that says whether two runs have the same plans.
    #[must_use]
    pub fn hash(&self) -> String {
        let text = serde_json::to_vec(self).unwrap_or_default();
        sha256_hex([text.as_slice()])
    }
}

/// Where a program stands in the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramIds {
    /// A whole batch.
    pub train: usize,
    /// The last batch of an epoch.
    pub tail: Option<usize>,
    /// Validation.
    pub evaluate: usize,
    /// Copies brought up to date.
    pub refresh: usize,
}

/// A session ready to be filled with weights.
pub struct Compiled {
    /// The session.
    pub session: Session,
    /// Its programs.
    pub ids: ProgramIds,
    /// Their plans.
    pub plans: Plans,
}

/// How plans come about.
pub enum Planning<'a> {
    /// From the cache of this machine, else measured and put there.
    Cached,
    /// Measured anew.
    Remeasure,
    /// On the kernels that were chosen for these programs, or for the same without activations that are made again: the bits are theirs.
    Repeat(&'a Chosen),
}

/// What was chosen for the programs of a run.
pub struct Chosen {
    train: Choices,
    tail: Option<Choices>,
    evaluate: Choices,
    refresh: Choices,
}

impl Plans {
    /// What was chosen.
    #[must_use]
    pub fn chosen(&self) -> Chosen {
        Chosen {
            train: self.train.choices.clone(),
            tail: self.tail.as_ref().map(|tail| tail.choices.clone()),
            evaluate: self.evaluate.choices.clone(),
            refresh: self.refresh.choices.clone(),
        }
    }
}

/// Programs with their kernels and places, for which no memory was allocated yet.
pub struct Planned {
    prepared: Vec<PreparedPlan>,
    persistent: Persistent,
    ids: ProgramIds,
}

impl Planned {
    /// Bytes that the session will allocate.
    #[must_use]
    pub fn arena_bytes(&self) -> usize {
        let transient = self.prepared.iter().map(|prepared| prepared.plan.transient_bytes).max();
        self.persistent.bytes + transient.unwrap_or(0)
    }

    /// What was chosen.
    #[must_use]
    pub fn chosen(&self) -> Chosen {
        let of = |id: usize| self.prepared[id].plan.choices.clone();
        let ProgramIds { train, tail, evaluate, refresh } = self.ids;
        Chosen { train: of(train), tail: tail.map(of), evaluate: of(evaluate), refresh: of(refresh) }
    }

    /// Allocates the session where the backend that it was planned for has its memory.
    ///
    /// # Errors
    /// Where memory cannot be had.
    pub fn allocate(self, backend: &dyn Backend) -> Result<Compiled, TrainError> {
        let ids = self.ids;
        let session = Session::of(backend, self.prepared, self.persistent)?;
        let plan = |id: usize| session.plan(id).clone();
        let plans = Plans {
            arena_bytes: session.arena_bytes(),
            train: plan(ids.train),
            tail: ids.tail.map(plan),
            evaluate: plan(ids.evaluate),
            refresh: plan(ids.refresh),
        };
        Ok(Compiled { session, ids, plans })
    }
}

/// Prepares every program.
///
/// # Errors
/// Where a step cannot be run, or a plan cannot be repeated.
pub fn plan(
    programs: &Programs,
    opened: &Opened,
    planning: &Planning<'_>,
    warn: &mut dyn FnMut(&str),
) -> Result<Planned, TrainError> {
    let mut planner = Planner::new(opened, planning, warn);
    let mut prepare = |program, recorded| planner.prepare(program, recorded);
    let recorded = match planning {
        Planning::Repeat(chosen) => Some(*chosen),
        _ => None,
    };
    let train = prepare(&programs.train, recorded.map(|chosen| &chosen.train))?;
    let tail = match &programs.tail {
        Some(tail) => Some(prepare(tail, recorded.and_then(|chosen| chosen.tail.as_ref()))?),
        None => None,
    };
    let evaluate = prepare(&programs.evaluate, recorded.map(|chosen| &chosen.evaluate))?;
    let refresh = prepare(&programs.refresh, recorded.map(|chosen| &chosen.refresh))?;
    let mut prepared = vec![train];
    let tail = tail.map(|tail| {
        prepared.push(tail);
        prepared.len() - 1
    });
    prepared.extend([evaluate, refresh]);
    let ids = ProgramIds { train: 0, tail, evaluate: prepared.len() - 2, refresh: prepared.len() - 1 };
    Ok(Planned { prepared, persistent: planner.persistent, ids })
}

/// A session that measures weights and trains nothing.
pub struct Evaluation {
    /// The session.
    pub session: Session,
    /// The program that measures.
    pub evaluate: usize,
    /// The program that brings copies up to date.
    pub refresh: usize,
}

/// Prepares what measuring on `dataset` needs, and allocates the session.
///
/// # Errors
/// As [`programs`] and [`plan`], and where memory cannot be had.
pub fn compile_evaluation(
    experiment: &Experiment,
    graph: &Graph,
    opened: &Opened,
    dataset: &dyn Dataset,
    warn: &mut dyn FnMut(&str),
) -> Result<Evaluation, TrainError> {
    let program = evaluation(experiment, graph, opened, dataset)?;
    let mut planner = Planner::new(opened, &Planning::Cached, warn);
    let prepared = vec![planner.prepare(&program, None)?, planner.prepare(&refresh(&program)?, None)?];
    let session = Session::of(opened.backend.as_ref(), prepared, planner.persistent)?;
    Ok(Evaluation { session, evaluate: 0, refresh: 1 })
}

/// Prepares one program after the other over the same persistent values.
struct Planner<'a> {
    backend: &'a dyn Backend,
    cache: PlanCache,
    planning: &'a Planning<'a>,
    persistent: Persistent,
    warn: &'a mut dyn FnMut(&str),
}

impl<'a> Planner<'a> {
    fn new(opened: &'a Opened, planning: &'a Planning<'a>, warn: &'a mut dyn FnMut(&str)) -> Self {
        let (backend, cache) = (opened.backend.as_ref(), PlanCache::of_this_machine());
        Self { backend, cache, planning, persistent: Persistent::default(), warn }
    }

    fn prepare(&mut self, program: &Program, recorded: Option<&Choices>) -> Result<PreparedPlan, TrainError> {
        let known = match self.planning {
            Planning::Repeat(_) => recorded.map(|choices| for_again(program, choices)),
            Planning::Cached => self.cache.load(self.backend, program),
            Planning::Remeasure => None,
        };
        if let Some(choices) = known {
            match Plan::prepare(self.backend, program, choices, false, &mut self.persistent) {
                Ok(plan) => return Ok(plan),
                // A cache is a cache: what it cannot give is measured. A run that is to be repeated must say so.
                Err(error) if matches!(self.planning, Planning::Repeat(_)) => return Err(error.into()),
                Err(_) => {}
            }
        }
        let plan = Plan::prepare(self.backend, program, Choices::default(), true, &mut self.persistent)?;
        if let Err(problem) = self.cache.store(self.backend, program, &plan.plan.choices) {
            (self.warn)(&problem);
        }
        Ok(plan)
    }
}

/// Choices for a program that may make activations again: those lie as the first time.
fn for_again(program: &Program, choices: &Choices) -> Choices {
    let mut choices = choices.clone();
    for value in &program.values {
        let before = value.name.trim_end_matches(AGAIN_SUFFIX);
        if let Some(layout) = choices.layouts.get(before).cloned() {
            choices.layouts.insert(value.name.clone(), layout);
        }
    }
    choices
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
    fn biases_learn_at_the_rate_that_is_set() {
        let of = |name: OptimiserName| {
            let settings =
                experiment::Optimiser { name, bias_rate: 64.0, weight_decay: 0.5, ..Default::default() };
            let Optimisers { weights, biases } = optimisers(&settings);
            let rates = |optimiser| match optimiser {
                Optimiser::Sgd(sgd) => (f64::from(sgd.rate), f64::from(sgd.weight_decay)),
                Optimiser::Adaptive(update) => (update.rate, update.weight_decay),
            };
            assert_eq!((rates(weights), rates(biases)), ((1.0, 0.5), (64.0, 0.5 / 64.0)), "{name:?}");
        };
        use OptimiserName::{Adadelta, Adagrad, Adam, AdamW, Sgd};
        [Sgd, Adam, AdamW, Adagrad, Adadelta].into_iter().for_each(of);
        let settings = experiment::Optimiser::default();
        assert_eq!(optimisers(&settings).biases, optimisers(&settings).weights);
    }

    #[test]
    fn a_data_set_with_masks_is_refused() {
        assert!(without_masks(&Empty { masks: false }).is_ok());
        let error = without_masks(&Empty { masks: true }).unwrap_err();
        assert!(error.is_usage(), "{error}");
        assert_eq!(
            error.to_string(),
            "data set `streets` has a class for every pixel, but a network gives one answer for an image"
        );
    }
}
