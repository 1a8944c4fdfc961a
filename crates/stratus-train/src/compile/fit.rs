//! Plans a run so that what it allocates keeps within `train.memory_limit_mib`.

use super::room::{does_not_fit, expect_room, stage_does_not_fit};
use super::{KernelChoices, KernelSelection, PlannedRun, Programs, plan, programs};
use crate::TrainError;
use crate::device::OpenDevice;
use crate::resolve::{Place, Resolved, StageRoom};
use stratus_engine::passes::recompute::live_bytes;
use stratus_engine::{EngineError, Stage};
use stratus_exchange::{ExchangeError, Workers};
use stratus_graph::Graph;

/// The most plans that are made on the way to one that fits.
const MAX_ATTEMPTS: usize = 16;

/// A run that fits its memory limit.
pub struct FittedRun {
    /// What will be done; `train.activations_kib` is the limit that was found.
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
        Self::of(resolved, programs, device, selection, warn)
    }

    fn of(
        resolved: Resolved,
        programs: Programs,
        device: &OpenDevice,
        selection: &KernelSelection<'_>,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let mut planned = plan(&programs, device, selection, warn)?;
        if let (Some(_), KernelSelection::Repeat(choices)) = (resolved.stage(), selection) {
            planned.keep_choices(choices);
        }
        Ok(Self { resolved, programs, planned })
    }
}

/// The kernels of a run in parts: those for a worker that has one part, whatever the number of parts that a
/// worker has here, so that all have the same. The first worker measures.
fn common_choices(
    resolved: &Resolved,
    graph: &Graph,
    device: &OpenDevice,
    selection: &KernelSelection<'_>,
    workers: Option<&Workers>,
    warn: &mut dyn FnMut(&str),
) -> Result<KernelChoices, TrainError> {
    let mut measured = || {
        let of_one = resolved.with_place(Place { rank: 0, workers: resolved.parts() }).with_stage(None);
        Ok::<_, TrainError>(plan(&programs(&of_one, graph, device)?, device, selection, warn)?.choices())
    };
    let Some(workers) = workers else { return measured() };
    let said = match workers.rank() {
        0 => serde_json::to_vec(&measured()?).unwrap_or_default(),
        _ => Vec::new(),
    };
    serde_json::from_slice(&workers.broadcast(said)?).map_err(|error| {
        ExchangeError::Ended(format!("the first worker's choice of kernels cannot be read: {error}")).into()
    })
}

/// Plans a run within `train.memory_limit_mib`.
///
/// Kernels are chosen for the program that keeps every activation. If that is too large, fewer activations
/// are kept and the rest recomputed by the same kernels, so that results keep their bits:
///
/// ```text
/// live := bytes alive at the peak
/// repeat  live := live - (arena - limit), recompute, plan   until arena <= limit
/// ```
///
/// The arena is more than what is alive: parameters, scratch, padding and gaps are in it. So the search goes
/// on from what each plan really takes. With [`KernelSelection::Repeat`], the limit on activations is taken
/// as it stands.
///
/// # Errors
/// As [`programs()`] and [`plan()`]; if nothing fits the limit, or the memory that there is, it says what
/// would.
pub fn fit(
    resolved: Resolved,
    graph: &Graph,
    device: &OpenDevice,
    selection: &KernelSelection<'_>,
    workers: Option<&Workers>,
    warn: &mut dyn FnMut(&str),
) -> Result<FittedRun, TrainError> {
    if let KernelSelection::Repeat(_) = selection {
        return match resolved.stage() {
            Some(_) => fit_stage(&resolved, graph, device, selection, workers, warn),
            None => FittedRun::new(resolved, graph, device, selection, warn),
        };
    }
    let limit = resolved.memory_limit();
    let wanted = resolved.settings().train.activations_kib;
    let keeps_all = resolved.with_activations_kib(None);
    if resolved.stage().is_some() {
        let choices = common_choices(&keeps_all, graph, device, selection, workers, warn)?;
        return fit_stage(&resolved, graph, device, &KernelSelection::Repeat(&choices), workers, warn);
    }
    let wanted_programs = programs(&keeps_all, graph, device)?;
    expect_room(&resolved, graph, device, &wanted_programs)?;
    let common = match resolved.parts() {
        1 => None,
        _ => Some(common_choices(&keeps_all, graph, device, selection, workers, warn)?),
    };
    let repeats_common = common.as_ref().map(KernelSelection::Repeat);
    let selection = repeats_common.as_ref().unwrap_or(selection);
    let mut run = FittedRun::of(keeps_all, wanted_programs, device, selection, warn)?;
    let choices = run.planned.choices();
    let repeat = KernelSelection::Repeat(&choices);
    if wanted.is_some() {
        run = FittedRun::new(resolved, graph, device, &repeat, warn)?;
    }
    for _ in 0..MAX_ATTEMPTS {
        let arena = run.planned.arena_bytes();
        if arena <= limit {
            return Ok(run);
        }
        let live = run.resolved.activations_limit().min(live_bytes(&run.programs.train));
        let kib = live.saturating_sub(arena - limit) >> 10;
        run = FittedRun::new(run.resolved.with_activations_kib(Some(kib)), graph, device, &repeat, warn)?;
        if run.planned.arena_bytes() >= arena {
            return Err(does_not_fit(&run.resolved, arena));
        }
    }
    Err(does_not_fit(&run.resolved, run.planned.arena_bytes()))
}

