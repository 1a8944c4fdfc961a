//! Workers that train together.
//!
//! [`Workers`] is one process's end: it exchanges with the others through a [`Transport`], on a thread of its
//! own, so that training goes on meanwhile. Sums are made along a binary tree over the workers ([`tree`]),
//! whatever their number; the stages of a pipeline send each other messages. [`mpi`] is the transport between
//! processes; its library is loaded at run time.
//!
//! ```text
//! engine's steps ──▶ Workers ──▶ a thread: tree ──▶ Transport: MPI
//! ```

mod environment;
mod error;
pub mod in_process;
mod messages;
pub mod mpi;
mod transport;
pub mod tree;
mod workers;

pub use environment::{Launched, launched};
pub use error::ExchangeError;
pub use transport::{Message, Pending, Transport};
pub use workers::Workers;
