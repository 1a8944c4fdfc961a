//! `stratus data fetch`: downloads the files of a published data set to a folder and verifies them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use stratus_data::{FetchError, FetchReport, Progress};

use super::to_failure;
use crate::errors::{Failure, Result};
use crate::output::{Output, key_value_list};
use stratus_base::text::bytes;

#[derive(Serialize)]
struct Fetched {
    path: PathBuf,
    received_bytes: u64,
    url: Option<String>,
}

/// Fetches the missing files of a published data set, with its progress as messages.
pub(super) fn download(name: &str, folder: &Path, output: &Output) -> Result<FetchReport> {
    let mut last_message_at = Instant::now();
    let mut progress = |progress: Progress<'_>| match progress {
        Progress::Started { file, url, .. } => output.message(&format!("{file}: fetching from {url}")),
        Progress::Advanced { file, done, total } if last_message_at.elapsed() > Duration::from_secs(2) => {
            last_message_at = Instant::now();
            output.message(&format!("{file}: {} of {}", bytes(done), bytes(total)));
        }
        Progress::Failed { file, cause, .. } => output.warning(&format!("{file}: {cause}")),
        _ => {}
    };
    stratus_data::fetch(name, folder, &mut progress).map_err(|error| match error {
        FetchError::Data(error) => to_failure(error),
        error => Failure::failed(error),
    })
}

pub(super) fn fetch(name: &str, folder: &Path, output: &Output) -> Result {
    let report = download(name, folder, output)?;
    let files: Vec<Fetched> = report
        .files
        .into_iter()
        .map(|file| Fetched { path: file.path, received_bytes: file.received, url: file.url })
        .collect();
    output.print_wrapped(&files, || {
        let state = |file: &Fetched| {
            if file.url.is_some() {
                format!("fetched, {}", bytes(file.received_bytes))
            } else {
                "already present".into()
            }
        };
        key_value_list(
            &files.iter().map(|file| (file.path.display().to_string(), state(file))).collect::<Vec<_>>(),
        )
    })
}
