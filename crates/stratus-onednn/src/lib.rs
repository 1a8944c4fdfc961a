//! CPU kernels: those of oneDNN, through its C API loaded at run time, and native ones.
//!
//! [`OneDnn`] turns a program's steps into kernels. Convolutions and fully connected layers run on the
//! implementation measured as the fastest, oneDNN's or native; everything else runs on native kernels, which
//! fuse operations that oneDNN runs in separate passes. All run on the same threads.
//!
//! ```text
//! prepare/   plans a program: layouts, measuring, reorders between layouts
//!   ops/     a file per operation: its kernels implement `CpuOp`, which lists candidates
//!   ffi/     oneDNN's C API
//!   native/  native kernels; they know nothing of steps and plans
//! ```

mod backend;
mod ffi;
mod library;
mod native;
mod onednn;
mod ops;
mod prepare;

pub use library::{ENVIRONMENT, FILE, LibraryNotFound, candidates, check_named};
pub use onednn::OneDnn;
