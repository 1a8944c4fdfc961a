//! `stratus data check`: decodes every sample and lists problems: damaged and unlabelled samples, masks of
//! the wrong size, classes without samples.

use std::path::Path;

use serde::Serialize;
use stratus_data::{OpenOptions, datasets, stats};

use super::parts::{DatasetPart, open_parts, threads};
use super::to_failure;
use crate::errors::{Failure, Result};
use crate::output::Output;

#[derive(Serialize)]
struct SplitCheck {
    split: &'static str,
    images: usize,
    damaged: Vec<DamagedItem>,
    unlabelled: Vec<String>,
    empty_classes: Vec<String>,
    /// Images that EXIF rotates and whose annotations fit both orientations; they are assumed to be of the
    /// upright image.
    assumed_upright: usize,
    /// Files whose checksum differs from the published one.
    damaged_files: Vec<DamagedItem>,
}

/// A damaged sample or file.
#[derive(Serialize)]
struct DamagedItem {
    name: String,
    problem: String,
}

impl SplitCheck {
    fn problems(&self) -> usize {
        self.damaged.len() + self.unlabelled.len() + self.empty_classes.len() + self.damaged_files.len()
    }

    /// Renders a line, and one more for each problem.
    fn render(&self) -> String {
        let mut lines = format!("{}: {} images, {} damaged", self.split, self.images, self.damaged.len());
        let mut add = |count: usize, what: &str| {
            if count > 0 {
                lines.push_str(&format!(", {count} {what}"));
            }
        };
        add(self.unlabelled.len(), "unlabelled");
        add(self.empty_classes.len(), "classes without images");
        add(self.damaged_files.len(), "files with another checksum");
        add(self.assumed_upright, "rotated by EXIF, with annotations assumed to be of the upright image");
        for DamagedItem { name, problem } in self.damaged.iter().chain(&self.damaged_files) {
            lines.push_str(&format!("\n  {name}: {problem}"));
        }
        for sample in &self.unlabelled {
            lines.push_str(&format!("\n  {sample}: unlabelled"));
        }
        for class in &self.empty_classes {
            lines.push_str(&format!("\n  {class}: no images"));
        }
        lines
    }
}

pub(super) fn check(name: &str, folder: &Path, options: &OpenOptions, output: &Output) -> Result {
    // The quick check on opening (of first and last bytes) is skipped: every image is decoded anyway, and the
    // check would reject a damaged data set before its problems are listed.
    let entry = datasets::entry(name).map_err(to_failure)?;
    let verify = options.verify && !entry.files.is_empty();
    let options = OpenOptions { verify, skip_damaged: true, ..options.clone() };
    let mut checked = Vec::new();
    for DatasetPart { name: split, set } in open_parts(name, folder, &options, output)? {
        let found = stats::compute_stats(set.as_ref(), threads()).map_err(to_failure)?;
        let named = |index: u32| set.sample_name(index as usize);
        let empty_classes = found.empty_classes().map(|class| set.class_name(class)).collect();
        let damaged = |(name, problem)| DamagedItem { name, problem };
        let samples = found.damaged.into_iter().map(|(index, problem)| (named(index), problem));
        checked.push(SplitCheck {
            split,
            images: found.samples,
            damaged: samples.map(damaged).collect(),
            unlabelled: found.unlabelled.into_iter().map(named).collect(),
            empty_classes,
            assumed_upright: set.assumed_upright(),
            damaged_files: set.verify_files().map_err(to_failure)?.into_iter().map(damaged).collect(),
        });
    }
    output
        .print_wrapped(&checked, || checked.iter().map(SplitCheck::render).collect::<Vec<_>>().join("\n"))?;
    let problems: usize = checked.iter().map(SplitCheck::problems).sum();
    if problems == 0 {
        return Ok(());
    }
    let failure =
        Failure::failed(format!("found {problems} problem{}", if problems == 1 { "" } else { "s" }));
    let any_split_has =
        |list: fn(&SplitCheck) -> &Vec<DamagedItem>| checked.iter().any(|part| !list(part).is_empty());
    Err(if any_split_has(|part| &part.damaged_files) {
        failure.with_hint("copy the files again from an intact source, or pack them again")
    } else if any_split_has(|part| &part.damaged) {
        failure.with_hint("replace or remove damaged samples, or skip them: data.on_bad_sample = \"skip\"")
    } else {
        failure
    })
}
