//! `stratus data check`: every sample is decoded, and what is wrong is listed: damaged and unlabelled samples, masks that do not fit, classes
//! without a sample.

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
}

#[derive(Serialize)]
struct Damaged {
    sample: String,
    problem: String,
}

impl Checked {
    fn problems(&self) -> usize {
        self.damaged.len() + self.unlabelled.len() + self.empty_classes.len()
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
        for Damaged { sample, problem } in &self.damaged {
            lines.push_str(&format!("\n  {sample}: {problem}"));
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
    // Every image is decoded, which finds what a look at beginning and end would find, and the data set opens whatever is damaged.
    let entry = datasets::entry(name).map_err(data_failure)?;
    let verify = options.verify && !entry.files.is_empty();
    let options = OpenOptions { verify, skip_damaged: true, ..options.clone() };
    let mut checked = Vec::new();
    for Part { split, set } in parts(name, folder, &options, output)? {
        let found = stats::survey(set.as_ref(), threads()).map_err(data_failure)?;
        let named = |index: u32| set.sample_name(index as usize);
        let empty_classes = found.empty_classes().map(|class| set.class_name(class)).collect();
        let damaged = found.damaged.into_iter();
        checked.push(Checked {
            split: split.name(),
            images: found.samples,
            damaged: damaged.map(|(index, problem)| Damaged { sample: named(index), problem }).collect(),
            unlabelled: found.unlabelled.into_iter().map(named).collect(),
            empty_classes,
        });
    }
    output.result(&checked, || checked.iter().map(Checked::lines).collect::<Vec<_>>().join("\n"))?;
    let problems: usize = checked.iter().map(Checked::problems).sum();
    if problems > 0 {
        let failure = Failure::failed(format!("damaged or unlabelled images, and empty classes: {problems}"));
        let damaged = checked.iter().any(|part| !part.damaged.is_empty());
        return Err(if damaged {
            failure
                .hint("replace or remove what is damaged, or train without it: data.on_bad_sample = \"skip\"")
        } else {
            failure
        });
    }
    Ok(())
}
