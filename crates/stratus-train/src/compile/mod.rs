//! From a resolved experiment and its network to a session that can train.
//!
//! ```text
//! Graph ──programs──▶ Programs ──plan──▶ PlannedRun ──allocate──▶ CompiledRun
//!          passes      train, tail,       kernels, layouts,        the session, with
//!          of the      evaluate,          every byte's address;    memory allocated
//!          engine      refresh            nothing is allocated
//! ```
//!
//! [`fit()`] does the first two so that what will be allocated keeps within `train.memory_limit_mib`.

mod fit;
mod optimiser;
mod plan_cache;
mod plans;
mod programs;

pub use fit::{FittedRun, fit, least_bytes};
pub use plans::{
    CompiledRun, EvaluationSession, KernelChoices, KernelSelection, PlannedRun, Plans, ProgramIds, StepTimes,
    compile_evaluation, plan,
};
pub use programs::{Programs, programs};
