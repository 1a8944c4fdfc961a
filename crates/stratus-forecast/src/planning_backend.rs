//! A backend that only plans, for devices that are not available.

use crate::forecast::PlannedMemory;
use stratus_engine::fusions::Fusions;
use stratus_engine::plan::Persistent;
use stratus_engine::{
    Backend, Choices, EngineError, Layout, Operands, Plan, Precision, PrepareRequest, PreparedProgram,
    PreparedStep, Program, Role, StepKernel, Value,
};

/// A backend without kernels: layouts are dense, and there is no scratch.
#[derive(Clone, Copy, Debug)]
pub struct PlanningBackend {
    /// True for a GPU, false for a CPU.
    pub gpu: bool,
    /// Number of CPU threads.
    pub threads: usize,
}

const IMPLEMENTATION: &str = "not chosen";
/// Batches on a GPU: the current one, and the next one, which is being copied.
const BATCHES_ON_DEVICE: u64 = 2;

impl PlanningBackend {
    /// The memory of a session with these programs; the first is the training step. `per_image` is 0.
    ///
    /// # Errors
    /// If a plan does not verify.
    pub fn memory(&self, programs: &[&Program]) -> Result<PlannedMemory, EngineError> {
        let mut persistent = Persistent::default();
        let (mut transient, mut input) = (0, 0);
        for program in programs {
            let prepared = Plan::prepare(self, program, Choices::default(), false, &mut persistent)?;
            transient = transient.max(prepared.plan.transient_bytes);
            input = input.max(prepared.plan.input_bytes());
        }
        let on_device = if self.gpu { BATCHES_ON_DEVICE * input as u64 } else { 0 };
        Ok(PlannedMemory {
            device: (persistent.bytes + transient) as u64 + on_device,
            per_image: 0,
            batch_bytes: input as u64,
            planned_host_bytes: None,
            checkpoint_bytes: programs.first().map_or(0, |program| checkpoint_bytes(program)),
        })
    }
}

/// Bytes of a checkpoint.
fn checkpoint_bytes(program: &Program) -> u64 {
    let is_saved = |role: Role| {
        matches!(role, Role::Parameter | Role::Frozen | Role::Buffer | Role::OptimiserState | Role::Average)
    };
    program.values.iter().filter(|value| is_saved(value.role)).map(|value| value.bytes() as u64).sum()
}

impl Backend for PlanningBackend {
    fn name(&self) -> &'static str {
        if self.gpu { "cuda" } else { "onednn" }
    }

    fn describe(&self) -> String {
        format!("{} (planning only)", self.name())
    }

    fn revision(&self) -> &'static str {
        ""
    }

    fn threads(&self) -> usize {
        self.threads
    }

    fn precisions(&self) -> Vec<Precision> {
        match self.gpu {
            true => vec![Precision::F32, Precision::Bf16, Precision::F16],
            false => vec![Precision::F32, Precision::Bf16],
        }
    }

    /// Training plans do not depend on the number; a GPU does not run in int8.
    fn max_int8_weight(&self) -> Option<i8> {
        (!self.gpu).then_some(i8::MAX)
    }

    fn prefers_tiling(&self) -> bool {
        !self.gpu
    }

    fn prefers_byte_images(&self) -> bool {
        self.gpu
    }

    fn fusions(&self) -> Fusions {
        Fusions { stem: !self.gpu, inference: !self.gpu, ..Fusions::default() }
    }

    fn prepare(&self, program: &Program, request: &PrepareRequest) -> Result<PreparedProgram, EngineError> {
        let layout = |value: &Value| {
            request.fixed.get(&value.name).cloned().unwrap_or_else(|| Layout::plain(&value.shape))
        };
        let step = || PreparedStep {
            implementation: IMPLEMENTATION.to_owned(),
            scratch_bytes: 0,
            kernel: Box::new(UnrunnableKernel),
        };
        Ok(PreparedProgram {
            program: program.clone(),
            layouts: program.values.iter().map(layout).collect(),
            steps: program.steps.iter().map(|_| step()).collect(),
            choices: Choices::default(),
        })
    }
}

/// The kernel of a step that cannot be run.
struct UnrunnableKernel;

impl StepKernel for UnrunnableKernel {
    fn run(&mut self, _: &mut Operands<'_>) -> Result<(), String> {
        Err("a planning backend cannot run kernels".to_owned())
    }
}
