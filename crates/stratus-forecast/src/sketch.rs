//! A backend that runs nothing: for the program and the plan of a device that is not here.

use crate::forecast::Memory;
use stratus_engine::passes::fuse::Fusions;
use stratus_engine::plan::Persistent;
use stratus_engine::{
    Backend, Choices, EngineError, Layout, Operands, Plan, Precision, PrepareRequest, Prepared, PreparedStep,
    Program, Role, StepKernel, Value,
};

/// Kernels are not chosen, layouts are dense, scratch is none.
#[derive(Clone, Copy, Debug)]
pub struct Sketch {
    /// Whether it is a GPU; else a processor.
    pub gpu: bool,
    /// Threads of the processor.
    pub threads: usize,
}

const IMPLEMENTATION: &str = "not chosen";
/// Batches on a GPU: the one that is computed and the one that is copied meanwhile.
const BATCHES_ON_DEVICE: u64 = 2;

impl Sketch {
    /// What programs of one session take, the first being the training step; nothing of it an image's.
    ///
    /// # Errors
    /// Where a plan does not verify.
    pub fn memory(&self, programs: &[&Program]) -> Result<Memory, EngineError> {
        let mut persistent = Persistent::default();
        let (mut transient, mut input) = (0, 0);
        for program in programs {
            let prepared = Plan::prepare(self, program, Choices::default(), false, &mut persistent)?;
            transient = transient.max(prepared.plan.transient_bytes);
            input = input.max(prepared.plan.input_bytes());
        }
        let on_device = if self.gpu { BATCHES_ON_DEVICE * input as u64 } else { 0 };
        Ok(Memory {
            device: (persistent.bytes + transient) as u64 + on_device,
            per_image: 0,
            batch: input as u64,
            beside: None,
            checkpoint: programs.first().map_or(0, |program| saved(program)),
        })
    }
}

/// Bytes of what a checkpoint holds.
fn saved(program: &Program) -> u64 {
    let is_saved = |role: Role| {
        matches!(role, Role::Parameter | Role::Frozen | Role::Buffer | Role::Momentum | Role::Average)
    };
    program.values.iter().filter(|value| is_saved(value.role)).map(|value| value.bytes() as u64).sum()
}

impl Backend for Sketch {
    fn name(&self) -> &'static str {
        if self.gpu { "cuda" } else { "onednn" }
    }

    fn describe(&self) -> String {
        format!("{}, not here", self.name())
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

    fn gains_from_tiles(&self) -> bool {
        !self.gpu
    }

    fn gains_from_bytes(&self) -> bool {
        self.gpu
    }

    fn fusions(&self) -> Fusions {
        Fusions { stems: !self.gpu, ..Fusions::default() }
    }

    fn prepare(&self, program: &Program, request: &PrepareRequest) -> Result<Prepared, EngineError> {
        let layout = |value: &Value| {
            request.fixed.get(&value.name).cloned().unwrap_or_else(|| Layout::plain(&value.shape))
        };
        let step = || PreparedStep {
            implementation: IMPLEMENTATION.to_owned(),
            scratch_bytes: 0,
            kernel: Box::new(Nothing),
        };
        Ok(Prepared {
            program: program.clone(),
            layouts: program.values.iter().map(layout).collect(),
            steps: program.steps.iter().map(|_| step()).collect(),
            choices: Choices::default(),
        })
    }
}

/// The kernel of a step that is not run.
struct Nothing;

impl StepKernel for Nothing {
    fn run(&mut self, _: &mut Operands<'_>) -> Result<(), String> {
        Err("a forecast runs nothing".to_owned())
    }
}
