//! What the workers of one run agree on: where it is, what it is, and when it stops.
//!
//! The first worker writes the run's directory. Each other one has a folder in it for its own timeline, and
//! reads the rest. All that depends on time is decided by the first, or by whoever is told to stop, and said
//! to all before the next iteration.

use super::same_data::MAX_LISTED;
use crate::resolve::Place;
use crate::{Experiment, TrainError};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stratus_base::checksum::sha256_hex;
use stratus_engine::exchange::Exchange;
use stratus_engine::{Role, Session, Stage};
use stratus_exchange::Workers;
use stratus_run::RunDir;
use stratus_run::data::DataRecord;

/// Why training ends, or what is done, before the next iteration: bits that workers agree on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    /// A worker was told to stop.
    pub stop: bool,
    /// A checkpoint is due.
    pub save: bool,
    /// The next iteration could exceed the deadline or the budget.
    pub limit: bool,
    /// The run gains nothing any more.
    pub early: bool,
}

impl Decision {
    fn bits(self) -> u64 {
        let flags = [self.stop, self.save, self.limit, self.early];
        flags.iter().enumerate().map(|(bit, &flag)| u64::from(flag) << bit).sum()
    }

    fn of(bits: u64) -> Self {
        let [stop, save, limit, early] = [0, 1, 2, 3].map(|bit| bits >> bit & 1 != 0);
        Self { stop, save, limit, early }
    }
}

/// An experiment for so many workers, a power of two: with as many parts, where it does not say how many.
///
/// # Errors
/// If parts cannot be shared out among them.
pub fn parts_among(experiment: &Experiment, workers: usize) -> Result<Experiment, TrainError> {
    let mut experiment = experiment.clone();
    if experiment.train.parts == 0 {
        experiment = experiment.with_overrides(&[("train.parts", workers.to_string())])?;
    }
    let parts = experiment.train.parts;
    if workers > parts {
        return Err(TrainError::Configuration {
            problem: format!("there are {workers} workers, and batches are cut into {parts} parts"),
            hint: format!(
                "start at most {parts} workers; a new run has train.parts=, a power of two, as it says"
            ),
        });
    }
    if experiment.first_stage().is_some() {
        return Err(TrainError::Configuration {
            problem: "a run of two stages cannot be shared out among workers".to_owned(),
            hint: "train the first stage by itself, and begin the second with its weights".to_owned(),
        });
    }
    Ok(experiment)
}

/// This process among the workers of a run; alone by default.
#[derive(Clone, Debug, Default)]
pub struct ProcessGroup {
    workers: Option<Arc<Workers>>,
    /// The processors of its machine, which it shares with the other workers there.
    processors: usize,
}

impl ProcessGroup {
    /// One of several workers, on a machine with so many processors for all of them.
    #[must_use]
    pub fn new(workers: Arc<Workers>, processors: usize) -> Self {
        Self { workers: Some(workers), processors }
    }

    /// The others, where there are some.
    pub(crate) fn workers(&self) -> Option<&Workers> {
        self.workers.as_deref()
    }

    /// Which of them this is.
    pub(super) fn place(&self) -> Place {
        self.workers().map_or(Place::ALONE, |workers| Place { rank: workers.rank(), workers: workers.size() })
    }

    /// Whether it writes the run's directory.
    pub(super) fn is_first(&self) -> bool {
        self.place().rank == 0
    }

    /// Connects a session with the others; `first_part` is the number of its first part.
    pub(super) fn connect(&self, session: &mut Session, first_part: usize) {
        if let Some(workers) = &self.workers {
            let exchange: Arc<dyn Exchange> = Arc::<Workers>::clone(workers);
            session.connect(&exchange, first_part);
        }
    }

    /// An experiment with its parts and threads, where it does not say: as many parts as there are workers,
    /// as many threads as the first worker's machine has processors. Kernels are cut for these threads
    /// wherever they run, so that bits depend on neither workers nor machines; a worker's threads share its
    /// part of the processors.
    ///
    /// # Errors
    /// If parts cannot be shared out.
    pub(super) fn with_parts(
        &self,
        experiment: &Experiment,
        goes_on: bool,
    ) -> Result<Experiment, TrainError> {
        let mut experiment = self.with_stages(experiment, goes_on)?;
        let Place { workers, .. } = self.place();
        let Some(others) = self.workers() else { return Ok(experiment) };
        if experiment.train.threads == 0 {
            let own = (self.processors.max(1) as u64).to_le_bytes();
            let first = others.all_gather(&own)?.into_iter().next().unwrap_or_default();
            let threads = <[u8; 8]>::try_from(first.as_slice()).map_or(1, u64::from_le_bytes);
            experiment = experiment.with_overrides(&[("train.threads", threads.to_string())])?;
        }
        parts_among(&experiment, workers)
    }

