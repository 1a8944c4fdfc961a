//! `stratus data check` decodes every sample and lists what is wrong: damaged and unlabelled samples, masks
//! of the wrong size, classes without a sample.

use std::path::Path;

use serde::Serialize;
use stratus_data::{OpenOptions, datasets, stats};

use super::data_failure;
use super::parts::{Part, parts, threads};
use crate::errors::{Failure, Result};
use crate::output::Output;

#[derive(Serialize)]
struct Checked {
    split: &'static str,
    images: usize,
    damaged: Vec<Damaged>,
    unlabelled: Vec<String>,
    empty_classes: Vec<String>,
    /// Images that an EXIF orientation turns and whose annotations fit them either way: these were taken as
    /// of the upright image.
    assumed_upright: usize,
    /// Files that are not the ones whose checksums are known.
    damaged_files: Vec<Damaged>,
}

/// A sample or a file.
#[derive(Serialize)]
struct Damaged {
    name: String,
    problem: String,
}

impl Checked {
    fn problems(&self) -> usize {
        self.damaged.len() + self.unlabelled.len() + self.empty_classes.len() + self.damaged_files.len()
    }

    /// One line, and one more for each problem.
    fn lines(&self) -> String {
        let mut lines = format!("{}: {} images, {} damaged", self.split, self.images, self.damaged.len());
        let mut more = |count: usize, what: &str| {
            if count > 0 {
                lines.push_str(&format!(", {count} {what}"));
            }
        };
        more(self.unlabelled.len(), "unlabelled");
        more(self.empty_classes.len(), "classes without an image");
        more(self.damaged_files.len(), "files with another checksum");
        more(self.assumed_upright, "turned by EXIF, whose annotations are taken as of the upright image");
        for Damaged { name, problem } in self.damaged.iter().chain(&self.damaged_files) {
            lines.push_str(&format!("\n  {name}: {problem}"));
        }
        for sample in &self.unlabelled {
            lines.push_str(&format!("\n  {sample}: belongs to no class, nor does a pixel of it"));
        }
        for class in &self.empty_classes {
            lines.push_str(&format!("\n  {class}: no image has this class"));
        }
        lines
    }
}

pub(super) fn check(name: &str, folder: &Path, options: &OpenOptions, output: &Output) -> Result {
    // Every image is decoded, so the quick check at opening (first and last bytes) is left out: it would
    // refuse a damaged data set before it is listed.
    let entry = datasets::entry(name).map_err(data_failure)?;
    let verify = options.verify && !entry.files.is_empty();
    let options = OpenOptions { verify, skip_damaged: true, ..options.clone() };
    let mut checked = Vec::new();
    for Part { name: split, set } in parts(name, folder, &options, output)? {
        let found = stats::survey(set.as_ref(), threads()).map_err(data_failure)?;
        let named = |index: u32| set.sample_name(index as usize);
        let empty_classes = found.empty_classes().map(|class| set.class_name(class)).collect();
        let damaged = |(name, problem)| Damaged { name, problem };
        let samples = found.damaged.into_iter().map(|(index, problem)| (named(index), problem));
        checked.push(Checked {
            split,
            images: found.samples,
            damaged: samples.map(damaged).collect(),
            unlabelled: found.unlabelled.into_iter().map(named).collect(),
            empty_classes,
            assumed_upright: set.assumed_upright(),
            damaged_files: set.damaged_files().map_err(data_failure)?.into_iter().map(damaged).collect(),
        });
    }
    output.result(&checked, || checked.iter().map(Checked::lines).collect::<Vec<_>>().join("\n"))?;
    let problems: usize = checked.iter().map(Checked::problems).sum();
    if problems == 0 {
        return Ok(());
    }
    let failure = Failure::failed(format!("what is wrong with the data set: {problems}"));
    let any = |list: fn(&Checked) -> &Vec<Damaged>| checked.iter().any(|part| !list(part).is_empty());
    Err(if any(|part| &part.damaged_files) {
        failure.hint("copy the files again from where they are whole, or pack them again")
    } else if any(|part| &part.damaged) {
        failure.hint("replace or remove what is damaged, or train without it: data.on_bad_sample = \"skip\"")
    } else {
        failure
    })
}
