//! Storage for data sets: local and remote files by address, and a bounded disk cache of remote files.
//!
//! A [`Store`] is a local or remote folder. Paths in it are relative, separated by `/`, and never lead out of
//! it. Each protocol implements `StoreBackend` (`backend.rs`), four operations with a single attempt each.
//! [`Store`] does the common work: it checks paths, retries transient failures ([`RetryPolicy`]), resumes
//! interrupted downloads, and verifies the announced length.
//!
//! A [`Cache`] keeps verified copies of files in a local folder, and evicts the least recently used.
//!
//! All functions block. This crate does not interpret the content of files.

mod address;
mod backend;
mod cache;
mod error;
#[cfg(all(fuzzing, feature = "objects"))]
pub mod fuzzing;
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
pub use backend::Entry;
pub use cache::{Cache, CachedFile};
pub use error::StoreError;
pub use retry::RetryPolicy;
pub use store::Store;
