//! The rows of the files: their columns, and the format of their fields.

use std::io::Write;

use serde::{Deserialize, Serialize};

/// The task that a network is trained for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// One class per image.
    #[default]
    Classification,
    /// One class per pixel.
    Segmentation,
}

impl Task {
    /// Every task.
    pub const ALL: [Self; 2] = [Self::Classification, Self::Segmentation];

    /// The name of the fraction of correct predictions.
    #[must_use]
    pub fn accuracy_name(self) -> &'static str {
        match self {
            Self::Classification => "top-1",
            Self::Segmentation => "accuracy",
        }
    }
}

/// A row of one of the run's CSV files.
pub trait Row: Sized {
    /// The columns of a task, in order.
    fn columns(task: Task) -> &'static [&'static str];
    /// Writes the fields of a task, separated by commas, without a line end.
    fn write(&self, task: Task, out: &mut impl Write) -> std::io::Result<()>;
    /// Parses the fields, in the order of [`Row::columns`]; `Err` is the first column that is invalid.
    fn parse(task: Task, fields: &[&str]) -> Result<Self, &'static str>;
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
    /// The fraction of the batch, or of its labelled pixels, whose predicted class is correct, 0 to 1: `top1`
    /// or `accuracy`. `None` if nothing was labelled.
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
    /// Accuracy over the epoch's training samples or their pixels: `train_top1` or `train_accuracy`.
    pub train_accuracy: f64,
    /// Mean loss over the validation samples.
    pub val_loss: Option<f64>,
    /// Accuracy on the validation samples or their pixels: `val_top1` or `val_accuracy`.
    pub val_accuracy: Option<f64>,
    /// Classification: top-5 accuracy on the validation samples.
    pub val_top5: Option<f64>,
    /// Segmentation: the mean of the classes' accuracies.
    pub val_mean_accuracy: Option<f64>,
    /// Segmentation: mean intersection over union.
    pub val_miou: Option<f64>,
    /// Segmentation: mean boundary F1 score.
    pub val_bf: Option<f64>,
    /// Seconds of training in this epoch.
    pub train_s: f64,
    /// Seconds of validation in this epoch.
    pub val_s: f64,
    /// Seconds since the start of the run, including those before a resume.
    pub elapsed_s: f64,
}

/// The shortest decimal that parses to the same bits; empty for `None`.
pub(crate) struct ExactDecimal(pub(crate) Option<f64>);

impl std::fmt::Display for ExactDecimal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |value| write!(f, "{value:?}"))
    }
}

impl Row for IterationRow {
    fn columns(task: Task) -> &'static [&'static str] {
        match task {
            Task::Classification => &[
                "epoch",
                "iteration",
                "loss",
                "top1",
                "top5",
                "learning_rate",
                "data_s",
                "train_s",
                "unattributed_s",
            ],
            Task::Segmentation => &[
                "epoch",
                "iteration",
                "loss",
                "accuracy",
                "learning_rate",
                "data_s",
                "train_s",
                "unattributed_s",
            ],
        }
    }

    fn write(&self, task: Task, out: &mut impl Write) -> std::io::Result<()> {
        let Self { epoch, iteration, loss, accuracy, learning_rate, data_s, train_s, unattributed_s, .. } =
            self;
        write!(out, "{epoch},{iteration},{loss:?},{},", ExactDecimal(*accuracy))?;
        if task == Task::Classification {
            write!(out, "{},", ExactDecimal(self.top5))?;
        }
        write!(out, "{learning_rate:?},{data_s:.6},{train_s:.6},{unattributed_s:.6}")
    }

    fn parse(task: Task, fields: &[&str]) -> Result<Self, &'static str> {
        let mut fields = Fields::new(Self::columns(task), fields);
        Ok(Self {
            epoch: fields.value()?,
            iteration: fields.value()?,
            loss: fields.value()?,
            accuracy: fields.optional()?,
            top5: if task == Task::Classification { fields.optional()? } else { None },
            learning_rate: fields.value()?,
            data_s: fields.value()?,
            train_s: fields.value()?,
            unattributed_s: fields.value()?,
        })
    }
}

impl Row for EpochRow {
    fn columns(task: Task) -> &'static [&'static str] {
        match task {
            Task::Classification => &[
                "epoch",
                "train_loss",
                "train_top1",
                "val_loss",
                "val_top1",
                "val_top5",
                "train_s",
                "val_s",
                "elapsed_s",
            ],
            Task::Segmentation => &[
                "epoch",
                "train_loss",
                "train_accuracy",
                "val_loss",
                "val_accuracy",
                "val_mean_accuracy",
                "val_miou",
                "val_bf",
                "train_s",
                "val_s",
                "elapsed_s",
            ],
        }
    }

    fn write(&self, task: Task, out: &mut impl Write) -> std::io::Result<()> {
        let Self { epoch, train_loss, train_accuracy, train_s, val_s, elapsed_s, .. } = self;
        let [val_loss, val_accuracy] = [self.val_loss, self.val_accuracy].map(ExactDecimal);
        write!(out, "{epoch},{train_loss:?},{train_accuracy:?},{val_loss},{val_accuracy},")?;
        match task {
            Task::Classification => write!(out, "{},", ExactDecimal(self.val_top5))?,
            Task::Segmentation => {
                let [mean, miou, bf] = [self.val_mean_accuracy, self.val_miou, self.val_bf].map(ExactDecimal);
                write!(out, "{mean},{miou},{bf},")?;
            }
        }
        write!(out, "{train_s:.6},{val_s:.6},{elapsed_s:.6}")
    }

    fn parse(task: Task, fields: &[&str]) -> Result<Self, &'static str> {
        let mut fields = Fields::new(Self::columns(task), fields);
        let mut row = Self {
            epoch: fields.value()?,
            train_loss: fields.value()?,
            train_accuracy: fields.value()?,
            val_loss: fields.optional()?,
            val_accuracy: fields.optional()?,
            ..Self::default()
        };
        match task {
            Task::Classification => row.val_top5 = fields.optional()?,
            Task::Segmentation => {
                row.val_mean_accuracy = fields.optional()?;
                row.val_miou = fields.optional()?;
                row.val_bf = fields.optional()?;
            }
        }
        row.train_s = fields.value()?;
        row.val_s = fields.value()?;
        row.elapsed_s = fields.value()?;
        Ok(row)
    }
}

/// The fields of a row, consumed one by one.
pub(super) struct Fields<'a> {
    rest: std::iter::Zip<std::slice::Iter<'static, &'static str>, std::slice::Iter<'a, &'a str>>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(names: &'static [&'static str], fields: &'a [&'a str]) -> Self {
        Self { rest: names.iter().zip(fields) }
    }

    pub(super) fn value<T: std::str::FromStr>(&mut self) -> Result<T, &'static str> {
        let (name, field) = self.rest.next().ok_or("a column")?;
        field.trim().parse().map_err(|_| *name)
    }

    pub(super) fn optional<T: std::str::FromStr>(&mut self) -> Result<Option<T>, &'static str> {
        if self.rest.clone().next().is_some_and(|(_, field)| field.trim().is_empty()) {
            self.rest.next();
            return Ok(None);
        }
        self.value().map(Some)
    }
}
