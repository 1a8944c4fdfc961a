//! CPU kernels: the oneDNN C API loaded at run time, and vectorised kernels of our own beside it.
//!
//! [`OneDnn`] prepares a program's steps: convolutions and fully connected layers on oneDNN, in layouts and
//! implementations chosen by measuring (`prepare`); everything else on kernels that fuse what oneDNN keeps
//! apart (`native`), on the same threads.

mod backend;
mod ffi;
mod library;
mod native;
mod ops;
mod prepare;

pub use backend::OneDnn;
pub use library::{ENVIRONMENT, FILE, NotFound, candidates};
