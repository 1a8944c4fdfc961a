//! `stratus data sync`: copies missing images of chosen classes from a remote folder.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use stratus_data::store::Store;
use stratus_data::sync::{SyncOptions, SyncReport, class_list, sync};
use stratus_data::{DataError, OpenOptions};

use super::to_failure;
use crate::errors::Result;
use crate::output::{Output, key_value_list};
use stratus_base::text::{bytes, counted};

/// Arguments of `stratus data sync`.
#[derive(Args, Debug)]
pub struct SyncArguments {
    /// Remote folder with train/<class>/<image> and so on: an address like sftp://user@host/images, or a
    /// local folder
    #[arg(value_name = "SRC")]
    source: String,
    /// Destination folder
    #[arg(value_name = "DIR")]
    target: PathBuf,
}

#[derive(Serialize)]
struct CopyReport {
    files: usize,
    bytes: u64,
    kept: usize,
}

/// Copies the classes of `data.classes` (default: all), with `data.images_per_class` training images of each
/// (default: all).
pub(super) fn run(arguments: &SyncArguments, options: &OpenOptions, output: &Output) -> Result {
    let SyncArguments { source, target } = arguments;
    let store = Store::open_with_policy(source, options.retry_policy())
        .map_err(|error| to_failure(DataError::from(error)))?;
    let classes = options.class_list.as_deref().map(class_list).transpose().map_err(to_failure)?;
    let sync_options = SyncOptions { classes, images_per_class: options.images_per_class };
    let mut last_message_at = Instant::now();
    let mut progress = |done: [u64; 2], all: [u64; 2]| {
        if last_message_at.elapsed() > Duration::from_secs(2) {
            last_message_at = Instant::now();
            let [files, length] = done;
            output.message(&format!(
                "{files} of {}, {} of {}",
                counted(all[0], "file"),
                bytes(length),
                bytes(all[1])
            ));
        }
    };
    let SyncReport { downloaded: files, bytes: length, kept } =
        sync(&store, target, &sync_options, &mut progress).map_err(to_failure)?;
    output.print_wrapped(&CopyReport { files, bytes: length, kept }, || {
        key_value_list(&[
            ("copied".to_owned(), format!("{}, {}", counted(files as u64, "file"), bytes(length))),
            ("already present".to_owned(), counted(kept as u64, "file")),
        ])
    })
}
