//! `stratus data check`: decodes every sample and lists problems: damaged and unlabelled samples, masks of
//! the wrong size, classes without samples, the same image in two classes or in two splits, and files that
//! are no images.

use std::path::Path;

use serde::Serialize;
use stratus_data::duplicates::{self, HashedImage};
use stratus_data::{Dataset, IgnoredFiles, OpenOptions, datasets, stats};

use super::parts::{DatasetPart, open_parts, print_unusual, threads};
use super::targets::TargetSummary;
use super::to_failure;
use crate::errors::{Failure, Result};
use crate::output::{Output, printable};

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
    /// Labels or numbers that are not known, in all images together.
    missing_targets: u64,
    /// True if images have labels or numbers instead of a class.
    #[serde(skip)]
    has_targets: bool,
    /// Numbers that are the same in all images.
    constant_targets: Vec<String>,
    /// The number of files between the images that are no images, and the first of them. They are no samples.
    ignored_files: usize,
    ignored_names: Vec<String>,
    /// Files whose checksum differs from the published one.
    damaged_files: Vec<DamagedItem>,
    /// Images with the same pixels as an earlier one of another class, or with other labels or numbers.
    in_two_classes: Vec<EqualImages>,
    /// Images with the same pixels as one of an earlier split.
    in_another_split: Vec<EqualImages>,
    /// The number of images with the same pixels as an earlier one of this split, and no other class.
    repeated: usize,
}

/// Two images with the same pixels.
#[derive(Serialize)]
struct EqualImages {
    name: String,
    other: String,
}

/// The maximum number of lines of one kind.
const MAX_LISTED_PAIRS: usize = 20;

/// A damaged sample or file.
#[derive(Serialize)]
struct DamagedItem {
    name: String,
    problem: String,
}

impl SplitCheck {
    fn problems(&self) -> usize {
        self.damaged.len()
            + self.unlabelled.len()
            + self.empty_classes.len()
            + self.damaged_files.len()
            + self.in_two_classes.len()
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
        add(usize::try_from(self.missing_targets).unwrap_or(usize::MAX), "missing labels or numbers");
        add(self.constant_targets.len(), "constant numbers");
        let [with_others, relation_to_others] = if self.has_targets {
            ["also with other labels", "the same image, with other labels or numbers"]
        } else {
            ["also in another class", "the same image, in another class"]
        };
        add(self.in_two_classes.len(), with_others);
        add(self.in_another_split.len(), "also in another split");
        add(self.repeated, "repeated");
        add(self.ignored_files, if self.ignored_files == 1 { "other file" } else { "other files" });
        for DamagedItem { name, problem } in self.damaged.iter().chain(&self.damaged_files) {
            lines.push_str(&format!("\n  {}: {problem}", printable(name)));
        }
        for sample in &self.unlabelled {
            lines.push_str(&format!("\n  {}: unlabelled", printable(sample)));
        }
        for class in &self.empty_classes {
            lines.push_str(&format!("\n  {}: no images", printable(class)));
        }
        for number in &self.constant_targets {
            lines.push_str(&format!("\n  {}: the same number in all images", printable(number)));
        }
        for file in &self.ignored_names {
            lines.push_str(&format!("\n  {}: not an image, ignored", printable(file)));
        }
        if self.ignored_files > self.ignored_names.len() {
            let more = self.ignored_files - self.ignored_names.len();
            lines.push_str(&format!("\n  {more} more: not images, ignored"));
        }
        for (pairs, relation) in [
            (&self.in_two_classes, relation_to_others),
            (&self.in_another_split, "the same image, in another split"),
        ] {
            for EqualImages { name, other } in pairs.iter().take(MAX_LISTED_PAIRS) {
                lines.push_str(&format!("\n  {}: {relation}: {}", printable(name), printable(other)));
            }
            if pairs.len() > MAX_LISTED_PAIRS {
                let more = pairs.len() - MAX_LISTED_PAIRS;
                lines.push_str(&format!("\n  {more} more: {relation} (--json lists them)"));
            }
        }
        lines
    }
}

/// The images of a split that are equal to an earlier one: those of another class, and the number of others.
fn equal_within(set: &dyn Dataset, hashes: &[HashedImage]) -> (Vec<EqualImages>, usize) {
    let (mut in_two_classes, mut repeated) = (Vec::new(), 0);
    let name = |image: &HashedImage| set.sample_name(image.index as usize);
    for group in duplicates::equal_images(hashes) {
        let Some((first, others)) = group.split_first() else { continue };
        for other in others {
            match other.has_another_class(first) {
                true => in_two_classes.push(EqualImages { name: name(other), other: name(first) }),
                false => repeated += 1,
            }
        }
    }
    in_two_classes.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    (in_two_classes, repeated)
}

pub(super) fn check(name: &str, folder: &Path, options: &OpenOptions, output: &Output) -> Result {
    // The quick check on opening (of first and last bytes) is skipped: every image is decoded anyway, and the
    // check would reject a damaged data set before its problems are listed.
    let entry = datasets::entry(name).map_err(to_failure)?;
    let verify = options.verify && !entry.files.is_empty();
    let options = OpenOptions { verify, skip_damaged: true, ..options.clone() };
    let mut checked = Vec::new();
    let parts = open_parts(name, folder, &options, output)?;
    print_unusual(parts.iter().map(|part| part.set.as_ref()), output);
    let mut all_hashes: Vec<Vec<HashedImage>> = Vec::new();
    let mut listed = IgnoredFiles::default();
    for &DatasetPart { name: split, ref set } in &parts {
        let (found, hashes) = stats::compute_stats_and_hashes(set.as_ref(), threads()).map_err(to_failure)?;
        let (in_two_classes, repeated) = equal_within(set.as_ref(), &hashes);
        let in_another_split = all_hashes.iter().zip(&parts).flat_map(|(others, part)| {
            let common = duplicates::common_images(&hashes, others);
            common.into_iter().map(|[index, other]| EqualImages {
                name: set.sample_name(index as usize),
                other: part.set.sample_name(other as usize),
            })
        });
        let in_another_split = in_another_split.collect();
        all_hashes.push(hashes);
        // Several splits may be of one folder.
        let ignored_files = Some(set.ignored_files()).filter(|files| *files != listed).unwrap_or_default();
        listed.extend(&ignored_files);
        let named = |index: u32| set.sample_name(index as usize);
        let empty_classes = found.empty_classes().map(|class| set.class_name(class)).collect();
        let targets = TargetSummary::new(set.as_ref());
        let damaged = |(name, problem)| DamagedItem { name, problem };
        let samples = found.damaged.into_iter().map(|(index, problem)| (named(index), problem));
        checked.push(SplitCheck {
            split,
            images: found.samples,
            damaged: samples.map(damaged).collect(),
            unlabelled: found.unlabelled.into_iter().map(named).collect(),
            empty_classes,
            assumed_upright: set.assumed_upright(),
            has_targets: targets.is_some(),
            missing_targets: targets.as_ref().map_or(0, TargetSummary::missing),
            constant_targets: targets.map(|targets| targets.constants()).unwrap_or_default(),
            in_two_classes,
            in_another_split,
            repeated,
            ignored_files: ignored_files.count(),
            ignored_names: ignored_files.examples().to_vec(),
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
    } else if checked.iter().any(|part| !part.in_two_classes.is_empty()) {
        failure.with_hint(if checked.iter().any(|part| part.has_targets) {
            "decide which labels or numbers each image has"
        } else {
            "decide which class each image has, and remove it from the other"
        })
    } else {
        failure
    })
}
