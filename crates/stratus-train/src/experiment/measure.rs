//! The measures of an epoch by which training can be ended and a checkpoint kept: columns of `epochs.csv`.

use super::value::choices;
use stratus_run::csv::{EpochRow, Row, Task};

/// Declares the measures: a name, whether more or less is better, and where an epoch's row has it.
macro_rules! measures {
    ($( $(#[doc = $doc:literal])* $name:ident = $column:literal, $better:ident, $of:expr; )*) => {
        choices! {
            /// A measure of an epoch: a column of `epochs.csv`.
            Measure { $( $(#[doc = $doc])* $name = $column, )* }
        }

        impl Measure {
            /// Which of two values is the better one.
            #[must_use]
            pub fn better(self) -> Better {
                match self { $(Self::$name => Better::$better,)* }
            }

            /// The measure of a name.
            #[must_use]
            pub fn named(name: &str) -> Option<Self> {
                match name { $($column => Some(Self::$name),)* _ => None }
            }

            /// The names of all.
            pub const NAMES: &[&str] = &[$($column),*];

            /// Whether runs of a task measure it.
            #[must_use]
            pub fn is_of(self, task: Task) -> bool {
                let name = match self { $(Self::$name => $column,)* };
                EpochRow::columns(task).contains(&name)
            }

            /// The names of those that runs of a task measure.
            #[must_use]
            pub fn names(task: Task) -> Vec<&'static str> {
                let columns = EpochRow::columns(task);
                [$($column),*].into_iter().filter(|name| columns.contains(name)).collect()
            }

            /// The value in an epoch's row; `None` if it was not measured.
            #[must_use]
            pub fn of(self, row: &EpochRow) -> Option<f64> {
                let of: fn(&EpochRow) -> Option<f64> = match self { $(Self::$name => $of,)* };
                of(row)
            }
        }
    };
}

measures! {
    /// Mean loss over the training samples.
    TrainLoss = "train_loss", Less, |row| Some(row.train_loss);
    /// Top-1 accuracy over the training samples.
    TrainTop1 = "train_top1", More, |row| Some(row.train_accuracy);
    /// Segmentation: accuracy over the training pixels.
    TrainAccuracy = "train_accuracy", More, |row| Some(row.train_accuracy);
    /// Mean loss over the validation samples.
    ValLoss = "val_loss", Less, |row| row.val_loss;
    /// Top-1 accuracy on the validation samples.
    ValTop1 = "val_top1", More, |row| row.val_accuracy;
    /// Top-5 accuracy on the validation samples.
    ValTop5 = "val_top5", More, |row| row.val_top5;
    /// Segmentation: accuracy on the validation pixels.
    ValAccuracy = "val_accuracy", More, |row| row.val_accuracy;
    /// Segmentation: the mean of the classes' accuracies on the validation pixels.
    ValMeanAccuracy = "val_mean_accuracy", More, |row| row.val_mean_accuracy;
    /// Segmentation: mean intersection over union on the validation images.
    ValMiou = "val_miou", More, |row| row.val_miou;
    /// Segmentation: mean boundary F1 on the validation images.
    ValBf = "val_bf", More, |row| row.val_bf;
}

/// Which of two values is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// The smaller.
    Less,
    /// The larger.
    More,
}

impl Better {
    /// By how much `value` is better than `other`; negative if it is worse.
    #[must_use]
    pub fn gain(self, value: f64, other: f64) -> f64 {
        match self {
            Better::Less => other - value,
            Better::More => value - other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::value::{Kind, Setting};

    /// Each measure reads the column of its name, and losses are the ones of which less is better.
    #[test]
    fn measures_are_columns() {
        let Kind::Choice(names) = Measure::KIND else { panic!("no choice") };
        assert_eq!(names, Measure::NAMES);
        assert!(names.iter().all(|name| Measure::named(name).is_some_and(|of| of.as_str() == *name)));
        for (name, task) in names.iter().flat_map(|name| Task::ALL.map(|task| (name, task))) {
            let columns = EpochRow::columns(task);
            let fields: Vec<String> = (1..=columns.len()).map(|number| number.to_string()).collect();
            let row = EpochRow::parse(task, &fields.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
            let measure = Measure::from_value(&crate::experiment::Value::Text((*name).to_owned())).unwrap();
            let column = columns.iter().position(|column| column == name);
            assert_eq!(measure.is_of(task), column.is_some(), "{name}");
            let Some(column) = column else { continue };
            assert_eq!(measure.of(&row), Some((column + 1) as f64), "{name}");
            assert_eq!(measure.better() == Better::Less, name.ends_with("loss"), "{name}");
        }
        assert_eq!(Measure::ValTop1.of(&EpochRow::default()), None);
        let names = ["train_loss", "train_top1", "val_loss", "val_top1", "val_top5"];
        assert_eq!(Measure::names(Task::Classification), names);
        assert!(
            Task::ALL.iter().all(|&task| names.iter().any(|name| EpochRow::columns(task).contains(name)))
        );
    }
}
