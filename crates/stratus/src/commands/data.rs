//! `stratus data`: fetching data sets and looking at them.

use crate::cli::Globals;
use crate::errors::{Failure, Result};
use crate::output::{Output, bytes, pairs};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use stratus_data::{DataError, FetchError, OpenOptions, Progress, Split, datasets, fetch, open, stats};
use stratus_train::Experiment;
use stratus_train::compile::open_options;

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
        /// Where to put the files; without it data/<name>
        #[arg(long, value_name = "DIR")]
        path: Option<PathBuf>,
    },
    /// Decode every image of a data set and list those that cannot be
    Check {
        /// The data set, like mnist
        name: String,
        /// Where the files are; without it data/<name>
        #[arg(long, value_name = "DIR")]
        path: Option<PathBuf>,
    },
    /// Count a data set's images and classes, and measure mean and deviation of its channels
    Stats {
        /// The data set, like mnist
        name: String,
        /// Where the files are; without it data/<name>
        #[arg(long, value_name = "DIR")]
        path: Option<PathBuf>,
    },
}

/// Runs `stratus data`. `--set` sets keys of `data`, such as `data.classes`.
///
/// # Errors
/// Where the data set is unknown, cannot be fetched or cannot be read.
pub fn run(arguments: &DataArguments, globals: &Globals, output: &Output) -> Result {
    let folder =
        |name: &str, path: &Option<PathBuf>| path.clone().unwrap_or_else(|| Path::new("data").join(name));
    match &arguments.action {
        Action::List => list(output),
        Action::Fetch { name, path } => fetch_files(name, &folder(name, path), output),
        Action::Check { name, path } => check(name, &folder(name, path), &options(globals)?, output),
        Action::Stats { name, path } => statistics(name, &folder(name, path), &options(globals)?, output),
    }
}

#[derive(Serialize)]
struct Listed {
    name: &'static str,
    summary: &'static str,
}

fn list(output: &Output) -> Result {
    let sets: Vec<Listed> =
        datasets::REGISTRY.iter().map(|entry| Listed { name: entry.name, summary: entry.summary }).collect();
    output.result(&sets, || {
        pairs(&sets.iter().map(|set| (set.name.to_owned(), set.summary.to_owned())).collect::<Vec<_>>())
    })
}

#[derive(Serialize)]
struct Fetched {
    path: PathBuf,
    received_bytes: u64,
    url: Option<String>,
}

fn fetch_files(name: &str, folder: &Path, output: &Output) -> Result {
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
    let report = fetch(name, folder, &mut progress).map_err(|error| match error {
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

#[derive(Serialize)]
struct Part {
    split: &'static str,
    images: usize,
    shape: Option<[usize; 3]>,
    images_per_class: Vec<u64>,
    mean: Vec<f32>,
    std: Vec<f32>,
}

fn options(globals: &Globals) -> std::result::Result<OpenOptions, Failure> {
    Ok(open_options(&Experiment::default().with_overrides(&globals.set)?))
}

#[derive(Serialize)]
struct Checked {
    split: &'static str,
    images: usize,
    damaged: Vec<Damaged>,
}

#[derive(Serialize)]
struct Damaged {
    sample: String,
    problem: String,
}

fn check(name: &str, folder: &Path, options: &OpenOptions, output: &Output) -> Result {
    // Every image is decoded, which finds what a look at beginning and end would find, and the data set opens whatever is damaged.
    let entry = datasets::entry(name).map_err(data_failure)?;
    let verify = options.verify && !entry.files.is_empty();
    let options = OpenOptions { verify, skip_damaged: true, ..options.clone() };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut parts = Vec::new();
    for split in [Split::Train, Split::Test] {
        let set = open(name, folder, split, &options).map_err(data_failure)?;
        let damaged = stats::damaged_samples(set.as_ref(), threads).map_err(data_failure)?;
        let damaged = damaged
            .into_iter()
            .map(|(index, problem)| Damaged { sample: set.sample_name(index as usize), problem })
            .collect();
        parts.push(Checked { split: split.name(), images: set.len(), damaged });
    }
    let found: usize = parts.iter().map(|part| part.damaged.len()).sum();
    output.result(&parts, || {
        let line = |part: &Checked| {
            let damaged: String = part
                .damaged
                .iter()
                .map(|Damaged { sample, problem }| format!("\n  {sample}: {problem}"))
                .collect();
            format!("{}: {} images, {} damaged{damaged}", part.split, part.images, part.damaged.len())
        };
        parts.iter().map(line).collect::<Vec<_>>().join("\n")
    })?;
    if found > 0 {
        return Err(Failure::failed(format!("damaged images: {found}"))
            .hint("replace or remove them, or train without them: data.on_bad_sample = \"skip\""));
    }
    Ok(())
}

fn statistics(name: &str, folder: &Path, options: &OpenOptions, output: &Output) -> Result {
    let mut parts = Vec::new();
    // The parts that MNIST and its like are published in; their test part is also what validates.
    for split in [Split::Train, Split::Test] {
        let set = open(name, folder, split, options).map_err(data_failure)?;
        let images_per_class = stats::class_frequencies(set.as_ref()).map_err(data_failure)?;
        let channels = stats::channel_statistics(set.as_ref()).map_err(data_failure)?;
        parts.push(Part {
            split: split.name(),
            images: set.len(),
            shape: set.sample_shape(),
            images_per_class,
            mean: channels.mean,
            std: channels.std,
        });
    }
    output.result(&parts, || {
        let blocks: Vec<String> = parts
            .iter()
            .map(|part| {
                let shape = part.shape.map_or("of several sizes".to_owned(), |[channels, height, width]| {
                    format!("{channels} × {height} × {width}")
                });
                let each: Vec<String> = part.images_per_class.iter().map(u64::to_string).collect();
                pairs(&[
                    (part.split.to_owned(), format!("{} images, {shape}", part.images)),
                    ("  per class".to_owned(), each.join(" ")),
                    ("  mean".to_owned(), decimals(&part.mean)),
                    ("  std".to_owned(), decimals(&part.std)),
                ])
            })
            .collect();
        blocks.join("\n")
    })
}

fn decimals(numbers: &[f32]) -> String {
    numbers.iter().map(|number| format!("{number:.4}")).collect::<Vec<_>>().join(" ")
}

/// A name that is none is wrong usage; data that is not as it should be is a failure.
fn data_failure(error: DataError) -> Failure {
    match error {
        DataError::UnknownDataset { .. } => Failure::usage(error),
        error => Failure::failed(error),
    }
}
