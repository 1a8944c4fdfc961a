//! `stratus bench`: its arguments.

use clap::{Args, Subcommand};

/// Arguments of `stratus bench`.
#[derive(Args, Debug)]
pub struct BenchArguments {
    /// What to measure.
    #[command(subcommand)]
    pub what: Bench,
}

/// What `stratus bench` measures.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// The kernels of a network alone, one by one: the floor under its iteration
    Kernels {
        /// A built-in experiment or an experiment file
        #[arg(value_name = "EXPERIMENT", default_value = "digits")]
        target: String,
    },
    /// What the stamps of the timeline cost: iterations with and without them in turn, in one process
    Overhead {
        /// A built-in experiment or an experiment file
        #[arg(value_name = "EXPERIMENT", default_value = "digits")]
        target: String,
        /// Pairs of iterations to compare
        #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
        pairs: u32,
    },
    /// The operation cases that the tests use, timed
    Ops {
        /// Only the cases whose name contains this
        filter: Option<String>,
    },
}
