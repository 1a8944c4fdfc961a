//! The command line, run as a process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod calibrate;
mod command_line;
mod common;
mod completing;
mod data_sets;
mod deadline;
mod evaluating;
mod every_network;
mod failed_images;
mod fake_quantisation;
mod finetune;
mod forecast;
mod gpus;
mod hostile;
mod inference;
#[cfg(unix)]
mod installation;
mod int8;
mod invalid_input;
mod kill;
mod labels;
mod latency_target;
mod launch;
mod layer_file_runs;
mod masks;
mod matrices;
mod memory;
mod mistakes;
mod new_user;
mod onnx;
mod optimise;
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
mod stream;
mod sweep;
mod tables;
mod targets;
mod teacher;
mod tensorboard;
mod terminal_width;
mod ui;
mod ui_actions;
mod validation_images;
mod workers;
mod xml;