    /// An experiment with as many stages as there are workers. A run that goes on may have others than it
    /// began with: bits do not depend on them.
    fn with_stages(&self, experiment: &Experiment, goes_on: bool) -> Result<Experiment, TrainError> {
        let Place { workers, .. } = self.place();
        let (stages, parts) = (experiment.train.stages, experiment.train.parts);
        let refused = |problem: String, hint: String| Err(TrainError::Configuration { problem, hint });
        if stages == 1 {
            return Ok(experiment.clone());
        }
        if goes_on && parts >= workers {
            return Ok(experiment.clone().with_overrides(&[("train.stages", workers.to_string())])?);
        }
        if workers != stages {
            let (processes, are) = if workers == 1 { ("process", "is") } else { ("processes", "are") };
            return refused(
                format!("train.stages is {stages}, and there {are} {workers} {processes}"),
                format!("each stage is a process: start {stages} of them with --workers {stages}"),
            );
        }
        if parts < stages {
            return refused(
                format!("train.stages is {stages}, and batches are cut into {} parts", parts.max(1)),
                format!(
                    "the parts of a batch are at work in all stages at once: set train.parts to {} or more, \
                     a power of two",
                    4 * stages
                ),
            );
        }
        Ok(experiment.clone())
    }

    /// Which stage of the network this process is, where the experiment has stages.
    pub(super) fn stage(&self, experiment: &Experiment) -> Option<Stage> {
        let Place { rank, workers } = self.place();
        (experiment.train.stages > 1 && workers > 1).then_some(Stage { number: rank, count: workers })
    }

    /// Checks that all workers are about to do the same: `what` is a text of it all.
    ///
    /// # Errors
    /// The first that differs.
    pub(super) fn expect_same(&self, what: &[&[u8]]) -> Result<(), TrainError> {
        let Some(workers) = self.workers() else { return Ok(()) };
        let own = sha256_hex(what.iter().copied().chain([env!("CARGO_PKG_VERSION").as_bytes()]));
        let all = workers.all_gather(own.as_bytes())?;
        match all.iter().position(|other| *other != all[0]) {
            None => Ok(()),
            Some(other) => Err(TrainError::Configuration {
                problem: format!(
                    "worker {other} has another experiment, another checkpoint or another version of the \
                     program than worker 0"
                ),
                hint: "all workers are to be started with the same program, arguments and files".to_owned(),
            }),
        }
    }

    /// Checks that all workers have the same data set, wherever it lies on their machines.
    ///
    /// # Errors
    /// If a worker has another data set; the error lists the differences.
    pub(super) fn expect_same_data(&self, own: &DataRecord) -> Result<(), TrainError> {
        let Some(workers) = self.workers() else { return Ok(()) };
        let json = serde_json::to_vec(own).unwrap_or_default();
        let hashes = workers.all_gather(sha256_hex([json.as_slice()]).as_bytes())?;
        let Some(rank) = hashes.iter().position(|hash| *hash != hashes[0]) else { return Ok(()) };
        // All have found the same: now all say what they have.
        let all = workers.all_gather_any(json)?;
        let record = |rank: usize| serde_json::from_slice::<DataRecord>(&all[rank]).ok();
        let differences = record(0).zip(record(rank)).map(|(first, other)| first.differences(&other));
        let mut listed = differences.unwrap_or_default();
        listed.truncate(MAX_LISTED);
        Err(TrainError::Configuration {
            problem: format!(
                "worker {rank} has another data set than worker 0{}",
                listed.iter().map(|difference| format!("\n  {difference}")).collect::<String>()
            ),
            hint: "give all workers the same files; the folder may differ between machines".to_owned(),
        })
    }

    /// The run's directory, which the first worker has made and says to the others.
    pub(super) fn directory(&self, made: Option<&Path>) -> Result<PathBuf, TrainError> {
        let own = made.map(|path| path.as_os_str().as_bytes().to_vec()).unwrap_or_default();
        let said = self.workers().map_or(Ok(own.clone()), |workers| workers.broadcast(own))?;
        Ok(PathBuf::from(OsString::from_vec(said)))
    }

    /// Where this worker writes: the run itself, or a folder in it.
    pub(super) fn own_folder(&self, run: &RunDir) -> Result<RunDir, TrainError> {
        match self.place().rank {
            0 => Ok(run.clone()),
            rank => Ok(run.worker(rank)?),
        }
    }

    /// What all do before the next iteration: what any of them decided.
    pub(super) fn agree(&self, own: Decision) -> Result<Decision, TrainError> {
        match self.workers() {
            None => Ok(own),
            Some(workers) => Ok(Decision::of(workers.any_bits(own.bits())?)),
        }
    }

    /// Checks that all workers have the same parameters and statistics, bit by bit.
    ///
    /// # Errors
    /// The first worker that has others, and the first tensor.
    pub(super) fn expect_same_state(&self, session: &Session, iteration: u64) -> Result<(), TrainError> {
        let Some(workers) = self.workers() else { return Ok(()) };
        let mut names = Vec::new();
        let mut sums = String::new();
        for value in session.state().filter(|value| value.role != Role::Frozen) {
            names.push(value.name);
            sums += &sha256_hex([bytemuck::cast_slice(&session.read(value.name)?)]);
        }
        let each = (sums.len() / names.len().max(1)).max(1);
        let all = workers.all_gather(sums.as_bytes())?;
        for (rank, other) in all.iter().enumerate() {
            let differs =
                other.chunks(each).zip(all[0].chunks(each)).position(|(theirs, first)| theirs != first);
            if let Some(name) = differs.and_then(|at| names.get(at)) {
                return Err(TrainError::WorkersDiffer { rank, tensor: (*name).to_owned(), iteration });
            }
        }
        Ok(())
    }
}