/// Plans a stage of a pipeline. Where a limit of memory is set, all stages keep to it: the room that the
/// network is cut by is made smaller until what the largest takes, with its scratch, is within the limit.
fn fit_stage(
    resolved: &Resolved,
    graph: &Graph,
    device: &OpenDevice,
    selection: &KernelSelection<'_>,
    workers: Option<&Workers>,
    warn: &mut dyn FnMut(&str),
) -> Result<FittedRun, TrainError> {
    let mut own = |room: StageRoom| {
        let run = FittedRun::new(resolved.with_stage_room(room), graph, device, selection, warn)?;
        let arena = run.planned.arena_bytes();
        let Some(workers) = workers else { return Ok((run, arena)) };
        let all = workers.all_gather(&(arena as u64).to_le_bytes())?;
        let number = |bytes: &Vec<u8>| <[u8; 8]>::try_from(bytes.as_slice()).map_or(0, u64::from_le_bytes);
        let largest = all.iter().map(number).max().unwrap_or(0);
        Ok((run, usize::try_from(largest).unwrap_or(usize::MAX)))
    };
    within_room(resolved, &mut own)
}

/// Plans of every stage of a network, as one process each makes its own.
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
    let choices = common_choices(resolved, graph, device, selection, None, warn)?;
    let repeat = KernelSelection::Repeat(&choices);
    let mut all = |room: StageRoom| {
        let stages = (0..count).map(|number| {
            let stage = resolved.with_stage(Some(Stage { number, count })).with_stage_room(room);
            FittedRun::new(stage, graph, device, &repeat, warn)
        });
        let stages: Vec<FittedRun> = stages.collect::<Result<_, _>>()?;
        let largest = stages.iter().map(|run| run.planned.arena_bytes()).max().unwrap_or(0);
        Ok((stages, largest))
    };
    within_room(resolved, &mut all)
}

/// Tries smaller rooms until the largest stage is within the limit; where that is not enough, activations are
/// recomputed.
fn within_room<T>(
    resolved: &Resolved,
    of: &mut dyn FnMut(StageRoom) -> Result<(T, usize), TrainError>,
) -> Result<T, TrainError> {
    let limit = resolved.memory_limit();
    let mut least = usize::MAX;
    for recomputes in [false, true] {
        let mut bytes = limit;
        for _ in 0..MAX_ATTEMPTS {
            let (planned, largest) = match of(StageRoom { bytes, recomputes }) {
                Ok(planned) => planned,
                // A smaller room than any cut needs.
                Err(TrainError::Engine(EngineError::Mismatch(_))) if limit < usize::MAX => break,
                Err(error) => return Err(error),
            };
            if largest <= limit {
                return Ok(planned);
            }
            least = least.min(largest);
            bytes = (bytes as f64 * (limit as f64 / largest as f64).min(0.98)) as usize;
        }
    }
    Err(stage_does_not_fit(resolved, least))
}
