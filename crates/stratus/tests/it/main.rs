//! The command line, run as a process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bad_input;
mod calibrate;
mod command_line;
mod common;
mod data_sets;
mod deadline;
mod evaluating;
mod every_network;
mod finetune;
mod first_hour;
mod forecast;
mod inference;
mod kill;
mod launch;
mod layer_file_runs;
mod masks;
mod memory;
mod onnx;
mod outputs;
mod pipeline;
mod recipe;
mod recorded;
mod report;
mod run_directory;
mod runs;
mod same_data;
mod segmentation;
mod stores;
mod sweep;
mod tensorboard;
mod unanswered;
mod widths;
mod workers;
mod xml;
