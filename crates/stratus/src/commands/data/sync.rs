//! `stratus data sync`: the images of some classes are brought from elsewhere, as far as they are missing.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use stratus_data::store::Store;
use stratus_data::sync::{SyncOptions, Synced, class_list, sync};
use stratus_data::{DataError, OpenOptions};

use super::data_failure;
use crate::errors::Result;
use crate::output::{Output, bytes, pairs};

/// Arguments of `stratus data sync`.
#[derive(Args, Debug)]
pub struct SyncArguments {
    /// Where the images are, train/<class>/<image> and so on: an address like sftp://user@host/photographs, or a folder
    #[arg(value_name = "SRC")]
    source: String,
    /// The folder to bring them to
    #[arg(value_name = "DIR")]
    target: PathBuf,
}

#[derive(Serialize)]
struct Done {
    files: usize,
    bytes: u64,
    kept: usize,
}

/// Brings the classes that `data.classes` lists, and of each as many training images as `data.images_per_class` says; without them all.
pub(super) fn bring(arguments: &SyncArguments, options: &OpenOptions, output: &Output) -> Result {
    let SyncArguments { source, target } = arguments;
    let store =
        Store::open_with(source, options.patience()).map_err(|error| data_failure(DataError::from(error)))?;
    let classes = options.class_list.as_deref().map(class_list).transpose().map_err(data_failure)?;
    let wanted = SyncOptions { classes, images_per_class: options.images_per_class };
    let mut said = Instant::now();
    let mut progress = |done: [u64; 2], all: [u64; 2]| {
        if said.elapsed() > Duration::from_secs(2) {
            said = Instant::now();
            let [files, length] = done;
            output.message(&format!("{files} of {} files, {} of {}", all[0], bytes(length), bytes(all[1])));
        }
    };
    let Synced { files, bytes: length, kept } =
        sync(&store, target, &wanted, &mut progress).map_err(data_failure)?;
    output.result(&Done { files, bytes: length, kept }, || {
        pairs(&[
            ("brought".to_owned(), format!("{files} files, {}", bytes(length))),
            ("were there".to_owned(), format!("{kept} files")),
        ])
    })
}
