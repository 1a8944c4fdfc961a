//! From a resolved experiment and its network to a session that can train.
//!
//! ```text
//! Graph ──programs──▶ Programs ──plan──▶ PlannedRun ──allocate──▶ CompiledRun
//!          passes      train, tail,       kernels, layouts,        the session, with
//!          of the      evaluate,          every byte's address;    memory allocated
//!          engine      refresh            nothing is allocated
//! ```
//!
//! [`fit()`] does the first two so that what will be allocated keeps within `train.memory_limit_mib`, and
//! refuses what cannot fit (`room`) before it measures kernels.

mod fit;
mod optimiser;
mod plan_cache;
mod plans;
mod programs;
mod room;
mod statistics;

pub use fit::{FittedRun, fit, fit_stages};
pub use plans::{
    CompiledRun, EvaluationSession, KernelChoices, KernelSelection, PlannedRun, Plans, ProgramIds, StepTimes,
    compile_evaluation, plan,
};
pub use programs::{Programs, programs};
pub use room::{largest_batch, least_bytes};
pub use statistics::expect_statistics;
