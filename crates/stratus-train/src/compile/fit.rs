//! Plans a run within `train.memory_limit_mib`.

use super::memory::{check_memory, memory_limit_error};
use super::programs::{StageCost, costed_programs};
use super::stage_budget::{StageFit, fit_stage_budget};
use super::variant::{ProgramVariant, StageBudget};
use super::{KernelChoices, KernelSelection, PlannedRun, Programs, plan};
use crate::TrainError;
use crate::agreement::agree;
use crate::bench::probe::cold_bytes;
use crate::device::OpenDevice;
use crate::resolve::ResolvedProcess;
use std::time::Duration;
use stratus_engine::Stage;
use stratus_engine::passes::recompute::live_bytes;
use stratus_exchange::{ExchangeError, WorkerGroup};
use stratus_graph::Graph;

/// Maximum number of plans that are made to find one that fits.
pub(super) const MAX_ATTEMPTS: usize = 16;
/// How long the layers of a network are timed before it is cut into pipeline stages.
const LAYER_TIMES_BUDGET: Duration = Duration::from_secs(1);

/// A run that fits its memory limit.
pub struct FittedRun {
    /// The resolved experiment; `train.activations_kib` is the limit that was found.
    pub resolved: ResolvedProcess,
    /// Its programs.
    pub programs: Programs,
    /// Their plans.
    pub planned: PlannedRun,
    /// The cost of the pipeline stage, if it is one.
    pub(crate) stage_cost: Option<StageCost>,
}

/// The plans of a variant, which may exceed the memory limit.
struct PlannedVariant<'a> {
    variant: ProgramVariant<'a>,
    programs: Programs,
    planned: PlannedRun,
    stage_cost: Option<StageCost>,
}

