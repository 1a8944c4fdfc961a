//! Graph to Program to Plan to Session to Timeline.
//!
//! [`lower::lower`] turns a network into a [`Program`] of forward steps, [`fuse::fuse`] merges steps, [`images::images_as_bytes`] has pixels come as
//! bytes where that pays, [`differentiate::differentiate`] adds the backward pass, [`recompute::recompute`] trades time for memory where that is
//! asked for, [`tile::tile`] cuts the batch into tiles where that pays, [`update::update`] adds the optimiser; all are pure and verified. A
//! [`Backend`] chooses a kernel and layouts per step, [`Plan`] places every byte, [`Session`] allocates once and runs.

pub mod backend;
pub mod clock;
pub mod device;
pub mod differentiate;
mod error;
mod flow;
pub mod fuse;
pub mod images;
pub mod layout;
pub mod lower;
pub mod memory;
pub mod micro_batch;
pub mod ops;
pub mod plan;
pub mod program;
pub mod recompute;
pub mod reference;
pub mod session;
pub mod tile;
mod types;
pub mod update;

pub use backend::{Backend, Choices, Operands, PrepareRequest, Prepared, PreparedStep, StepKernel, Tile};
pub use clock::Clock;
pub use device::Device;
pub use error::EngineError;
pub use layout::Layout;
pub use ops::Kernel;
pub use plan::{Plan, PlannedStep};
pub use program::{Phase, Program, Role, Section, Step, Value, ValueId};
pub use session::Session;
pub use stratus_base::AlignedBytes;
pub use types::{DType, Precision};
