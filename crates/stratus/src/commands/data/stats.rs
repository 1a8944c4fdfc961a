//! `stratus data stats`: class frequencies and weights, labels or ranges of numbers, mean and standard
//! deviation of channels, image sizes.

use std::path::Path;

use serde::Serialize;
use stratus_data::stats::{DatasetStats, ImageSizes, compute_stats};
use stratus_data::{Dataset, OpenOptions};

use super::parts::{DatasetPart, open_parts, print_warnings, threads};
use super::targets::TargetSummary;
use super::to_failure;
use crate::errors::Result;
use crate::output::{Output, key_value_list, table};

/// The maximum number of damaged images listed in the text; the JSON document lists all.
const MAX_LISTED_DAMAGED: usize = 20;

#[derive(Serialize)]
struct SplitStatistics {
    split: &'static str,
    images: usize,
    /// Channels, height and width, if all images have the same shape.
    shape: Option<[usize; 3]>,
    sizes: Option<ImageSizes>,
    mean: Vec<f32>,
    std: Vec<f32>,
    /// Unlabelled pixels, if there are masks.
    ignored_pixels: Option<u64>,
    classes: Vec<Class>,
    /// The labels or numbers, if images have them instead of a class.
    #[serde(skip_serializing_if = "Option::is_none")]
    targets: Option<TargetSummary>,
    damaged: Vec<DamagedSample>,
    unlabelled: usize,
}

#[derive(Serialize)]
struct Class {
    class: usize,
    name: String,
    images: u64,
    /// Pixels of the class, if there are masks.
    pixels: Option<u64>,
    /// The fraction of the class, of images or labelled pixels.
    share: f64,
    /// The median of all classes' frequencies divided by this one's.
    weight: Option<f64>,
}

#[derive(Serialize)]
struct DamagedSample {
    sample: String,
    problem: String,
}

impl SplitStatistics {
    fn new(split: &'static str, set: &dyn Dataset, found: DatasetStats) -> Self {
        let weights = found.median_frequency_weights();
        let pixels = found.masks.as_ref().map(|masks| &masks.pixels_per_class);
        let counts = pixels.unwrap_or(&found.samples_per_class);
        let total: u64 = counts.iter().sum();
        let classes = found.samples_per_class.iter().enumerate().map(|(class, &images)| Class {
            class,
            name: set.class_name(class),
            images,
            pixels: pixels.map(|pixels| pixels[class]),
            share: counts[class] as f64 / total.max(1) as f64,
            weight: weights[class],
        });
        let targets = TargetSummary::new(set);
        let classes = if targets.is_some() { Vec::new() } else { classes.collect() };
        let (mean, std) = found.channels.map(|channels| (channels.mean, channels.std)).unwrap_or_default();
        let damaged = found
            .damaged
            .into_iter()
            .map(|(index, problem)| DamagedSample { sample: set.sample_name(index as usize), problem });
        Self {
            split,
            images: found.samples,
            shape: set.sample_shape(),
            sizes: found.sizes,
            mean,
            std,
            ignored_pixels: found.masks.as_ref().map(|masks| masks.ignored),
            classes,
            targets,
            damaged: damaged.collect(),
            unlabelled: found.unlabelled.len(),
        }
    }

    fn render(&self) -> String {
        let size = |[height, width]: [u32; 2]| format!("{height} × {width}");
        let shape = match (self.shape, self.sizes) {
            (Some([channels, height, width]), _) => format!(", {channels} × {height} × {width}"),
            (None, Some(ImageSizes { smallest, largest, .. })) if smallest == largest => {
                format!(", {}", size(smallest))
            }
            (None, Some(ImageSizes { smallest, median, largest })) => {
                format!(", {} to {}, median {}", size(smallest), size(largest), size(median))
            }
            (None, None) => String::new(),
        };
        let mut rows = vec![
            (self.split.to_owned(), format!("{} images{shape}", self.images)),
            ("  mean".to_owned(), format_decimals(&self.mean)),
            ("  std".to_owned(), format_decimals(&self.std)),
        ];
        if let Some(ignored) = self.ignored_pixels {
            let labelled: u64 = self.classes.iter().filter_map(|class| class.pixels).sum();
            let share = ignored as f64 / (ignored + labelled).max(1) as f64;
            rows.push(("  no class".to_owned(), format!("{ignored} pixels, {:.2}%", 100.0 * share)));
        }
        if self.unlabelled > 0 {
            rows.push(("  unlabelled".to_owned(), self.unlabelled.to_string()));
        }
        if !self.damaged.is_empty() {
            rows.push(("  damaged".to_owned(), self.damaged.len().to_string()));
        }
        let mut text = key_value_list(&rows);
        for DamagedSample { sample, problem } in self.damaged.iter().take(MAX_LISTED_DAMAGED) {
            text.push_str(&format!("    {sample}: {problem}\n"));
        }
        if self.damaged.len() > MAX_LISTED_DAMAGED {
            text.push_str(&format!(
                "    and {} more; `stratus data check` lists all\n",
                self.damaged.len() - MAX_LISTED_DAMAGED
            ));
        }
        text.push('\n');
        match &self.targets {
            Some(targets) => text.push_str(&targets.render()),
            None => text.push_str(&self.class_table()),
        }
        text
    }

    fn class_table(&self) -> String {
        let share = |class: &Class| format!("{:.2}%", 100.0 * class.share);
        let weight = |class: &Class| class.weight.map_or("-".to_owned(), |weight| format!("{weight:.4}"));
        let name = |class: &Class| format!("  {}", class.name);
        if self.ignored_pixels.is_some() {
            let row = |class: &Class| {
                let pixels = class.pixels.unwrap_or_default().to_string();
                [name(class), class.images.to_string(), pixels, share(class), weight(class)]
            };
            let heading = ["  class", "images", "pixels", "share", "weight"].map(str::to_owned);
            return table(&std::iter::once(heading).chain(self.classes.iter().map(row)).collect::<Vec<_>>());
        }
        let row = |class: &Class| [name(class), class.images.to_string(), share(class), weight(class)];
        let heading = ["  class", "images", "share", "weight"].map(str::to_owned);
        table(&std::iter::once(heading).chain(self.classes.iter().map(row)).collect::<Vec<_>>())
    }
}

pub(super) fn stats(name: &str, folder: &Path, options: &OpenOptions, output: &Output) -> Result {
    // Damaged samples are counted, and do not stop the survey.
    let options = OpenOptions { skip_damaged: true, ..options.clone() };
    let mut counted = Vec::new();
    let parts = open_parts(name, folder, &options, output)?;
    print_warnings(parts.iter().map(|part| part.set.as_ref()), output);
    for DatasetPart { name: split, set } in parts {
        let found = compute_stats(set.as_ref(), threads()).map_err(to_failure)?;
        counted.push(SplitStatistics::new(split, set.as_ref(), found));
    }
    output.print_wrapped(&counted, || {
        counted.iter().map(SplitStatistics::render).collect::<Vec<_>>().join("\n")
    })
}

fn format_decimals(numbers: &[f32]) -> String {
    numbers.iter().map(|number| format!("{number:.4}")).collect::<Vec<_>>().join(" ")
}
