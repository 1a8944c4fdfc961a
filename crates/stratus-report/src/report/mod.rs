//! The content of a report as data, for the page, the tables and the JSON document.
//!
//! A run is streamed once: curves have a bounded number of points for any length of the run. A run that
//! cannot be read becomes a [`Problem`]; the others are reported nevertheless.

mod advice;
mod checkpoints;
mod compare;
mod cost;
mod curves;
mod diff;
mod gpus;
mod network;
mod optimised;
mod published;
mod run;
mod score;
mod statistics;
mod tree;
mod usage;
mod validation;

pub use checkpoints::CheckpointRow;
pub use compare::{Comparison, ComparisonRow, Repetitions};
pub(crate) use compare::{differing_keys, effective_settings, is_ignored_key, settings};
pub use cost::{LayerWork, Peaks, RooflineData, RooflinePoint, planned_image_shape};
pub use curves::{Curve, Curves, IterationCurves, LayerCurve, LayerHistory};
pub use diff::{Change, Diff, LayerDiff, PhaseDiff, TimeUnit};
pub use gpus::{GpuSuggestion, GpuUse, ThrottledTime, gpu_suggestions, read_gpus};
pub use network::{DataEdge, Endpoint, LayerKernel, Network, NetworkLayer, NodeMemory};
pub use optimised::{OptimisedReport, best_variants};
pub(crate) use published::COLUMNS as PUBLISHED_COLUMNS;
pub use published::{PublishedComparison, PublishedComparisonRow, PublishedFigure, PublishedTable};
pub use run::{Epoch, LayerReport, Problem, RunReport};
pub use score::{Score, val_score};
pub(crate) use tree::MAX_BLOCKS;
pub use tree::{LayerNode, LayerTree, NodeTime, NodeWork};
pub use usage::{GpuCurves, UsageCurves};
pub use validation::{ClassCurve, ClassHistory, LabelReport, TargetReport, ValidationReport};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use stratus_run::machine::Machine;

/// The report on one or several runs.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The readable runs, in the given order.
    pub runs: Vec<RunReport>,
    /// The comparison of several runs.
    pub comparison: Option<Comparison>,
    /// The time differences of the first two runs, if requested.
    pub diff: Option<Diff>,
    /// The comparison with published figures, if a table was given.
    #[serde(rename = "against")]
    pub published: Option<PublishedComparison>,
    /// Runs, or parts of runs, that could not be read.
    pub problems: Vec<Problem>,
}

impl Report {
    /// Reads the runs in `paths`. Mean times exclude the first `skip` iterations, or [`crate::default_skip`].
    /// `here` is a machine with known peaks, which replace those that a run on it did not record.
    ///
    /// Data that cannot be read becomes a [`Problem`] of the report, not an error.
    #[must_use]
    pub fn read(paths: &[PathBuf], skip: Option<u64>, here: Option<&Machine>) -> Self {
        Self::read_labelled(paths, labels(paths), skip, here)
    }

    /// As [`Report::read`], with a label for each run.
    #[must_use]
    pub fn read_labelled(
        paths: &[PathBuf],
        labels: Vec<String>,
        skip: Option<u64>,
        here: Option<&Machine>,
    ) -> Self {
        let (mut runs, mut problems) = (Vec::new(), Vec::new());
        for (path, label) in paths.iter().zip(labels) {
            let (run, missing) = RunReport::read(path, label, skip, here);
            runs.extend(run);
            problems.extend(missing);
        }
        Self::new(runs, problems)
    }

    /// The report on runs that were read by [`RunReport::read`].
    #[must_use]
    pub fn new(runs: Vec<RunReport>, problems: Vec<Problem>) -> Self {
        let comparison = (runs.len() > 1).then(|| Comparison::new(&runs));
        Self { runs, comparison, diff: None, published: None, problems }
    }

    /// Compares published figures with the runs.
    pub fn compare_with_published(&mut self, table: &PublishedTable) {
        self.published = Some(PublishedComparison::new(table, &self.runs));
    }

    /// Compares the times of two runs by layer, without the first `skip` iterations. A timeline that cannot
    /// be read becomes a [`Problem`]; for any other number of runs this does nothing.
    pub fn compare_times(&mut self, skip: Option<u64>) {
        let [before, after] = &self.runs[..] else { return };
        match Diff::between(before, after, skip) {
            Ok(diff) => self.diff = Some(diff),
            Err(error) => self.problems.push(Problem {
                run: after.record.path.clone(),
                what: "time differences".to_owned(),
                reason: error.to_string(),
            }),
        }
    }
}

/// The shortest unique suffix of each path, in whole names.
fn labels(paths: &[PathBuf]) -> Vec<String> {
    let names = |path: &Path| -> Vec<String> {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        path.iter().map(|name| name.to_string_lossy().into_owned()).collect()
    };
    let all: Vec<Vec<String>> = paths.iter().map(|path| names(path)).collect();
    let end = |names: &[String], length: usize| names[names.len() - length.min(names.len())..].join("/");
    let longest = all.iter().map(Vec::len).max().unwrap_or(0);
    let mut labels: Vec<String> = all.iter().map(|names| end(names, 2)).collect();
    for length in 3..=longest {
        let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
        for label in &labels {
            *uses.entry(label).or_default() += 1;
        }
        let shared: Vec<bool> = labels.iter().map(|label| uses[label.as_str()] > 1).collect();
        if !shared.contains(&true) {
            break;
        }
        for ((label, names), _) in labels.iter_mut().zip(&all).zip(&shared).filter(|(_, shared)| **shared) {
            *label = end(names, length);
        }
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_distinguish_runs() {
        let paths = ["/a/runs/digits/1", "/b/runs/digits/1", "/b/runs/digits/2"].map(PathBuf::from);
        assert_eq!(labels(&paths), ["a/runs/digits/1", "b/runs/digits/1", "digits/2"]);
        assert_eq!(labels(&[PathBuf::from("/digits")]), ["//digits"]);
    }
}
