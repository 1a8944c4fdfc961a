//! The commands, a file each: arguments, what they do, how the result reads. A command is listed in
//! [`crate::cli::Command`] when it works.

pub mod bench;
pub mod calibrate;
pub mod collect;
pub mod completions;
pub mod config;
pub mod data;
pub mod doctor;
pub mod eval;
pub mod export;
pub mod forecast;
pub mod import;
pub mod infer;
pub mod launch;
pub mod man;
pub mod memory;
pub mod model;
pub mod often;
pub mod plan;
pub mod report;
pub mod runs;
pub mod sweep;
pub mod target;
pub mod train;
pub mod weights;
pub mod windows;
mod xml;
