//! `stratus data`: fetching data sets and looking at them.

mod check;
mod fetch;
mod list;
mod parts;
mod shard;
mod show;
mod stats;
mod sync;

use crate::cli::Globals;
use crate::errors::{Failure, Result};
use crate::output::Output;
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use stratus_data::{DataError, OpenOptions};
use stratus_train::Experiment;
use stratus_train::input::open_options;

/// Arguments of `stratus data`.
#[derive(Args, Debug)]
pub struct DataArguments {
    /// What to do.
    #[command(subcommand)]
    pub action: Action,
}

/// What `stratus data` does.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// List the data sets
    List,
    /// Download a data set's files and check them; files that are there and whole are kept
    Fetch {
        /// The data set, like mnist
        name: String,
        /// Where to put the files; without it data/NAME
        #[arg(long, value_name = "DIR")]
        path: Option<PathBuf>,
    },
    /// Decode every image and mask of a data set and list what is wrong: damage, missing labels, empty
    /// classes
    Check {
        /// The data set, like mnist, or a folder of photographs
        name: String,
        /// Where the files are; without it data/NAME
        #[arg(long, value_name = "DIR")]
        path: Option<PathBuf>,
    },
    /// Pack a data set into tar shards (WebDataset) with an index, for fast sequential reading from disk or
    /// from a store
    Shard(shard::ShardArguments),
    /// Count a data set's images and classes, and measure its channels and sizes; weights for rare classes
    Stats {
        /// The data set, like mnist, or a folder of photographs
        name: String,
        /// Where the files are; without it data/NAME
        #[arg(long, value_name = "DIR")]
        path: Option<PathBuf>,
    },
    /// Bring the images of the classes that data.classes lists from elsewhere, as far as they are missing
    Sync(sync::SyncArguments),
    /// Draw samples as the network gets them, with their classes, on one picture
    Show(show::ShowArguments),
}

/// Runs `stratus data`. `--set` sets keys of `data`, such as `data.classes`.
///
/// # Errors
/// Where the data set is unknown, cannot be fetched or cannot be read.
pub fn run(arguments: &DataArguments, globals: &Globals, output: &Output) -> Result {
    match &arguments.action {
        Action::List => list::list(output),
        Action::Fetch { name, path } => {
            let folder = path.clone().unwrap_or_else(|| Path::new("data").join(name));
            fetch::fetch(name, &folder, output)
        }
        Action::Check { name, path } => {
            let (name, folder) = parts::named(name, path.as_deref());
            check::check(&name, &folder, &options(globals)?, output)
        }
        Action::Shard(arguments) => shard::shard(arguments, &options(globals)?, output),
        Action::Stats { name, path } => {
            let (name, folder) = parts::named(name, path.as_deref());
            stats::statistics(&name, &folder, &options(globals)?, output)
        }
        Action::Sync(arguments) => sync::bring(arguments, &options(globals)?, output),
        Action::Show(arguments) => {
            let (name, folder) = parts::named(&arguments.name, arguments.path.as_deref());
            show::show(arguments, &name, experiment(globals)?, &folder, output)
        }
    }
}

fn experiment(globals: &Globals) -> std::result::Result<Experiment, Failure> {
    Ok(Experiment::default().with_overrides(&globals.set)?)
}

fn options(globals: &Globals) -> std::result::Result<OpenOptions, Failure> {
    Ok(open_options(&experiment(globals)?))
}

/// A name that is none is wrong usage; data that is not as it should be is a failure.
pub(super) fn data_failure(error: DataError) -> Failure {
    match error {
        DataError::UnknownDataset { .. } => Failure::usage(error),
        error => Failure::failed(error),
    }
}
