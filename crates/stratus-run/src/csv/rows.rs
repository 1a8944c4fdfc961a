//! The rows of the files: their columns, and the format of their fields.

use std::io::Write;

use serde::{Deserialize, Serialize};
use stratus_base::Throttling;

/// The task that a network is trained for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// One class per image.
    #[default]
    Classification,
    /// One class per pixel.
    Segmentation,
    /// Several labels per image, each of which applies or does not.
    MultiLabel,
    /// Numbers per image, the targets.
    Regression,
}

impl Task {
    /// Every task.
    pub const ALL: [Self; 4] = [Self::Classification, Self::Segmentation, Self::MultiLabel, Self::Regression];

    /// The name of the measure of training batches: the fraction of correct predictions, or R².
    #[must_use]
    pub fn accuracy_name(self) -> &'static str {
        match self {
            Self::Classification => "top-1",
            Self::Segmentation => "accuracy",
            Self::MultiLabel => "label accuracy",
            Self::Regression => "R²",
        }
    }
}

/// A field of a row, and its format.
#[derive(Debug)]
pub enum Field<'a> {
    /// An epoch.
    Epoch(&'a mut u32),
    /// A count.
    Count(&'a mut u64),
    /// A number, as the shortest decimal that parses to the same bits.
    Exact(&'a mut f64),
    /// A number with a fixed number of decimals.
    Fixed(&'a mut f64, usize),
    /// A count; empty for `None`.
    OptionalCount(&'a mut Option<u64>),
    /// As [`Field::Exact`]; empty for `None`.
    OptionalExact(&'a mut Option<f64>),
    /// As [`Field::Fixed`]; empty for `None`.
    OptionalFixed(&'a mut Option<f64>, usize),
    /// Reasons for throttling by name; empty for `None`.
    OptionalThrottling(&'a mut Option<Throttling>),
}

impl Field<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        // Writing to a Vec cannot fail.
        let _ = match self {
            Self::Epoch(value) => write!(out, "{value}"),
            Self::Count(value) => write!(out, "{value}"),
            Self::Exact(value) => write!(out, "{value:?}"),
            Self::Fixed(value, decimals) => write!(out, "{value:.decimals$}"),
            Self::OptionalCount(value) => value.map_or(Ok(()), |value| write!(out, "{value}")),
            Self::OptionalExact(value) => value.map_or(Ok(()), |value| write!(out, "{value:?}")),
            Self::OptionalFixed(value, decimals) => {
                value.map_or(Ok(()), |value| write!(out, "{value:.decimals$}"))
            }
            Self::OptionalThrottling(value) => value.map_or(Ok(()), |value| write!(out, "{value}")),
        };
    }

    /// Sets the value; `None` if the text is invalid.
    fn parse(self, text: &str) -> Option<()> {
        match self {
            Self::Epoch(value) => *value = text.parse().ok()?,
            Self::Count(value) => *value = text.parse().ok()?,
            Self::Exact(value) | Self::Fixed(value, _) => *value = text.parse().ok()?,
            Self::OptionalCount(value) => *value = parse_optional(text)?,
            Self::OptionalExact(value) | Self::OptionalFixed(value, _) => *value = parse_optional(text)?,
            Self::OptionalThrottling(value) => *value = parse_optional(text)?,
        }
        Some(())
    }
}

fn parse_optional<T: std::str::FromStr>(text: &str) -> Option<Option<T>> {
    if text.is_empty() { Some(None) } else { text.parse().ok().map(Some) }
}

/// A row of one of the run's CSV files.
pub trait Row: Copy + Default {
    /// Columns that files of earlier versions may lack; their fields are then empty. A new column is added
    /// here, wherever it stands, and its field must accept an empty text.
    const NEW_COLUMNS: &'static [&'static str] = &[];

    /// Passes the name and the field of each column of a task to `visit`, in order.
    fn visit(&mut self, task: Task, visit: &mut dyn FnMut(&'static str, Field<'_>));

    /// The columns of a task, in order.
    #[must_use]
    fn columns(task: Task) -> Vec<&'static str> {
        let mut columns = Vec::new();
        Self::default().visit(task, &mut |name, _| columns.push(name));
        columns
    }

    /// Appends the fields of a task as a line, without allocating. Numbers need no quotes.
    fn write(mut self, task: Task, out: &mut Vec<u8>) {
        let mut is_first = true;
        self.visit(task, &mut |_, field| {
            if !std::mem::take(&mut is_first) {
                out.push(b',');
            }
            field.write(out);
        });
        out.push(b'\n');
    }

    /// Appends the fields at these positions of [`Row::columns`] as a line, without allocating; a field is
    /// empty for `None`.
    fn write_columns(mut self, task: Task, columns: &[Option<usize>], out: &mut Vec<u8>) {
        for (number, column) in columns.iter().enumerate() {
            if number > 0 {
                out.push(b',');
            }
            let mut position = 0;
            self.visit(task, &mut |_, field| {
                if *column == Some(position) {
                    field.write(out);
                }
                position += 1;
            });
        }
        out.push(b'\n');
    }

    /// Parses the fields, in the order of [`Row::columns`]; `Err` is the first column that is invalid.
    fn parse(task: Task, fields: &[&str]) -> Result<Self, &'static str> {
        let (mut row, mut fields, mut invalid) = (Self::default(), fields.iter(), None);
        row.visit(task, &mut |name, field| {
            if fields.next().and_then(|text| field.parse(text.trim())).is_none() {
                invalid.get_or_insert(name);
            }
        });
        invalid.map_or(Ok(row), Err)
    }
}

/// A row of `iterations.csv`. `data_s + train_s + unattributed_s` is the iteration's wall time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IterationRow {
    /// The epoch, counted from 1.
    pub epoch: u32,
    /// The iteration since the start of the run, counted from 1.
    pub iteration: u64,
    /// The mean loss over the batch.
    pub loss: f64,
    /// The fraction of the batch, of its labelled pixels or of its labels that is predicted correctly, 0 to
    /// 1: `top1`, `accuracy` or `label_accuracy`. Regression: `r2`, 1 minus the mean squared error of the
    /// standardised targets. `None` if nothing was labelled.
    pub accuracy: Option<f64>,
    /// Classification: the fraction whose class is among the five most probable; `None` with fewer classes.
    pub top5: Option<f64>,
    /// The learning rate of the update.
    pub learning_rate: f64,
    /// Seconds spent waiting for the batch.
    pub data_s: f64,
    /// Seconds attributed to everything else.
    pub train_s: f64,
    /// Seconds of the iteration that no slot accounts for.
    pub unattributed_s: f64,
}

/// A row of `epochs.csv`. Accuracies are fractions, 0 to 1; without a validation its fields are empty.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EpochRow {
    /// The epoch, counted from 1.
    pub epoch: u32,
    /// Mean loss over the epoch's training samples.
    pub train_loss: f64,
    /// Accuracy over the epoch's training samples, their pixels or their labels: `train_top1`,
    /// `train_accuracy` or `train_label_accuracy`. Regression: `train_r2`, as [`IterationRow::accuracy`].
    pub train_accuracy: f64,
    /// Mean loss over the validation samples.
    pub val_loss: Option<f64>,
    /// Accuracy on the validation samples, their pixels or their labels: `val_top1`, `val_accuracy` or
    /// `val_label_accuracy`. Regression: `val_r2`, the mean R² of the targets.
    pub val_accuracy: Option<f64>,
    /// Classification: top-5 accuracy on the validation samples.
    pub val_top5: Option<f64>,
    /// Segmentation: the mean of the classes' accuracies.
    pub val_mean_accuracy: Option<f64>,
    /// Segmentation: mean intersection over union.
    pub val_miou: Option<f64>,
    /// Segmentation: mean boundary F1 score.
    pub val_bf: Option<f64>,
    /// Several labels: their measures.
    pub labels: LabelColumns,
    /// Regression: the errors.
    pub numbers: NumberColumns,
    /// Seconds of training in this epoch.
    pub train_s: f64,
    /// Seconds of validation in this epoch.
    pub val_s: f64,
    /// Seconds since the start of the run, including those before a resume.
    pub elapsed_s: f64,
}

