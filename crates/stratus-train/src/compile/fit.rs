//! Plans a run within `train.memory_limit_mib`.

use super::memory::{check_memory, memory_limit_error, stage_memory_limit_error};
use super::{KernelChoices, KernelSelection, PlannedRun, Programs, plan, programs};
use crate::TrainError;
use crate::device::OpenDevice;
use crate::resolve::{Rank, Resolved, StageBudget};
use stratus_engine::passes::recompute::live_bytes;
use stratus_engine::{EngineError, Stage};
use stratus_exchange::{ExchangeError, WorkerGroup};
use stratus_graph::Graph;

/// Maximum number of plans that are made to find one that fits.
const MAX_ATTEMPTS: usize = 16;

/// A run that fits its memory limit.
pub struct FittedRun {
    /// The resolved experiment; `train.activations_kib` is the limit that was found.
    pub resolved: Resolved,
    /// Its programs.
    pub programs: Programs,
    /// Their plans.
    pub planned: PlannedRun,
}

impl FittedRun {
    fn new(
        resolved: Resolved,
        graph: &Graph,
        device: &OpenDevice,
        selection: &KernelSelection<'_>,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let programs = programs(&resolved, graph, device)?;
        Self::from_programs(resolved, programs, device, selection, warn)
    }

    fn from_programs(
        resolved: Resolved,
        programs: Programs,
        device: &OpenDevice,
        selection: &KernelSelection<'_>,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let mut planned = plan(&programs, device, selection, warn)?;
        if let (Some(_), KernelSelection::Replay(choices)) = (resolved.stage(), selection) {
            planned.add_whole_network_choices(choices);
        }
        Ok(Self { resolved, programs, planned })
    }
}

/// Kernel choices that all workers share: rank 0 measures them for a single part.
fn shared_choices(
    resolved: &Resolved,
    graph: &Graph,
    device: &OpenDevice,
    selection: &KernelSelection<'_>,
    workers: Option<&WorkerGroup>,
    warn: &mut dyn FnMut(&str),
) -> Result<KernelChoices, TrainError> {
    let mut measure = || {
        let single_part = resolved.with_rank(Rank { rank: 0, world_size: resolved.parts() }).with_stage(None);
        Ok::<_, TrainError>(plan(&programs(&single_part, graph, device)?, device, selection, warn)?.choices())
    };
    let Some(workers) = workers else { return measure() };
    let shared = match workers.rank() {
        0 => serde_json::to_vec(&measure()?).unwrap_or_default(),
        _ => Vec::new(),
    };
    serde_json::from_slice(&workers.broadcast(shared)?).map_err(|error| {
        ExchangeError::Disconnected(format!("invalid kernel choices from worker 0: {error}")).into()
    })
}

/// Plans a run within `train.memory_limit_mib`.
///
/// Kernels are chosen for the program that keeps every activation. If that is too large, fewer activations
/// are kept and the others recomputed by the same kernels, so that results are bit-identical:
///
/// ```text
/// live := bytes alive at the peak
/// repeat  live := live - (arena - limit), recompute, plan   until arena <= limit
/// ```
///
/// The arena is larger than the bytes alive: it also contains parameters, scratch, padding and gaps. So the
/// search uses the actual size of each plan. With [`KernelSelection::Replay`], the given limit on activations
/// is used.
///
/// # Errors
/// As [`programs()`] and [`plan()`], and if nothing fits the limit or the available memory; the hint suggests
/// a remedy.
pub fn fit(
    resolved: Resolved,
    graph: &Graph,
    device: &OpenDevice,
    selection: &KernelSelection<'_>,
    workers: Option<&WorkerGroup>,
    warn: &mut dyn FnMut(&str),
) -> Result<FittedRun, TrainError> {
    if let KernelSelection::Replay(_) = selection {
        return match resolved.stage() {
            Some(_) => fit_stage(&resolved, graph, device, selection, workers, warn),
            None => FittedRun::new(resolved, graph, device, selection, warn),
        };
    }
    let limit = resolved.memory_limit();
    let requested = resolved.settings().train.activations_kib;
    let unlimited = resolved.with_activations_kib(None);
    if resolved.stage().is_some() {
        let choices = shared_choices(&unlimited, graph, device, selection, workers, warn)?;
        return fit_stage(&resolved, graph, device, &KernelSelection::Replay(&choices), workers, warn);
    }
    let unlimited_programs = programs(&unlimited, graph, device)?;
    check_memory(&resolved, graph, device, &unlimited_programs)?;
    let shared = match resolved.parts() {
        1 => None,
        _ => Some(shared_choices(&unlimited, graph, device, selection, workers, warn)?),
    };
    let replay_shared = shared.as_ref().map(KernelSelection::Replay);
    let selection = replay_shared.as_ref().unwrap_or(selection);
    let mut run = FittedRun::from_programs(unlimited, unlimited_programs, device, selection, warn)?;
    let choices = run.planned.choices();
    let replay = KernelSelection::Replay(&choices);
    if requested.is_some() {
        run = FittedRun::new(resolved, graph, device, &replay, warn)?;
    }
    for _ in 0..MAX_ATTEMPTS {
        let arena = run.planned.arena_bytes();
        if arena <= limit {
            return Ok(run);
        }
        let live = run.resolved.activations_limit().min(live_bytes(&run.programs.train));
        let kib = live.saturating_sub(arena - limit) >> 10;
        run = FittedRun::new(run.resolved.with_activations_kib(Some(kib)), graph, device, &replay, warn)?;
        if run.planned.arena_bytes() >= arena {
            return Err(memory_limit_error(&run.resolved, arena));
        }
    }
    Err(memory_limit_error(&run.resolved, run.planned.arena_bytes()))
}

