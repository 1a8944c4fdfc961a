//! Storage for data sets: files by address, on local disk or remote, and a bounded cache of remote files on
//! disk.
//!
//! A [`Store`] is a folder: on this machine or behind an address. Paths in it are relative, with `/` between
//! their parts, and never lead out of it. Each protocol implements `StoreBackend` (`backend.rs`), four
//! operations with a single attempt each. [`Store`] does what is the same for all: it checks paths, retries
//! transient failures ([`RetryPolicy`]), resumes broken downloads at the byte reached, and insists on the
//! announced length.
//!
//! A [`Cache`] keeps verified copies of files in a local folder, and evicts the least recently used.
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