/// The columns of `epochs.csv` for several labels per image. Means over the labels for which the measure is
/// defined; `val_exact_match` is a fraction of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LabelColumns {
    /// Mean average precision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_map: Option<f64>,
    /// Mean area under the ROC curve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_auc: Option<f64>,
    /// Mean F1 at the thresholds of the labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_f1: Option<f64>,
    /// The fraction of samples all of whose labels are predicted correctly at these thresholds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_exact_match: Option<f64>,
}

/// The columns of `epochs.csv` for regression, in the unit of the targets; of several targets, their mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NumberColumns {
    /// Mean absolute error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_mae: Option<f64>,
    /// Root mean squared error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_rmse: Option<f64>,
}

impl Row for IterationRow {
    const NEW_COLUMNS: &'static [&'static str] = &["top5"];

    fn visit(&mut self, task: Task, visit: &mut dyn FnMut(&'static str, Field<'_>)) {
        visit("epoch", Field::Epoch(&mut self.epoch));
        visit("iteration", Field::Count(&mut self.iteration));
        visit("loss", Field::Exact(&mut self.loss));
        match task {
            Task::Classification => {
                visit("top1", Field::OptionalExact(&mut self.accuracy));
                visit("top5", Field::OptionalExact(&mut self.top5));
            }
            Task::Segmentation => visit("accuracy", Field::OptionalExact(&mut self.accuracy)),
            Task::MultiLabel => visit("label_accuracy", Field::OptionalExact(&mut self.accuracy)),
            Task::Regression => visit("r2", Field::OptionalExact(&mut self.accuracy)),
        }
        visit("learning_rate", Field::Exact(&mut self.learning_rate));
        visit("data_s", Field::Fixed(&mut self.data_s, 6));
        visit("train_s", Field::Fixed(&mut self.train_s, 6));
        visit("unattributed_s", Field::Fixed(&mut self.unattributed_s, 6));
    }
}

