//! Plans a run so that what it allocates keeps within `train.memory_limit_mib`.

use super::{KernelSelection, PlannedRun, Programs, plan, programs};
use crate::TrainError;
use crate::device::OpenDevice;
use crate::resolve::Resolved;
use stratus_engine::Plan;
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
/// As [`programs()`] and [`plan()`]; if nothing fits the limit, it says what would.
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
    let mut run = FittedRun::new(resolved.with_activations_kib(None), graph, device, selection, warn)?;
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

/// Bytes that training needs at least, whatever kernels it will have: see [`Plan::least_bytes`].
#[must_use]
pub fn least_bytes(programs: &Programs) -> usize {
    let all = [Some(&programs.train), programs.tail.as_ref(), Some(&programs.evaluate)];
    all.into_iter().flatten().map(Plan::least_bytes).max().unwrap_or(0)
}

fn does_not_fit(resolved: &Resolved, least: usize) -> TrainError {
    let settings = resolved.settings();
    TrainError::Configuration {
        problem: format!(
            "train.memory_limit_mib is {}; in {} of {}, {} needs at least {} MiB, even if all activations \
             that can be \
             are recomputed",
            settings.train.memory_limit_mib.unwrap_or(0),
            if settings.train.micro_batches > 1 { "micro-batches" } else { "batches" },
            settings.micro_batch_size(),
            settings.model.name,
            least.div_ceil(1 << 20)
        ),
        hint: "split batches into micro-batches with --set train.micro_batches=, take smaller ones with \
        --set \
               train.batch_size=, or halve their bytes with --set train.precision=bf16"
            .to_owned(),
    }
}
