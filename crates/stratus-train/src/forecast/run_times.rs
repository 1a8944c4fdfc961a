//! Measured times of the layers of a run on one device.

use crate::TrainError;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use stratus_experiment::Experiment;
use stratus_forecast::peaks::NumberFormat;
use stratus_run::RunDir;
use stratus_run::layout::SUMMARY;
use stratus_run::summary::Summary;
use stratus_run::timeline::{Iteration, Phase, Program, Purpose, Slot, TimelineReader};

/// The minimum number of iterations; the first does not count.
const MIN_ITERATIONS: usize = 5;
/// The number of last iterations whose median counts.
const MAX_ITERATIONS: usize = 512;

/// The median times of a run's training iterations, by layer and phase.
#[derive(Clone, Debug, PartialEq)]
pub struct RunTimes {
    /// The run.
    pub path: PathBuf,
    /// Images of an iteration.
    pub batch: u64,
    /// The number format.
    pub format: NumberFormat,
    /// True if it was trained on a GPU.
    pub is_on_gpu: bool,
    /// Seconds of a layer in a phase. Waiting, copies and bookkeeping are left out.
    pub layers: BTreeMap<(String, &'static str), f64>,
    /// The number of iterations.
    pub iterations: usize,
}

impl RunTimes {
    /// Reads the timeline of a run.
    ///
    /// # Errors
    /// If it is not a run, has several workers, parts or micro-batches, or too few iterations.
    pub fn read(path: &Path) -> Result<Self, TrainError> {
        let invalid = |problem: String, hint: &str| TrainError::Configuration {
            problem: format!("{}: {problem}", path.display()),
            hint: hint.to_owned(),
        };
        if !path.join(SUMMARY).is_file() {
            return Err(invalid(
                "neither a time like 40ms nor a run with a summary".to_owned(),
                "`stratus runs` lists runs; a summary is written when a run ends",
            ));
        }
        let run = RunDir::open(path)?;
        let summary = Summary::read(&run.summary())?;
        let experiment = Experiment::load(&run.experiment())?;
        let train = &experiment.train;
        if train.parts > 1 || train.micro_batches > 1 || train.stages > 1 {
            return Err(invalid(
                "its batches are computed in parts, but each of several devices computes one part".to_owned(),
                "measure a run without train.parts, train.micro_batches and train.stages",
            ));
        }
        let format = NumberFormat::parse(&summary.precision).ok_or_else(|| {
            invalid(format!("unsupported precision {}", summary.precision), "use another run")
        })?;
        let batch = train.batch_size as u64;
        let (slots, mut iterations) = read_iterations(&run.timeline(), batch)?;
        // The first iteration compiles or finds cold caches.
        if !iterations.is_empty() {
            iterations.remove(0);
        }
        if iterations.len() < MIN_ITERATIONS {
            let found = iterations.len();
            return Err(invalid(
                format!("only {found} usable iterations, need {MIN_ITERATIONS}"),
                "use a longer run",
            ));
        }
        iterations.drain(..iterations.len().saturating_sub(MAX_ITERATIONS));
        let mut layers: BTreeMap<(String, &'static str), f64> = BTreeMap::new();
        for (at, slot) in slots.iter().enumerate().filter(|(_, slot)| is_kernel(slot)) {
            let mut seconds: Vec<f64> =
                iterations.iter().filter_map(|ns| ns.get(at)).map(|&ns| ns as f64 * 1e-9).collect();
            let median = stratus_base::median(&mut seconds).unwrap_or(0.0);
            *layers.entry((slot.layers.join("+"), slot.phase.name())).or_default() += median;
        }
        let (path, is_on_gpu) = (path.to_owned(), summary.device.starts_with("cuda"));
        Ok(Self { path, batch, format, is_on_gpu, layers, iterations: iterations.len() })
    }

    /// Seconds of all layers.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.layers.values().sum()
    }
}

/// Returns whether a slot is the time of kernels.
fn is_kernel(slot: &Slot) -> bool {
    matches!(
        slot.phase,
        Phase::Forward
            | Phase::BackwardData
            | Phase::BackwardWeights
            | Phase::Update
            | Phase::Teacher
            | Phase::Loss
            | Phase::Layout
    )
}

/// The slots of the training program of whole batches, and the nanoseconds of its iterations.
fn read_iterations(folder: &Path, batch: u64) -> Result<(Vec<Slot>, Vec<Vec<u64>>), TrainError> {
    let mut reader = TimelineReader::open(folder)?;
    let mut iteration = Iteration::default();
    let mut found: Option<usize> = None;
    let mut iterations: Vec<Vec<u64>> = Vec::new();
    while reader.read(&mut iteration)? {
        let is_training =
            |program: &Program| program.purpose == Purpose::Train && program.batch_size == batch;
        if !reader.programs().get(iteration.program).is_some_and(is_training) {
            continue;
        }
        // A run that was resumed with another plan has several such programs; the last counts.
        if found != Some(iteration.program) {
            iterations.clear();
            found = Some(iteration.program);
        }
        iterations.push(iteration.ns.clone());
        if iterations.len() > 2 * MAX_ITERATIONS {
            // Half of them are dropped at a time; the first one that is left counts as the first of the run.
            iterations.drain(..MAX_ITERATIONS);
        }
    }
    let slots = found.and_then(|at| reader.programs().get(at)).map(|program| program.slots.clone());
    Ok((slots.unwrap_or_default(), iterations))
}
