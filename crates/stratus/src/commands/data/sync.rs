//! `stratus data sync` copies the images of chosen classes from a remote folder; what is there already is
//! kept.

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
    /// The remote folder with train/<class>/<image> and so on: an address like
    /// sftp://user@host/photographs, or a local folder
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

/// Copies the classes listed by `data.classes` (default: all), and of each `data.images_per_class` training
/// images (default: all).
pub(super) fn bring(arguments: &SyncArguments, options: &OpenOptions, output: &Output) -> Result {
    let SyncArguments { source, target } = arguments;
    let store = Store::open_with(source, options.retry_policy())
        .map_err(|error| data_failure(DataError::from(error)))?;
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
            ("copied".to_owned(), format!("{files} files, {}", bytes(length))),
            ("were there".to_owned(), format!("{kept} files")),
        ])
    })
}