impl Row for EpochRow {
    const NEW_COLUMNS: &'static [&'static str] = &["val_top5", "val_mean_accuracy", "val_miou", "val_bf"];

    fn visit(&mut self, task: Task, visit: &mut dyn FnMut(&'static str, Field<'_>)) {
        let [train, validation] = match task {
            Task::Classification => ["train_top1", "val_top1"],
            Task::Segmentation => ["train_accuracy", "val_accuracy"],
            Task::MultiLabel => ["train_label_accuracy", "val_label_accuracy"],
            Task::Regression => ["train_r2", "val_r2"],
        };
        visit("epoch", Field::Epoch(&mut self.epoch));
        visit("train_loss", Field::Exact(&mut self.train_loss));
        visit(train, Field::Exact(&mut self.train_accuracy));
        visit("val_loss", Field::OptionalExact(&mut self.val_loss));
        visit(validation, Field::OptionalExact(&mut self.val_accuracy));
        match task {
            Task::Classification => visit("val_top5", Field::OptionalExact(&mut self.val_top5)),
            Task::Segmentation => {
                visit("val_mean_accuracy", Field::OptionalExact(&mut self.val_mean_accuracy));
                visit("val_miou", Field::OptionalExact(&mut self.val_miou));
                visit("val_bf", Field::OptionalExact(&mut self.val_bf));
            }
            Task::MultiLabel => {
                let LabelColumns { val_map, val_auc, val_f1, val_exact_match } = &mut self.labels;
                visit("val_map", Field::OptionalExact(val_map));
                visit("val_auc", Field::OptionalExact(val_auc));
                visit("val_f1", Field::OptionalExact(val_f1));
                visit("val_exact_match", Field::OptionalExact(val_exact_match));
            }
            Task::Regression => {
                visit("val_mae", Field::OptionalExact(&mut self.numbers.val_mae));
                visit("val_rmse", Field::OptionalExact(&mut self.numbers.val_rmse));
            }
        }
        visit("train_s", Field::Fixed(&mut self.train_s, 6));
        visit("val_s", Field::Fixed(&mut self.val_s, 6));
        visit("elapsed_s", Field::Fixed(&mut self.elapsed_s, 6));
    }
}
