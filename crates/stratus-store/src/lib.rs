//! Where data lies: a file's bytes by its address, wherever that is, and a bounded cache of such files on
//! disk.
//!
//! A [`Store`] is a folder somewhere: on this machine or behind an address. Files in it have paths with `/`
//! between their parts, relative to it, and none leads out of it. What is behind an address is a `StoreBackend`
//! (`backend.rs`), which answers four questions, each tried once; everything that has to be right for all of
//! them alike is here: paths are checked, what fails for a while is tried again ([`RetryPolicy`]), a broken
//! download goes on at the byte it had reached, and a length that was announced is insisted on.
//!
//! A [`Cache`] keeps files of stores in a folder of this machine, whole and checked, until others need the
//! room.
//!
//! Every function blocks until it is done. Nothing here knows what the files mean.

mod address;
mod backend;
mod cache;
mod error;
mod http;
mod local;
#[cfg(feature = "objects")]
mod objects;
mod retry;
mod secret;
mod sftp;
mod store;
mod web;

pub use address::is_address;
pub use cache::{Cache, CachedFile};
pub use error::StoreError;
pub use retry::RetryPolicy;
pub use store::{Entry, Store};
