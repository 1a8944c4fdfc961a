//! Coordination of a run's workers before training: run directory, experiment, data. During training,
//! [`WorkerRole`] coordinates them.
//!
//! Worker 0 writes the run directory. Every other worker has a folder in it for its own timeline, and reads
//! the rest.

use super::pipeline::PipelineState;
use super::same_data::MAX_LISTED;
use super::worker_role::{PipelineStage, WorkerRole};
use crate::TrainError;
use crate::agreement;
use crate::compile::{Programs, worker_with_oldest_device};
use crate::device::OpenDevice;
use crate::exchange::{self, ExchangePath, Offer};
use crate::resolve::{Rank, ResolvedProcess};
use std::sync::Arc;
use stratus_base::checksum::sha256_hex;
use stratus_engine::exchange::{Communicator, DeviceGroup, GROUP_ID_BYTES};
use stratus_engine::{Backend, Session, Stage};
use stratus_exchange::WorkerGroup;
use stratus_experiment::{ExchangeMode, Experiment};
use stratus_run::RunDir;
use stratus_run::data::DataRecord;
use stratus_run::machine::boot_identity;

/// The experiment for a number of workers, a power of two, which is also the number of parts unless that is
/// set.
///
/// # Errors
/// If the parts cannot be divided among the workers.
pub fn with_parts_for(experiment: &Experiment, workers: usize) -> Result<Experiment, TrainError> {
    let mut experiment = experiment.clone();
    if experiment.train.parts == 0 {
        experiment = experiment.with_overrides(&[("train.parts", workers.to_string())])?;
    }
    let parts = experiment.train.parts;
    // Pipelines need more parts than that: see `pipelines`.
    if workers > parts && experiment.train.stages <= 1 {
        return Err(TrainError::Configuration {
            problem: format!("{workers} workers exceed train.parts = {parts}"),
            hint: format!(
                "start at most {parts} workers, or start a new run with more parts: --set train.parts=, a \
                 power of two"
            ),
        });
    }
    if experiment.first_stage().is_some() {
        return Err(TrainError::Configuration {
            problem: "a run with a pre-training stage cannot have several workers".to_owned(),
            hint:
                "train the network of that stage in a run of its own, without first_stage.network, and set \
                   model.weights to that run"
                    .to_owned(),
        });
    }
    Ok(experiment)
}

/// The experiment for a number of workers, with parts and stages that they can compute, and the number of
/// pipelines. A run that is resumed by fewer workers than stages gets one stage for each, which does not
/// affect results.
///
/// # Errors
/// As [`with_parts_for`], or if the workers cannot be divided into pipelines.
pub fn for_workers(
    experiment: &Experiment,
    workers: usize,
    is_resume: bool,
) -> Result<(Experiment, usize), TrainError> {
    let mut experiment = match workers {
        1 => experiment.clone(),
        _ => with_parts_for(experiment, workers)?,
    };
    if is_resume && experiment.train.parts >= workers && workers < experiment.train.stages {
        experiment = experiment.with_overrides(&[("train.stages", workers.to_string())])?;
    }
    let pipelines = pipelines(&experiment, workers)?;
    Ok((experiment, pipelines))
}

/// The number of pipelines that a number of workers makes of `train.stages` stages each; one stage is the
/// whole network.
///
/// # Errors
/// If the workers cannot be divided, or a pipeline has fewer parts of a batch than stages.
pub fn pipelines(experiment: &Experiment, workers: usize) -> Result<usize, TrainError> {
    let (stages, parts) = (experiment.train.stages.max(1), experiment.train.parts.max(1));
    let refused = |problem: String, hint: String| Err(TrainError::Configuration { problem, hint });
    let pipelines = workers / stages;
    if stages == 1 {
        return Ok(pipelines);
    }
    if pipelines == 0 || !workers.is_multiple_of(stages) {
        let (processes, are) = if workers == 1 { ("process", "is") } else { ("processes", "are") };
        return refused(
            format!("train.stages is {stages}, but there {are} {workers} {processes}"),
            format!(
                "start a process per stage with --workers {stages}, or several pipelines with twice, four \
                 times … as many"
            ),
        );
    }
    if parts < workers {
        let problem = match pipelines {
            1 => format!("train.stages = {stages} exceeds train.parts = {parts}"),
            _ => format!(
                "each of {pipelines} pipelines of {stages} stages needs at least {stages} parts of a batch, \
                 but train.parts = {parts}"
            ),
        };
        return refused(
            problem,
            format!("to keep all stages busy, set train.parts to {} or more, a power of two", 4 * workers),
        );
    }
    Ok(pipelines)
}