/// Plans a pipeline stage within the memory limit, which applies to every stage: the budget for partitioning
/// the network is reduced until the largest stage, including its scratch, is within the limit.
fn fit_stage(
    resolved: &Resolved,
    graph: &Graph,
    device: &OpenDevice,
    selection: &KernelSelection<'_>,
    workers: Option<&WorkerGroup>,
    warn: &mut dyn FnMut(&str),
) -> Result<FittedRun, TrainError> {
    let mut plan_stage = |budget: StageBudget| {
        let run = FittedRun::new(resolved.with_stage_budget(budget), graph, device, selection, warn)?;
        let arena = run.planned.arena_bytes();
        let Some(workers) = workers else { return Ok((run, arena)) };
        let all = workers.all_gather(&(arena as u64).to_le_bytes())?;
        let from_bytes =
            |bytes: &Vec<u8>| <[u8; 8]>::try_from(bytes.as_slice()).map_or(0, u64::from_le_bytes);
        let largest = all.iter().map(from_bytes).max().unwrap_or(0);
        Ok((run, usize::try_from(largest).unwrap_or(usize::MAX)))
    };
    fit_stage_budget(resolved, &mut plan_stage)
}

/// Plans every stage of a network, like one process per stage does.
///
/// # Errors
/// As [`fit()`].
pub fn fit_stages(
    resolved: &Resolved,
    graph: &Graph,
    device: &OpenDevice,
    selection: &KernelSelection<'_>,
    warn: &mut dyn FnMut(&str),
) -> Result<Vec<FittedRun>, TrainError> {
    let count = resolved.settings().train.stages;
    let choices = shared_choices(resolved, graph, device, selection, None, warn)?;
    let replay = KernelSelection::Replay(&choices);
    let mut plan_stages = |budget: StageBudget| {
        let stages = (0..count).map(|index| {
            let stage = resolved.with_stage(Some(Stage { index, count })).with_stage_budget(budget);
            FittedRun::new(stage, graph, device, &replay, warn)
        });
        let stages: Vec<FittedRun> = stages.collect::<Result<_, _>>()?;
        let largest = stages.iter().map(|run| run.planned.arena_bytes()).max().unwrap_or(0);
        Ok((stages, largest))
    };
    fit_stage_budget(resolved, &mut plan_stages)
}

/// Reduces the stage budget until the largest stage is within the limit, first without and then with
/// recomputed activations.
///
/// # Errors
/// If no budget fits, or planning fails.
fn fit_stage_budget<T>(
    resolved: &Resolved,
    plan: &mut dyn FnMut(StageBudget) -> Result<(T, usize), TrainError>,
) -> Result<T, TrainError> {
    let limit = resolved.memory_limit();
    let mut min_bytes = usize::MAX;
    for recomputes in [false, true] {
        let mut bytes = limit;
        for _ in 0..MAX_ATTEMPTS {
            let (planned, largest) = match plan(StageBudget { bytes, recomputes }) {
                Ok(planned) => planned,
                // The budget is smaller than any partition needs.
                Err(TrainError::Engine(EngineError::StagesTooLarge { .. })) if limit < usize::MAX => break,
                Err(error) => return Err(error),
            };
            if largest <= limit {
                return Ok(planned);
            }
            min_bytes = min_bytes.min(largest);
            bytes = (bytes as f64 * (limit as f64 / largest as f64).min(0.98)) as usize;
        }
    }
    Err(stage_memory_limit_error(resolved, min_bytes))
}
