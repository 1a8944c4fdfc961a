//! `stratus plan`: its arguments.

use clap::{Args, ValueEnum};

/// Arguments of `stratus plan`: what a training would do, step by step, without training.
#[derive(Args, Debug)]
pub struct PlanArguments {
    /// A built-in experiment, an experiment file or a run directory
    #[arg(value_name = "EXPERIMENT|RUN")]
    pub target: String,
    /// What to print
    #[arg(long, value_enum, default_value_t = Dump::Plan, value_name = "WHAT")]
    pub dump: Dump,
    /// Measure kernels anew and keep the new choices for this machine and network
    #[arg(long)]
    pub remeasure: bool,
}

/// The stage to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dump {
    /// Layers with shapes, parameters and cost
    Graph,
    /// Steps after lowering, fusion and differentiation
    Program,
    /// Steps with kernels, layouts and places in memory
    Plan,
}
