//! Plans a run within `train.memory_limit_mib`.

use super::memory::{check_memory, memory_limit_error, stage_memory_limit_error};
use super::programs::variant_programs;
use super::variant::{ProgramVariant, StageBudget};
use super::{KernelChoices, KernelSelection, PlannedRun, Programs, plan};
use crate::TrainError;
use crate::device::OpenDevice;
use crate::resolve::ResolvedProcess;
use stratus_engine::passes::recompute::live_bytes;
use stratus_engine::{EngineError, Stage};
use stratus_exchange::{ExchangeError, WorkerGroup};
use stratus_graph::Graph;

/// Maximum number of plans that are made to find one that fits.
const MAX_ATTEMPTS: usize = 16;

/// A run that fits its memory limit.
pub struct FittedRun {
    /// The resolved experiment; `train.activations_kib` is the limit that was found.
    pub resolved: ResolvedProcess,
    /// Its programs.
    pub programs: Programs,
    /// Their plans.
    pub planned: PlannedRun,
}

/// The plans of a variant, which may exceed the memory limit.
struct PlannedVariant<'a> {
    variant: ProgramVariant<'a>,
    programs: Programs,
    planned: PlannedRun,
}

impl PlannedVariant<'_> {
    /// The run of this variant, with its limit on activations.
    fn fitted(self) -> FittedRun {
        let Self { variant: ProgramVariant { resolved, activations_kib, .. }, programs, planned } = self;
        FittedRun { resolved: resolved.with_activations_kib(activations_kib), programs, planned }
    }
}

/// Plans the variants of a network.
struct VariantPlanner<'a> {
    graph: &'a Graph,
    device: &'a OpenDevice,
    warn: &'a mut dyn FnMut(&str),
}

impl VariantPlanner<'_> {
    fn programs(&self, variant: ProgramVariant<'_>) -> Result<Programs, TrainError> {
        variant_programs(variant, self.graph, self.device)
    }

    fn plan<'v>(
        &mut self,
        variant: ProgramVariant<'v>,
        selection: &KernelSelection<'_>,
    ) -> Result<PlannedVariant<'v>, TrainError> {
        self.plan_programs(variant, self.programs(variant)?, selection)
    }

    fn plan_programs<'v>(
        &mut self,
        variant: ProgramVariant<'v>,
        programs: Programs,
        selection: &KernelSelection<'_>,
    ) -> Result<PlannedVariant<'v>, TrainError> {
        let mut planned = plan(&programs, self.device, selection, self.warn)?;
        if let (Some(_), KernelSelection::Replay(choices)) = (variant.stage, selection) {
            planned.add_whole_network_choices(choices);
        }
        Ok(PlannedVariant { variant, programs, planned })
    }

    /// Kernel choices that all workers share: the one with the slowest device measures them for a single
    /// part.
    fn shared_choices(
        &mut self,
        variant: ProgramVariant<'_>,
        selection: &KernelSelection<'_>,
        workers: Option<&WorkerGroup>,
    ) -> Result<KernelChoices, TrainError> {
        let device = self.device;
        let mut measure = || {
            let programs = self.programs(variant.single_part())?;
            Ok::<_, TrainError>(plan(&programs, device, selection, self.warn)?.choices())
        };
        let Some(workers) = workers else { return measure() };
        let slowest = slowest_worker(workers, device)?;
        let measured = match workers.rank() == slowest {
            true => serde_json::to_vec(&measure()?).unwrap_or_default(),
            false => Vec::new(),
        };
        let shared = workers.all_gatherv(measured)?;
        serde_json::from_slice(&shared[slowest]).map_err(|error| {
            let problem = format!("invalid kernel choices from worker {slowest}: {error}");
            ExchangeError::Disconnected(problem).into()
        })
    }

    /// Plans a pipeline stage within the memory limit, which applies to every stage: the budget for
    /// partitioning the network is reduced until the largest stage, including its scratch, is within the
    /// limit.
    fn fit_stage<'v>(
        &mut self,
        variant: ProgramVariant<'v>,
        selection: &KernelSelection<'_>,
        workers: Option<&WorkerGroup>,
    ) -> Result<PlannedVariant<'v>, TrainError> {
        let mut plan_stage = |stage_budget: StageBudget| {
            let planned = self.plan(ProgramVariant { stage_budget, ..variant }, selection)?;
            let arena = planned.planned.arena_bytes();
            let Some(workers) = workers else { return Ok((planned, arena)) };
            let all = workers.all_gather(&(arena as u64).to_le_bytes())?;
            let from_bytes =
                |bytes: &Vec<u8>| <[u8; 8]>::try_from(bytes.as_slice()).map_or(0, u64::from_le_bytes);
            let largest = all.iter().map(from_bytes).max().unwrap_or(0);
            Ok((planned, usize::try_from(largest).unwrap_or(usize::MAX)))
        };
        fit_stage_budget(variant.resolved, &mut plan_stage)
    }
}

