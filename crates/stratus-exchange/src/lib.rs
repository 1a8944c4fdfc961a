//! Communication between the workers of one run.
//!
//! [`WorkerGroup`] is the end of one process: it exchanges data with the others through a [`Transport`], on a
//! separate thread, while training continues. Sums are computed along a binary tree over the workers
//! ([`tree`], or [`rounded`] to bf16); pipeline stages send each other messages. [`mpi`] is the transport
//! between processes; its library is loaded at run time.
//!
//! ```text
//! engine's steps ──▶ Workers ──▶ a thread: tree ──▶ Transport: MPI
//! ```

mod environment;
mod error;
pub mod in_process;
mod messages;
pub mod mpi;
pub mod rounded;
mod transport;
pub mod tree;
mod worker_group;

pub use environment::{LaunchInfo, launch_info};
pub use error::ExchangeError;
pub use transport::{Message, TransferState, Transport};
pub use worker_group::WorkerGroup;
