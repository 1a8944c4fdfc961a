//! `stratus data`: downloads, checks and inspects data sets.

mod check;
mod fetch;
mod list;
pub mod location;
mod parts;
mod shard;
mod show;
mod stats;
mod sync;
mod targets;

use super::target::nearest_path;
use crate::errors::{Failure, Result};
use crate::globals::Globals;
use crate::output::Output;
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use stratus_base::text::shell_path;
use stratus_data::{DataError, OpenOptions};
use stratus_experiment::Experiment;
use stratus_train::input::open_options;

/// Arguments of `stratus data`.
#[derive(Args, Debug)]
pub struct DataArguments {
    /// The subcommand.
    #[command(subcommand)]
    pub command: DataCommand,
}

/// Subcommands of `stratus data`.
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// List the known data sets
    List,
    /// Download and verify a data set; files that are already intact are kept
    Fetch {
        /// Data set, like mnist
        name: String,
        /// Destination folder [default: data/NAME]
        #[arg(long, value_name = "DIR")]
        path: Option<PathBuf>,
    },
    /// Decode every image and mask; list damaged and unlabelled samples, empty classes, and images that
    /// occur in two classes or two splits
    Check {
        /// Data set, like mnist, or folder, archive or table of images
        name: String,
        /// Folder of the data set [default: data/NAME]
        #[arg(long, value_name = "DIR", visible_alias = "data")]
        path: Option<PathBuf>,
    },
    /// Pack a data set into tar shards (WebDataset) with an index, for fast sequential reading from disk or a
    /// remote store
    Shard(shard::ShardArguments),
    /// Show statistics: images per class, class weights, channel means and standard deviations, image sizes
    Stats {
        /// Data set, like mnist, or folder, archive or table of images
        name: String,
        /// Folder of the data set [default: data/NAME]
        #[arg(long, value_name = "DIR")]
        path: Option<PathBuf>,
    },
    /// Copy missing images of the classes in data.classes from a remote folder
    Sync(sync::SyncArguments),
    /// Draw a contact sheet of samples, augmented and labelled as in training
    Show(show::ShowArguments),
}

/// Runs `stratus data`. `--set` sets keys of `data`, such as `data.classes`.
///
/// # Errors
/// If the data set is unknown, or cannot be fetched or read.
pub fn run(arguments: &DataArguments, globals: &Globals, output: &Output) -> Result {
    match &arguments.command {
        DataCommand::List => list::list(output),
        DataCommand::Fetch { name, path } => {
            let folder = path.clone().unwrap_or_else(|| Path::new("data").join(name));
            fetch::fetch(name, &folder, output)
        }
        DataCommand::Check { name, path } => {
            let (name, folder) = parts::resolve_dataset(name, path.as_deref());
            check::check(&name, &folder, &options(globals)?, output)
        }
        DataCommand::Shard(arguments) => shard::shard(arguments, &options(globals)?, output),
        DataCommand::Stats { name, path } => {
            let (name, folder) = parts::resolve_dataset(name, path.as_deref());
            stats::stats(&name, &folder, &options(globals)?, output)
        }
        DataCommand::Sync(arguments) => sync::run(arguments, &options(globals)?, output),
        DataCommand::Show(arguments) => {
            let (name, folder) = parts::resolve_dataset(&arguments.name, arguments.path.as_deref());
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

/// Converts an error: an unknown data set is a usage error, invalid data a failure. A name that is no data
/// set may be a misspelt folder of images.
pub(super) fn to_failure(error: DataError) -> Failure {
    match error {
        DataError::UnknownDataset { ref name, nearest: None, .. } => match nearest_path(Path::new(name)) {
            Some(near) => {
                let near = shell_path(&near);
                Failure::usage(error).with_hint(format!("to read a folder of images: did you mean {near}?"))
            }
            None => Failure::usage(error),
        },
        DataError::UnknownDataset { .. } => Failure::usage(error),
        DataError::Library(error) => error.into(),
        error => Failure::failed(error),
    }
}
