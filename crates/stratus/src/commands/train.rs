//! `stratus train`: its arguments.

use clap::Args;
use std::path::PathBuf;

/// Arguments of `stratus train`.
#[derive(Args, Debug)]
pub struct TrainArguments {
    /// A built-in experiment (digits), an experiment file, or a run directory to continue
    #[arg(value_name = "EXPERIMENT|RUN")]
    pub target: String,
    /// Directory of the run; without it the next free number under runs/<experiment>/
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Measure kernels anew instead of repeating the choices kept for this machine and network
    #[arg(long)]
    pub remeasure: bool,
}
