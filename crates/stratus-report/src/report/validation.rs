//! The errors of the network: images, confusion matrix, metrics of labels and targets, and the metrics of
//! each class over the epochs.

use serde::Serialize;
use stratus_measures::TargetMetrics;
use stratus_run::RunDir;
use stratus_run::classes::{LabelRow, read_labels, read_names, read_targets};
use stratus_run::csv::Task;
use stratus_run::validation::{
    ClassRow, Confusion, LabelPoint, PictureFile, TargetPoint, ValidationDir, ValidationImages,
    read_confusion, read_curves, read_points,
};

/// Maximum number of classes with a curve: those with the lowest values.
const MAX_CURVES: usize = 100;
/// Maximum number of validations in a curve.
const MAX_POINTS: usize = 200;
/// How often the index is read again if its pictures were replaced meanwhile.
const MAX_ATTEMPTS: usize = 3;

/// The part of the validations that a run kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ValidationReport {
    /// The images of the newest validation; `None` if there are none.
    pub images: Option<ValidationImages>,
    /// The counts of the newest confusion matrix that are not 0.
    pub confusion: Vec<Confusion>,
    /// The labels in the newest validation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<LabelReport>,
    /// The targets in the newest validation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetReport>,
    /// The metrics of each class, label or target over the epochs; `None` if there are none.
    pub history: Option<ClassHistory>,
    /// The names of classes, if they are known.
    #[serde(skip)]
    pub names: Vec<String>,
    /// The files of pictures that are damaged or cannot be read.
    #[serde(skip)]
    pub damaged: Vec<PictureFile>,
    /// The files of pictures that do not exist.
    #[serde(skip)]
    pub absent: Vec<PictureFile>,
}

/// A label in the newest validation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LabelReport {
    /// Its metrics.
    #[serde(flatten)]
    pub metrics: LabelRow,
    /// Its precision–recall curve from the highest threshold to the lowest; empty if the run kept none.
    pub curve: Vec<LabelPoint>,
}

/// A target in the newest validation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TargetReport {
    /// Its errors.
    #[serde(flatten)]
    pub metrics: TargetMetrics,
    /// Predictions of some images; empty if the run kept none.
    pub points: Vec<TargetPoint>,
}

/// A metric of each class, label or target over the epochs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClassHistory {
    /// The name of the metric.
    pub metric: &'static str,
    /// `class`, `label` or `target`.
    pub output_kind: &'static str,
    /// True if the values are from 0 to 1.
    pub is_fraction: bool,
    /// The number of classes of the run.
    pub classes: usize,
    /// The validated epochs.
    pub epochs: Vec<u32>,
    /// A curve for each class, the lowest last value first.
    pub curves: Vec<ClassCurve>,
}

/// The metric of a class over the epochs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClassCurve {
    /// The class.
    pub class: u64,
    /// Its name.
    pub name: String,
    /// Its values at the epochs of [`ClassHistory`].
    pub values: Vec<Option<f64>>,
}