/// The rank of the worker with the slowest device, the first of several.
///
/// # Errors
/// If a worker has disconnected.
pub fn slowest_worker(workers: &WorkerGroup, device: &OpenDevice) -> Result<usize, ExchangeError> {
    // Big-endian numbers are ordered like their bytes.
    let speed = device.backend.device_speed().map(u64::to_be_bytes).concat();
    let speeds = workers.all_gather(&speed)?;
    Ok((0..speeds.len()).min_by_key(|&rank| &speeds[rank]).unwrap_or(0))
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
/// As [`super::programs()`] and [`plan()`], and if nothing fits the limit or the available memory; the hint
/// suggests a remedy.
pub fn fit(
    resolved: &ResolvedProcess,
    graph: &Graph,
    device: &OpenDevice,
    selection: &KernelSelection<'_>,
    workers: Option<&WorkerGroup>,
    warn: &mut dyn FnMut(&str),
) -> Result<FittedRun, TrainError> {
    let mut planner = VariantPlanner { graph, device, warn };
    let requested = ProgramVariant::new(resolved);
    if let KernelSelection::Replay(_) = selection {
        let planned = match requested.stage {
            Some(_) => planner.fit_stage(requested, selection, workers)?,
            None => planner.plan(requested, selection)?,
        };
        return Ok(planned.fitted());
    }
    let limit = resolved.memory_limit();
    let unlimited = ProgramVariant { activations_kib: None, ..requested };
    if requested.stage.is_some() {
        let choices = planner.shared_choices(unlimited, selection, workers)?;
        return Ok(planner.fit_stage(requested, &KernelSelection::Replay(&choices), workers)?.fitted());
    }
    let unlimited_programs = planner.programs(unlimited)?;
    check_memory(resolved, graph, device, &unlimited_programs)?;
    let shared = match resolved.parts() {
        1 => None,
        _ => Some(planner.shared_choices(unlimited, selection, workers)?),
    };
    let replay_shared = shared.as_ref().map(KernelSelection::Replay);
    let selection = replay_shared.as_ref().unwrap_or(selection);
    let mut run = planner.plan_programs(unlimited, unlimited_programs, selection)?;
    let choices = run.planned.choices();
    let replay = KernelSelection::Replay(&choices);
    if requested.activations_kib.is_some() {
        run = planner.plan(requested, &replay)?;
    }
    for _ in 0..MAX_ATTEMPTS {
        let arena = run.planned.arena_bytes();
        if arena <= limit {
            return Ok(run.fitted());
        }
        let live = run.variant.activations_limit().min(live_bytes(&run.programs.train));
        let kib = live.saturating_sub(arena - limit) >> 10;
        run = planner.plan(ProgramVariant { activations_kib: Some(kib), ..requested }, &replay)?;
        if run.planned.arena_bytes() >= arena {
            return Err(memory_limit_error(resolved, arena));
        }
    }
    Err(memory_limit_error(resolved, run.planned.arena_bytes()))
}

/// Plans every stage of a network, like one process per stage does.
///
/// # Errors
/// As [`fit()`].
pub fn fit_stages(
    resolved: &ResolvedProcess,
    graph: &Graph,
    device: &OpenDevice,
    selection: &KernelSelection<'_>,
    warn: &mut dyn FnMut(&str),
) -> Result<Vec<FittedRun>, TrainError> {
    let mut planner = VariantPlanner { graph, device, warn };
    let count = resolved.settings().train.stages;
    let requested = ProgramVariant::new(resolved);
    let choices = planner.shared_choices(requested, selection, None)?;
    let replay = KernelSelection::Replay(&choices);
    let mut plan_stages = |stage_budget: StageBudget| {
        let stages = (0..count).map(|index| {
            let stage = Some(Stage { index, count });
            planner.plan(ProgramVariant { stage, stage_budget, ..requested }, &replay)
        });
        let stages: Vec<PlannedVariant<'_>> = stages.collect::<Result<_, _>>()?;
        let largest = stages.iter().map(|stage| stage.planned.arena_bytes()).max().unwrap_or(0);
        Ok((stages, largest))
    };
    let stages = fit_stage_budget(resolved, &mut plan_stages)?;
    Ok(stages.into_iter().map(PlannedVariant::fitted).collect())
}

/// Reduces the stage budget until the largest stage is within the limit, first without and then with
/// recomputed activations.
///
/// # Errors
/// If no budget fits, or planning fails.
fn fit_stage_budget<T>(
    resolved: &ResolvedProcess,
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
