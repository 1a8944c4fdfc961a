//! `stratus eval`: its arguments.

use clap::Args;
use std::path::PathBuf;

/// Arguments of `stratus eval`: measures a run's weights on a data set's test images.
#[derive(Args, Debug)]
pub struct EvalArguments {
    /// The run directory
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// A checkpoint of the run by its name; without it the newest good one
    #[arg(long, value_name = "NAME")]
    pub checkpoint: Option<String>,
}