impl ValidationReport {
    /// Reads what a run kept; `None` if it kept nothing. Passes what cannot be read to `missing`.
    pub fn read(run: &RunDir, task: Task, missing: &mut dyn FnMut(&str, String)) -> Option<Self> {
        let folder = run.validation();
        let has_folder = folder.path().exists();
        let has_outputs = matches!(task, Task::MultiLabel | Task::Regression) && run.classes().exists();
        if !has_folder && !has_outputs {
            return None;
        }
        let mut report = Self { names: read_names(&run.classes()).unwrap_or_default(), ..Self::default() };
        report.read_outputs(run, &folder, task, missing);
        if !has_folder {
            return (!report.labels.is_empty() || !report.targets.is_empty()).then_some(report);
        }
        report.read_images(&folder, missing);
        match read_confusion(&folder.confusion()) {
            Ok(confusion) => report.confusion = confusion,
            Err(error) if error.is_not_found() => {}
            Err(error) => missing("confusion matrix", error.to_string()),
        }
        match read_history(&folder, task) {
            Ok(history) => {
                report.history = history.map(|history| history.with_names(|class| report.name(class)));
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => missing("metrics of each class over the epochs", error.to_string()),
        }
        Some(report)
    }

    /// Reads the metrics of labels or targets in the newest validation, and what is drawn of them. Before the
    /// first validation there are only names.
    fn read_outputs(
        &mut self,
        run: &RunDir,
        folder: &ValidationDir,
        task: Task,
        missing: &mut dyn FnMut(&str, String),
    ) {
        let mut present = |what: &str, error: stratus_run::Error| {
            if !error.is_not_found() {
                missing(what, error.to_string());
            }
        };
        match task {
            Task::Classification | Task::Segmentation => {}
            Task::MultiLabel => {
                let curves = read_curves(&folder.curves());
                let curves =
                    curves.map_err(|error| present("precision–recall curves", error)).unwrap_or_default();
                let labels = read_labels(&run.classes());
                let labels =
                    labels.map_err(|error| present("metrics of the labels", error)).unwrap_or_default();
                self.labels = labels
                    .into_iter()
                    .map(|metrics| LabelReport {
                        curve: curves.iter().filter(|point| point.label == metrics.label).copied().collect(),
                        metrics,
                    })
                    .collect();
                let is_known =
                    |label: &LabelReport| label.metrics.positives > 0 || label.metrics.negatives > 0;
                if !self.labels.iter().any(is_known) {
                    self.labels.clear();
                }
            }
            Task::Regression => {
                let points = read_points(&folder.points());
                let points =
                    points.map_err(|error| present("predictions of the targets", error)).unwrap_or_default();
                let targets = read_targets(&run.classes());
                let targets =
                    targets.map_err(|error| present("errors of the targets", error)).unwrap_or_default();
                self.targets = targets
                    .into_iter()
                    .map(|metrics| TargetReport {
                        points: points
                            .iter()
                            .filter(|point| point.target == metrics.target)
                            .copied()
                            .collect(),
                        metrics,
                    })
                    .collect();
                if self.targets.iter().all(|target| target.metrics.samples == 0) {
                    self.targets.clear();
                }
            }
        }
    }

    /// Reads the index and checks its pictures. Training may replace them at any time.
    fn read_images(&mut self, folder: &ValidationDir, missing: &mut dyn FnMut(&str, String)) {
        for attempt in 1..=MAX_ATTEMPTS {
            let images = match ValidationImages::read(folder) {
                Ok(Some(images)) => images,
                Ok(None) => return,
                Err(error) => return missing("images of the validations", error.to_string()),
            };
            let problems: Vec<_> = images
                .files()
                .into_iter()
                .filter_map(|(file, ..)| Some((file, images.read_pictures(folder, file).err()?)))
                .collect();
            if attempt < MAX_ATTEMPTS && problems.iter().any(|(_, error)| error.is_not_found()) {
                continue;
            }
            for (file, error) in problems {
                let list = if error.is_not_found() { &mut self.absent } else { &mut self.damaged };
                list.push(file);
                missing("pictures of a validation", error.to_string());
            }
            self.images = Some(images);
            return;
        }
    }

    /// The name of a class, or else its number.
    #[must_use]
    pub fn name(&self, class: u64) -> String {
        let name = usize::try_from(class).ok().and_then(|class| self.names.get(class));
        name.cloned().unwrap_or_else(|| class.to_string())
    }
}

/// Reads the table of classes; `None` if it has no rows. Of many validations, some at equal distances and the
/// last one are kept.
fn read_history(folder: &ValidationDir, task: Task) -> stratus_run::Result<Option<ClassHistory>> {
    let value: fn(&ClassRow) -> Option<f64> = match task {
        Task::Classification => |row| row.accuracy,
        Task::Segmentation => |row| row.iou,
        Task::MultiLabel => |row| row.label.average_precision,
        Task::Regression => |row| row.target.r2,
    };
    let rows = folder.read_class_history()?;
    let mut epochs: Vec<u32> = rows.iter().map(|row| row.epoch).collect();
    epochs.dedup();
    epochs.sort_unstable();
    epochs.dedup();
    let Some(&last) = epochs.last() else { return Ok(None) };
    let distance = epochs.len().div_ceil(MAX_POINTS).max(1);
    let epochs: Vec<u32> = epochs
        .iter()
        .enumerate()
        .filter(|(number, epoch)| number % distance == 0 || **epoch == last)
        .map(|(_, epoch)| *epoch)
        .collect();
    let mut lowest: Vec<&ClassRow> = rows.iter().filter(|row| row.epoch == last).collect();
    let order = |row: &ClassRow| value(row).unwrap_or(f64::INFINITY);
    lowest.sort_by(|one, other| order(one).total_cmp(&order(other)).then(one.class.cmp(&other.class)));
    let classes = lowest.len();
    lowest.truncate(MAX_CURVES);
    let mut curves: Vec<ClassCurve> = lowest
        .iter()
        .map(|row| ClassCurve { class: row.class, name: String::new(), values: vec![None; epochs.len()] })
        .collect();
    let positions: std::collections::HashMap<u64, usize> =
        curves.iter().enumerate().map(|(position, curve)| (curve.class, position)).collect();
    for row in &rows {
        if let (Some(&position), Ok(epoch)) = (positions.get(&row.class), epochs.binary_search(&row.epoch)) {
            curves[position].values[epoch] = value(row).filter(|value| value.is_finite());
        }
    }
    let [metric, output_kind] = match task {
        Task::Classification => ["accuracy", "class"],
        Task::Segmentation => ["IoU", "class"],
        Task::MultiLabel => ["average precision", "label"],
        Task::Regression => ["R²", "target"],
    };
    let is_fraction = task != Task::Regression;
    Ok(Some(ClassHistory { metric, output_kind, is_fraction, classes, epochs, curves }))
}

impl ClassHistory {
    fn with_names(mut self, name: impl Fn(u64) -> String) -> Self {
        for curve in &mut self.curves {
            curve.name = name(curve.class);
        }
        self
    }
}
