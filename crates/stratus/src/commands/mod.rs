//! The commands, one file each: arguments, execution, rendering of the result. [`crate::cli::Command`]
//! lists them.

pub mod bench;
pub mod calibrate;
pub mod collect;
pub mod common_keys;
pub mod completions;
pub mod config;
pub mod data;
pub mod doctor;
pub mod eval;
pub mod export;
pub mod forecast;
mod gpus;
pub mod import;
pub mod infer;
pub mod labels;
pub mod launch;
pub mod man;
pub mod memory;
pub mod model;
pub mod optimise;
pub mod plan;
pub mod report;
pub mod runs;
pub mod sweep;
pub mod target;
pub mod train;
#[cfg(feature = "ui")]
pub mod ui;
pub mod weights;
pub mod windows;
mod xml;
