//! `stratus eval`: measures a run's weights on its validation images.

use crate::cli::Globals;
use crate::errors::{Failure, Result};
use crate::output::{Output, pairs};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use stratus_run::RunDir;
use stratus_train::evaluate::{Scores, of_run};

/// Arguments of `stratus eval`.
#[derive(Args, Debug)]
pub struct EvalArguments {
    /// The run directory
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// The checkpoint of the run after this many iterations; without it the newest good one
    #[arg(long, value_name = "ITERATION")]
    pub checkpoint: Option<u64>,
}

#[derive(Serialize)]
struct Report {
    run: String,
    iteration: u64,
    weights_sha256: String,
    #[serde(flatten)]
    scores: Scores,
}

/// Runs `stratus eval`. `--set` overrides keys of the run's experiment, such as `data.path`.
///
/// # Errors
/// Where the run, its checkpoint or its data cannot be read.
pub fn run(arguments: &EvalArguments, globals: &Globals, output: &Output) -> Result {
    RunDir::open(&arguments.run).map_err(Failure::usage)?;
    let mut warn = |text: &str| output.warning(text);
    let evaluated =
        of_run(&arguments.run, arguments.checkpoint, &globals.set, &mut warn).map_err(Failure::from)?;
    let report = Report {
        run: arguments.run.display().to_string(),
        iteration: evaluated.iteration,
        weights_sha256: evaluated.weights_sha256,
        scores: evaluated.scores,
    };
    output.result(&report, || {
        pairs(&[
            ("run".to_owned(), report.run.clone()),
            ("iteration".to_owned(), report.iteration.to_string()),
            ("weights".to_owned(), report.weights_sha256.clone()),
            ("samples".to_owned(), report.scores.samples.to_string()),
            ("loss".to_owned(), format!("{:.5}", report.scores.loss)),
            ("top-1".to_owned(), format!("{:.2} %", 100.0 * report.scores.top1)),
            ("top-5".to_owned(), format!("{:.2} %", 100.0 * report.scores.top5)),
        ])
    })
}
