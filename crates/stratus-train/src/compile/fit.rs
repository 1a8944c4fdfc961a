//! Plans a run so that what it allocates keeps within `train.memory_limit_mib`.

use super::room::{does_not_fit, expect_room};
use super::{KernelSelection, PlannedRun, Programs, plan, programs};
use crate::TrainError;
use crate::device::OpenDevice;
use crate::resolve::Resolved;
use stratus_engine::passes::recompute::live_bytes;
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
        let planned = plan(&programs, device, selection, warn)?;
        Ok(Self { resolved, programs, planned })
    }
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
    warn: &mut dyn FnMut(&str),
) -> Result<FittedRun, TrainError> {
    if let KernelSelection::Repeat(_) = selection {
        return FittedRun::new(resolved, graph, device, selection, warn);
    }
    let limit = resolved.memory_limit();
    let wanted = resolved.settings().train.activations_kib;
    let keeps_all = resolved.with_activations_kib(None);
    let wanted_programs = programs(&keeps_all, graph, device)?;
    expect_room(&resolved, graph, device, &wanted_programs)?;
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