impl PlannedVariant<'_> {
    /// The run of this variant, with its limit on activations.
    fn fitted(self) -> FittedRun {
        let Self { variant, programs, planned, stage_cost } = self;
        let ProgramVariant { resolved, activations_kib, .. } = variant;
        FittedRun { resolved: resolved.with_activations_kib(activations_kib), programs, planned, stage_cost }
    }

    /// The bytes and the cost of this stage.
    fn measures(&self) -> (usize, f64) {
        (self.planned.session_bytes(), self.stage_cost.map_or(0.0, |cost| cost.steps.total))
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
        Ok(costed_programs(variant, self.graph, self.device)?.0)
    }

    fn plan<'v>(
        &mut self,
        variant: ProgramVariant<'v>,
        selection: &KernelSelection<'_>,
    ) -> Result<PlannedVariant<'v>, TrainError> {
        let costed = costed_programs(variant, self.graph, self.device)?;
        self.plan_programs(variant, costed, selection)
    }

    fn plan_programs<'v>(
        &mut self,
        variant: ProgramVariant<'v>,
        (programs, stage_cost): (Programs, Option<StageCost>),
        selection: &KernelSelection<'_>,
    ) -> Result<PlannedVariant<'v>, TrainError> {
        let mut planned = plan(&programs, self.device, selection, self.warn)?;
        if let (Some(_), KernelSelection::Replay(choices)) = (variant.stage, selection) {
            planned.add_whole_network_choices(choices);
        }
        Ok(PlannedVariant { variant, programs, planned, stage_cost })
    }

    /// Kernel choices that all workers share: the one with the oldest device measures them for a single
    /// part, and for stages the times of the layers too.
    fn shared_choices(
        &mut self,
        variant: ProgramVariant<'_>,
        selection: &KernelSelection<'_>,
        workers: Option<&WorkerGroup>,
    ) -> Result<KernelChoices, TrainError> {
        let device = self.device;
        let mut measure = || {
            let programs = self.programs(variant.single_part())?;
            let mut planned = plan(&programs, device, selection, self.warn)?;
            if variant.resolved.settings().train.stages > 1 && self.can_time_layers(selection) {
                let (backend, parts) = (device.backend.as_ref(), variant.resolved.parts());
                planned.measure_layers(backend, cold_bytes(), parts, LAYER_TIMES_BUDGET)?;
            }
            Ok::<_, TrainError>(planned.choices())
        };
        let Some(workers) = workers else { return measure() };
        let oldest = worker_with_oldest_device(workers, device)?;
        let measured = match workers.rank() == oldest {
            true => measure().map(|choices| serde_json::to_vec(&choices).unwrap_or_default()),
            false => Ok(Vec::new()),
        };
        let shared = workers.all_gatherv(agree(Some(workers), measured)?)?;
        serde_json::from_slice(&shared[oldest]).map_err(|error| {
            let problem = format!("invalid kernel choices from worker {oldest}: {error}");
            ExchangeError::Disconnected(problem).into()
        })
    }

    /// Returns whether steps can be timed one by one: not on a GPU, and not on the reference backend, whose
    /// times would mean nothing.
    fn can_time_layers(&self, selection: &KernelSelection<'_>) -> bool {
        let measures = !matches!(selection, KernelSelection::FirstSupported);
        measures && !self.device.is_accelerator && !self.device.libraries.is_empty()
    }

    /// Plans a pipeline stage within the memory limit, which applies to every stage.
    fn fit_stage<'v>(
        &mut self,
        variant: ProgramVariant<'v>,
        selection: &KernelSelection<'_>,
        workers: Option<&WorkerGroup>,
    ) -> Result<PlannedVariant<'v>, TrainError> {
        let mut plan_stage = |stage_budget: StageBudget| {
            let planned = self.plan_in_budget(ProgramVariant { stage_budget, ..variant }, selection);
            let planned = agree(workers, planned)?;
            let (session, cost) = planned.measures();
            let Some(workers) = workers else {
                return Ok(StageFit { planned, largest_bytes: session, slowest_cost: cost });
            };
            let own = [(session as u64).to_le_bytes(), cost.to_le_bytes()].concat();
            let all = workers.all_gather(&own)?;
            let half = |bytes: &Vec<u8>, at: usize| {
                bytes.get(at..at + 8).and_then(|half| <[u8; 8]>::try_from(half).ok()).unwrap_or_default()
            };
            let bytes = all.iter().map(|bytes| u64::from_le_bytes(half(bytes, 0))).max().unwrap_or(0);
            let costs = all.iter().map(|bytes| f64::from_le_bytes(half(bytes, 8)));
            Ok(StageFit {
                planned,
                largest_bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
                slowest_cost: costs.fold(0.0, f64::max),
            })
        };
        fit_stage_budget(variant.resolved, &mut plan_stage)
    }

    /// Plans a pipeline stage. If its budget allows to recompute, activations are recomputed, cheapest first,
    /// until the stage is within the memory limit or nothing is left to recompute.
    fn plan_in_budget<'v>(
        &mut self,
        variant: ProgramVariant<'v>,
        selection: &KernelSelection<'_>,
    ) -> Result<PlannedVariant<'v>, TrainError> {
        let mut run = self.plan(variant, selection)?;
        let limit = variant.resolved.memory_limit();
        let mut live = run.variant.stage_budget.live_bytes;
        for _ in 0..MAX_ATTEMPTS {
            let needed = run.planned.session_bytes();
            if !variant.stage_budget.recomputes || needed <= limit || live == 0 {
                break;
            }
            live = live.min(run.stage_cost.map_or(0, |cost| cost.live_bytes)).saturating_sub(needed - limit);
            let stage_budget = StageBudget { live_bytes: live, ..variant.stage_budget };
            let less = self.plan(ProgramVariant { stage_budget, ..variant }, selection)?;
            if less.planned.session_bytes() <= needed {
                run = less;
            }
        }
        Ok(run)
    }
}

