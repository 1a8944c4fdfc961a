//! `stratus data stats`: images, classes, and the mean and deviation of the channels.

use std::path::Path;

use serde::Serialize;
use stratus_data::{OpenOptions, Split, open, stats};

use super::data_failure;
use crate::errors::Result;
use crate::output::{Output, pairs};

#[derive(Serialize)]
struct Part {
    split: &'static str,
    images: usize,
    shape: Option<[usize; 3]>,
    images_per_class: Vec<u64>,
    mean: Vec<f32>,
    std: Vec<f32>,
}

pub(super) fn statistics(name: &str, folder: &Path, options: &OpenOptions, output: &Output) -> Result {
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
