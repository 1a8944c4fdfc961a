//! Random networks: the training step of each on a backend is compared with the reference's.
//!
//! [`random_network`] draws a network of every operation (`operations.rs` has a row for each) from a seed.
//! [`Subject`] compares a backend with the reference, [`check_networks`] does so for many networks, and
//! shrinks those that differ.
//!
//! The environment variable `STRATUS_NETWORKS` sets the networks: a number of them, a range of seeds such as
//! `200..300`, or a file with a printed network.

mod check;
mod compare;
mod data;
mod generate;
mod network;
mod operations;
mod shrink;
mod step;

pub use check::{NetworkReport, Networks, check_networks};
pub use compare::{
    Evaluation, MIN_OUTPUT, Subject, Verdict, evaluate_reference, evaluate_with, output_distance,
};
pub use data::Data;
pub use generate::random_network;
pub use network::{Network, Settings, read_network};
pub use shrink::shrink;
