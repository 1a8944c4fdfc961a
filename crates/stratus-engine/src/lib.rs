//! Graph to Program to Plan to Session to Timeline.
//!
//! The [`passes`] turn a network's graph into a [`Program`]: ordered steps over values. Kernels ([`ops`])
//! define the computation of each step and add steps to a program under construction ([`build`]). A
//! [`Backend`] chooses a kernel and layouts for every step, [`Plan`] places every byte, [`Session`] allocates
//! once and runs.
//!
//! ```text
//! passes ──▶ ops ──▶ build ──▶ program
//! ```

pub mod backend;
pub mod build;
pub mod clock;
mod dataflow;
pub mod device;
mod error;
pub mod exchange;
pub mod fusions;
pub mod layout;
pub mod memory;
pub mod memory_map;
pub mod ops;
pub mod passes;
pub mod phases;
pub mod plan;
pub mod profile;
pub mod program;
pub mod reference;
pub mod session;
mod types;

pub use backend::{
    Backend, Choices, Operands, PrepareRequest, PreparedProgram, PreparedStep, StepKernel, Tile,
};
pub use clock::Clock;
pub use device::Device;
pub use error::EngineError;
pub use layout::Layout;
pub use ops::Kernel;
pub use passes::lower::LossFunction;
pub use phases::{StartupMonitor, StartupTimes};
pub use plan::{Plan, PlannedStep};
pub use program::{Phase, Program, Role, Section, Stage, Step, Value, ValueId};
pub use session::Session;
pub use stratus_base::AlignedBytes;
// For `with_kernels!`.
#[doc(hidden)]
pub use stratus_graph::with_operations;
pub use types::{DType, Precision};