/// The rank of the worker whose device is of the oldest generation, of several the slowest: all devices
/// support the kernels that it chooses.
///
/// # Errors
/// If a worker has disconnected.
pub fn worker_with_oldest_device(workers: &WorkerGroup, device: &OpenDevice) -> Result<usize, ExchangeError> {
    // Big-endian numbers are ordered like their bytes.
    let generation = device.backend.device_generation().map(u64::to_be_bytes).concat();
    let all = workers.all_gather(&generation)?;
    Ok((0..all.len()).min_by_key(|&rank| &all[rank]).unwrap_or(0))
}

/// Plans a run within `train.memory_limit_mib`.
///
/// Kernels are chosen for the program that keeps every activation. If that is too large, fewer activations
/// are kept and the others recomputed by the same kernels, so that results are bit-identical:
///
/// ```text
/// live := bytes alive at the peak
/// repeat  live := live - (needed - limit), recompute, plan   until needed <= limit
/// ```
///
/// A run needs more than the bytes alive: also parameters, scratch, padding, gaps, and on GPUs of
/// several workers the memory of their sums. So the search uses the actual size of each plan. With
/// [`KernelSelection::Replay`], the given limit on activations is used.
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
    if let KernelSelection::Replay(choices) = selection {
        let timed = ProgramVariant { layer_times: Some(&choices.layer_times), ..requested };
        let planned = match requested.stage {
            Some(_) => planner.fit_stage(timed, selection, workers)?,
            None => planner.plan(requested, selection)?,
        };
        return Ok(planned.fitted());
    }
    let limit = resolved.memory_limit();
    let unlimited = ProgramVariant { activations_kib: None, ..requested };
    if requested.stage.is_some() {
        let choices = planner.shared_choices(unlimited, selection, workers)?;
        let timed = ProgramVariant { layer_times: Some(&choices.layer_times), ..requested };
        return Ok(planner.fit_stage(timed, &KernelSelection::Replay(&choices), workers)?.fitted());
    }
    let unlimited_programs = planner.programs(unlimited).and_then(|programs| {
        check_memory(resolved, graph, device, &programs)?;
        Ok(programs)
    });
    let unlimited_programs = agree(workers, unlimited_programs)?;
    let shared = match resolved.parts() {
        1 => None,
        _ => Some(planner.shared_choices(unlimited, selection, workers)?),
    };
    let replay_shared = shared.as_ref().map(KernelSelection::Replay);
    let selection = replay_shared.as_ref().unwrap_or(selection);
    let mut run = planner.plan_programs(unlimited, (unlimited_programs, None), selection)?;
    let choices = run.planned.choices();
    let replay = KernelSelection::Replay(&choices);
    if requested.activations_kib.is_some() {
        run = planner.plan(requested, &replay)?;
    }
    for _ in 0..MAX_ATTEMPTS {
        let needed = run.planned.session_bytes();
        if needed <= limit {
            return Ok(run.fitted());
        }
        let live = run.variant.activations_limit().min(live_bytes(&run.programs.train));
        let kib = live.saturating_sub(needed - limit) >> 10;
        run = planner.plan(ProgramVariant { activations_kib: Some(kib), ..requested }, &replay)?;
        if run.planned.session_bytes() >= needed {
            return Err(memory_limit_error(resolved, needed));
        }
    }
    Err(memory_limit_error(resolved, run.planned.session_bytes()))
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
            let layer_times = Some(&choices.layer_times);
            let variant = ProgramVariant { stage, stage_budget, layer_times, ..requested };
            planner.plan_in_budget(variant, &replay)
        });
        let planned: Vec<PlannedVariant<'_>> = stages.collect::<Result<_, _>>()?;
        let (bytes, costs): (Vec<usize>, Vec<f64>) = planned.iter().map(PlannedVariant::measures).unzip();
        Ok(StageFit {
            planned,
            largest_bytes: bytes.into_iter().max().unwrap_or(0),
            slowest_cost: costs.into_iter().fold(0.0, f64::max),
        })
    };
    let stages = fit_stage_budget(resolved, &mut plan_stages)?;
    Ok(stages.into_iter().map(PlannedVariant::fitted).collect())
}