/// The workers of a run as seen by one of them; by default a single process.
#[derive(Clone, Debug, Default)]
pub struct ProcessGroup {
    workers: Option<Arc<WorkerGroup>>,
    /// The cores of this machine, which all workers on it share.
    machine_cores: usize,
}

impl ProcessGroup {
    /// One of several workers, on a machine with `machine_cores` cores for all its workers.
    #[must_use]
    pub fn new(workers: Arc<WorkerGroup>, machine_cores: usize) -> Self {
        Self { workers: Some(workers), machine_cores }
    }

    /// Returns whether this process trains alone.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.workers.is_none()
    }

    /// The communication with the other workers; `None` without any.
    pub(crate) fn workers(&self) -> Option<&WorkerGroup> {
        self.workers.as_deref()
    }

    /// The role of this process in training. `stage` is its pipeline stage, if there are stages; `whole` then
    /// makes the programs of the whole network.
    ///
    /// # Errors
    /// If `whole` fails, no stage has a value of the network, or a worker has disconnected.
    pub(super) fn role(
        &self,
        stage: Option<Stage>,
        session: &Session,
        whole: impl FnOnce() -> Result<Programs, TrainError>,
    ) -> Result<WorkerRole, TrainError> {
        let Some(workers) = &self.workers else { return Ok(WorkerRole::Alone) };
        let workers = Arc::clone(workers);
        let Some(stage) = stage else { return Ok(WorkerRole::DataParallel(workers)) };
        let state = PipelineState::new(&self.agree(whole())?, session, stage, &workers)?;
        Ok(WorkerRole::Stage(PipelineStage { stage, workers, state }))
    }

    /// The rank of this worker.
    pub(super) fn rank(&self) -> Rank {
        self.workers()
            .map_or(Rank::SINGLE, |workers| Rank { rank: workers.rank(), world_size: workers.size() })
    }

    /// The rank of this worker among those of its machine.
    ///
    /// # Errors
    /// If a worker has disconnected.
    pub(super) fn local_rank(&self) -> Result<usize, TrainError> {
        let machines = self.identities(&[])?;
        Ok(machines
            .iter()
            .take(self.rank().rank)
            .filter(|other| **other == machines[self.rank().rank])
            .count())
    }

    /// Divides the memory of a device that several workers use among them, with a warning.
    ///
    /// # Errors
    /// If a worker has disconnected.
    pub(super) fn divide_device(
        &self,
        device: &mut OpenDevice,
        warn: &mut dyn FnMut(&str),
    ) -> Result<(), TrainError> {
        let devices = self.devices(device)?;
        let own = &devices[self.rank().rank];
        let users = devices.iter().filter(|other| *other == own).count();
        if device.backend.device_address().is_some() && users > 1 {
            warn(&device.divide_among(users));
        }
        Ok(())
    }

    /// The device of each worker: equal if they share one, or have none on the same machine.
    fn devices(&self, own: &OpenDevice) -> Result<Vec<Vec<u8>>, TrainError> {
        self.identities(own.backend.device_address().unwrap_or_default().as_bytes())
    }

    /// The machine of each worker together with something on it, as a checksum.
    fn identities(&self, of: &[u8]) -> Result<Vec<Vec<u8>>, TrainError> {
        let machine = boot_identity().unwrap_or_default();
        let own = sha256_hex([machine.as_bytes(), b"\0", of]).into_bytes();
        Ok(self.workers().map_or(Ok(vec![own.clone()]), |workers| workers.all_gather(&own))?)
    }

    /// Returns whether this worker writes the run directory.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.rank().rank == 0
    }

    /// Chooses the path on which the workers exchange gradients, together with them.
    ///
    /// # Errors
    /// If a worker has disconnected, or `train.exchange` needs a path that they do not have.
    pub(super) fn choose_path(
        &self,
        device: &OpenDevice,
        resolved: &ResolvedProcess,
    ) -> Result<ExchangePath, TrainError> {
        if self.is_alone() || resolved.rank().world_size < 2 {
            return Ok(ExchangePath::Processes);
        }
        let devices = self.devices(device)?;
        let is_shared = (1..devices.len()).any(|rank| devices[..rank].contains(&devices[rank]));
        let offer = match device.is_accelerator && is_shared {
            true => Offer::HostMemory("workers share a GPU".to_owned()),
            false => Offer::of(device),
        };
        self.check_path(self.choose(&offer)?, resolved)
    }

    /// Checks that sums can be as `train.exchange` says.
    fn check_path(&self, path: ExchangePath, resolved: &ResolvedProcess) -> Result<ExchangePath, TrainError> {
        let is_fast = resolved.settings().train.exchange == ExchangeMode::Fast;
        match path.refuses_fast().filter(|_| is_fast) {
            None => Ok(path),
            Some(reason) => self.agree(Err(exchange::fast_refused(reason))),
        }
    }

    /// Connects a session with the other workers, and returns the path that is used: if a GPU cannot join the
    /// others, it is through host memory.
    ///
    /// # Errors
    /// If the device cannot allocate memory for the exchange, a worker has disconnected, or `train.exchange`
    /// needs a path that the workers do not have.
    pub(super) fn connect(
        &self,
        session: &mut Session,
        resolved: &ResolvedProcess,
        path: ExchangePath,
        backend: &dyn Backend,
    ) -> Result<ExchangePath, TrainError> {
        let Some(workers) = &self.workers else { return Ok(path) };
        let path = match path {
            ExchangePath::Direct { library } => {
                let group = self.device_group(resolved.stage(), backend)?;
                let joined = group.and_then(|group| {
                    session.join_group(&group).map_err(|error| format!("{library}: {error}"))
                });
                let offer = joined.map_or_else(Offer::HostMemory, |()| Offer::Direct(library));
                self.check_path(self.choose(&offer)?, resolved)?
            }
            other => other,
        };
        let exchange: Arc<dyn Communicator> = Arc::<WorkerGroup>::clone(workers);
        let connected = session.connect(&exchange, resolved.batch_slice().first, !path.uses_processes());
        self.agree(connected.map_err(TrainError::from))?;
        Ok(path)
    }

    /// The path that the offers of all workers allow.
    fn choose(&self, offer: &Offer) -> Result<ExchangePath, TrainError> {
        let Some(workers) = self.workers() else { return Ok(ExchangePath::Processes) };
        let offers = workers.all_gatherv(offer.to_bytes())?;
        Ok(ExchangePath::choose(&offers.iter().map(|bytes| Offer::from_bytes(bytes)).collect::<Vec<_>>()))
    }

    /// The group of this worker's device and those that compute the same stage, or why there is none.
    ///
    /// # Errors
    /// If a worker has disconnected.
    fn device_group(
        &self,
        stage: Option<Stage>,
        backend: &dyn Backend,
    ) -> Result<Result<DeviceGroup, String>, TrainError> {
        let Rank { rank, world_size } = self.rank();
        let stages = stage.map_or(1, |stage| stage.count);
        // The devices of the first pipeline make the identities. One that cannot sends zeros.
        let made = (rank < stages).then(|| backend.new_group_id());
        let mut own = made.clone().and_then(Result::ok).unwrap_or_default();
        own.resize(GROUP_ID_BYTES, 0);
        let ids = self.workers().map_or(Ok(vec![own.clone()]), |workers| workers.all_gather(&own))?;
        if let Some(Err(reason)) = made {
            return Ok(Err(reason));
        }
        let id = ids.get(rank % stages).cloned().unwrap_or(own);
        if id.iter().all(|byte| *byte == 0) {
            return Ok(Err("another worker made no group of GPUs".to_owned()));
        }
        Ok(Ok(DeviceGroup { id, rank: rank / stages, size: world_size / stages }))
    }

    /// The experiment with `train.parts` and `train.threads` set: by default, the number of workers and the
    /// number of cores of worker 0's machine. Kernels are planned for these threads on every machine, so that
    /// results depend neither on the workers nor on their machines; the threads of a worker share its part of
    /// the cores.
    ///
    /// # Errors
    /// If the parts cannot be divided among the workers.
    pub(super) fn with_parts(
        &self,
        experiment: &Experiment,
        is_resume: bool,
    ) -> Result<Experiment, TrainError> {
        let Rank { world_size: workers, .. } = self.rank();
        let (mut experiment, _) = self.agree(for_workers(experiment, workers, is_resume))?;
        let Some(others) = self.workers() else { return Ok(experiment) };
        if experiment.train.threads == 0 {
            let cores = (self.machine_cores.max(1) as u64).to_le_bytes();
            let first = others.all_gather(&cores)?.into_iter().next().unwrap_or_default();
            let threads = <[u8; 8]>::try_from(first.as_slice()).map_or(1, u64::from_le_bytes);
            experiment = experiment.with_overrides(&[("train.threads", threads.to_string())])?;
        }
        Ok(experiment)
    }

    /// The outcome of a step before training that every worker takes: see [`agreement::agree`].
    ///
    /// # Errors
    /// If the step failed on a worker, or a worker has disconnected.
    pub(super) fn agree<T>(&self, outcome: Result<T, TrainError>) -> Result<T, TrainError> {
        agreement::agree(self.workers(), outcome)
    }

    /// The pipeline stage of this process, if the experiment has stages.
    pub(super) fn stage(&self, experiment: &Experiment) -> Option<Stage> {
        let count = experiment.train.stages;
        (count > 1 && !self.is_alone()).then_some(Stage { index: self.rank().rank % count, count })
    }

    /// The share of each batch of this process, or of its pipeline; from here on, messages and sums follow
    /// the division into pipelines.
    pub(super) fn share(&self, stage: Option<Stage>) -> Rank {
        let Rank { rank, world_size } = self.rank();
        let stages = stage.map_or(1, |stage| stage.count);
        if let Some(workers) = self.workers() {
            workers.set_stages(stages);
        }
        Rank { rank: rank / stages, world_size: world_size / stages }
    }

    /// Checks that all workers are about to train the same run, described by `content`.
    ///
    /// # Errors
    /// If a worker differs; names the first.
    pub(super) fn check_same_run(&self, content: &[&[u8]]) -> Result<(), TrainError> {
        let Some(workers) = self.workers() else { return Ok(()) };
        let hash = sha256_hex(content.iter().copied().chain([env!("CARGO_PKG_VERSION").as_bytes()]));
        let all = workers.all_gather(hash.as_bytes())?;
        match all.iter().position(|other| *other != all[0]) {
            None => Ok(()),
            Some(other) => self.agree(Err(TrainError::Configuration {
                problem: format!(
                    "worker {other} has a different experiment, checkpoint, teacher or program version than \
                     worker 0"
                ),
                hint: "start all workers with the same program, arguments and files".to_owned(),
            })),
        }
    }

    /// Checks that all workers have the same data set, whatever its path on their machines.
    ///
    /// # Errors
    /// If a worker has another data set; lists the differences.
    pub(super) fn check_same_data(&self, record: &DataRecord) -> Result<(), TrainError> {
        let Some(workers) = self.workers() else { return Ok(()) };
        let json = serde_json::to_vec(record).unwrap_or_default();
        let hashes = workers.all_gather(sha256_hex([json.as_slice()]).as_bytes())?;
        let Some(rank) = hashes.iter().position(|hash| *hash != hashes[0]) else { return Ok(()) };
        // All workers found the same difference, so all of them send their records.
        let all = workers.all_gatherv(json)?;
        let record = |rank: usize| serde_json::from_slice::<DataRecord>(&all[rank]).ok();
        let differences = record(0).zip(record(rank)).map(|(first, other)| first.differences(&other));
        let mut listed = differences.unwrap_or_default();
        listed.truncate(MAX_LISTED);
        self.agree(Err(TrainError::Configuration {
            problem: format!(
                "worker {rank} has a different data set than worker 0{}",
                listed.iter().map(|difference| format!("\n  {difference}")).collect::<String>()
            ),
            hint: "use the same files on all workers; the folder may differ between machines".to_owned(),
        }))
    }

    /// Warns in worker 0 if workers use different devices, and of what others found in opening theirs.
    ///
    /// # Errors
    /// If a worker has disconnected.
    pub(super) fn compare_devices(
        &self,
        device: &OpenDevice,
        warn: &mut dyn FnMut(&str),
    ) -> Result<(), TrainError> {
        let Some(workers) = self.workers() else { return Ok(()) };
        let oldest = worker_with_oldest_device(workers, device)?;
        let lines = [&[device.backend.describe()][..], &device.warnings].concat();
        let own = lines.join("\n");
        let all = workers.all_gatherv(own.clone().into_bytes())?;
        if !self.is_first() {
            return Ok(());
        }
        let mut known: Vec<&str> = own.lines().collect();
        let texts: Vec<String> =
            all.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
        let name = |rank: usize| texts[rank].lines().next().unwrap_or_default();
        if let Some(other) = (1..texts.len()).find(|&rank| name(rank) != name(0)) {
            warn(&format!(
                "workers use different devices (worker 0: {}, worker {other}: {}): worker {oldest} has the \
                 oldest, so it chooses the kernels of all; speed and results may differ from those of equal \
                 devices",
                name(0),
                name(other)
            ));
        }
        for (rank, text) in texts.iter().enumerate().skip(1) {
            for warning in text.lines().skip(1) {
                if !known.contains(&warning) {
                    known.push(warning);
                    warn(&format!("worker {rank}: {warning}"));
                }
            }
        }
        Ok(())
    }

    /// The folder that this worker writes to: the run directory itself, or a folder in it.
    pub(super) fn worker_folder(&self, run: &RunDir) -> Result<RunDir, TrainError> {
        match self.rank().rank {
            0 => Ok(run.clone()),
            rank => Ok(run.worker(rank)?),
        }
    }
}
