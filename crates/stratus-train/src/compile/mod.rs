//! From a resolved experiment and its network to a session that can train.
//!
//! ```text
//! Graph ──programs──▶ Programs ──plan──▶ PlannedRun ──allocate──▶ CompiledRun
//!          passes      train, tail,       kernels, layouts,        the session, with
//!          of the      evaluate,          every byte's address;    memory allocated
//!          engine      refresh            nothing is allocated
//! ```
//!
//! [`fit()`] does the first two within `train.memory_limit_mib`, and rejects runs that cannot fit (`memory`)
//! before it measures kernels.

mod batch_norm;
mod fake_quantisation;
mod fit;
mod inference;
mod memory;
mod optimiser;
mod plan_cache;
mod plans;
mod programs;
mod stage_budget;
mod variant;

pub use batch_norm::check_batch_norm_samples;
pub use fit::{FittedRun, fit, fit_stages, worker_with_oldest_device};
pub(crate) use inference::layer_values;
pub use inference::{InferenceForm, InferenceProgram, inference_program, inference_session, uint8_scales};
pub use memory::{batch_divisor, largest_batch, min_bytes};
pub use plans::{
    CompiledRun, EvaluationSession, KernelChoices, KernelSelection, PlannedRun, Plans, ProgramIds, StepTimes,
    compile_evaluation, plan,
};
pub use programs::{Programs, programs};
pub(crate) use programs::{variant_programs, worker_program};
pub(crate) use variant::ProgramVariant;
