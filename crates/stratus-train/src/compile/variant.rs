//! The variants of a run's programs that are tried while it is compiled.

use crate::exchange::gradient_sums;
use crate::resolve::ResolvedProcess;
use stratus_engine::Stage;
use stratus_engine::ops::SumMethod;
use stratus_engine::passes::step_costs::LayerTimes;

/// A variant of the programs of a resolved experiment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramVariant<'a> {
    pub resolved: &'a ResolvedProcess,
    /// The workers that divide the parts of a batch.
    pub workers: usize,
    /// How workers sum gradients.
    pub gradients: SumMethod,
    /// The pipeline stage; `None` for the whole network.
    pub stage: Option<Stage>,
    pub stage_budget: StageBudget,
    /// The measured times by which the network is cut into stages; `None` cuts it by estimates.
    pub layer_times: Option<&'a LayerTimes>,
    /// At most this many KiB of activations and gradients are alive at once, and others recomputed; `None`
    /// keeps all of them.
    pub activations_kib: Option<usize>,
}

/// The memory budget of a pipeline stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StageBudget {
    /// Bytes, of those that are known before kernels are chosen.
    pub bytes: usize,
    /// True if stages may recompute their activations, so that they store little for parts in flight.
    pub recomputes: bool,
    /// If they do, the bytes of activations and gradients above which this stage recomputes some, for all
    /// parts in flight.
    pub live_bytes: usize,
}

impl StageBudget {
    /// A budget of stages that keep all activations.
    pub fn keeping(bytes: usize) -> Self {
        Self { bytes, recomputes: false, live_bytes: usize::MAX }
    }
}

impl<'a> ProgramVariant<'a> {
    /// The variant that the experiment's keys and the process's share define.
    pub fn new(resolved: &'a ResolvedProcess) -> Self {
        Self {
            resolved,
            workers: resolved.rank().world_size,
            gradients: gradient_sums(resolved.settings()),
            stage: resolved.stage(),
            stage_budget: StageBudget::keeping(resolved.memory_limit()),
            layer_times: None,
            activations_kib: resolved.settings().train.activations_kib,
        }
    }

    /// The variant that computes one part with the whole network. The kernels chosen for it are used by every
    /// stage and every number of workers.
    pub fn single_part(self) -> Self {
        Self { workers: self.resolved.parts(), gradients: SumMethod::default(), stage: None, ..self }
    }

    /// Maximum bytes of activations and gradients that are alive at once.
    pub fn activations_limit(self) -> usize {
        self.activations_kib.map_or(usize::MAX, |kib| kib << 10)
    }
}
