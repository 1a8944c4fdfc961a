//! `stratus data check`: every image is decoded, and those that cannot be are listed.

use std::path::Path;

use serde::Serialize;
use stratus_data::{OpenOptions, Split, datasets, open, stats};

use super::data_failure;
use crate::errors::{Failure, Result};
use crate::output::Output;

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

pub(super) fn check(name: &str, folder: &Path, options: &OpenOptions, output: &Output) -> Result {
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
