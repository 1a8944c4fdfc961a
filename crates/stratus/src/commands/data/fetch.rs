//! `stratus data fetch` downloads a published data set's files into a folder and checks them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use stratus_data::{FetchError, Progress};

use super::data_failure;
use crate::errors::{Failure, Result};
use crate::output::{Output, bytes, pairs};

#[derive(Serialize)]
struct Fetched {
    path: PathBuf,
    received_bytes: u64,
    url: Option<String>,
}

pub(super) fn fetch(name: &str, folder: &Path, output: &Output) -> Result {
    let mut said = Instant::now();
    let mut progress = |progress: Progress<'_>| match progress {
        Progress::Started { file, url, .. } => output.message(&format!("{file}: fetching from {url}")),
        Progress::Advanced { file, done, total } if said.elapsed() > Duration::from_secs(2) => {
            said = Instant::now();
            output.message(&format!("{file}: {} of {}", bytes(done), bytes(total)));
        }
        Progress::Failed { file, cause, .. } => output.warning(&format!("{file}: {cause}")),
        _ => {}
    };
    let report = stratus_data::fetch(name, folder, &mut progress).map_err(|error| match error {
        FetchError::Data(error) => data_failure(error),
        error => Failure::failed(error),
    })?;
    let files: Vec<Fetched> = report
        .files
        .into_iter()
        .map(|file| Fetched { path: file.path, received_bytes: file.received, url: file.url })
        .collect();
    output.result(&files, || {
        let state = |file: &Fetched| {
            if file.url.is_some() {
                format!("fetched, {}", bytes(file.received_bytes))
            } else {
                "was there".into()
            }
        };
        pairs(&files.iter().map(|file| (file.path.display().to_string(), state(file))).collect::<Vec<_>>())
    })
}
