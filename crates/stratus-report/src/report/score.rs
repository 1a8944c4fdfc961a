//! The validation metric by which runs are compared, and how its values are written.

use serde::{Serialize, Serializer};
use stratus_run::csv::{EpochRow, Task};

/// The metric by which runs are compared; the higher, the better. It is serialised as its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// The metric of a task: a fraction, or R² for regression.
    Of(Task),
    /// The metrics of several tasks.
    Mixed {
        /// True if all of them are fractions.
        are_fractions: bool,
    },
}

impl Score {
    /// The metric of runs with these tasks.
    #[must_use]
    pub fn of_all(tasks: impl IntoIterator<Item = Task>) -> Self {
        let mut tasks = tasks.into_iter();
        let Some(first) = tasks.next() else { return Self::Mixed { are_fractions: true } };
        tasks.fold(Self::Of(first), |score, task| match score {
            Self::Of(other) if other == task => score,
            score => Self::Mixed { are_fractions: score.is_fraction() && Self::Of(task).is_fraction() },
        })
    }

    /// The name: `top-1`, `R²`; `score` for several tasks.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Of(Task::Classification) => "top-1",
            Self::Of(Task::Segmentation) => "mean IoU",
            Self::Of(Task::MultiLabel) => "mean average precision",
            Self::Of(Task::Regression) => "R²",
            Self::Mixed { .. } => "score",
        }
    }

    /// True if values are from 0 to 1 and shown in percent. R² is at most 1 and may be negative.
    #[must_use]
    pub fn is_fraction(self) -> bool {
        match self {
            Self::Of(task) => task != Task::Regression,
            Self::Mixed { are_fractions } => are_fractions,
        }
    }

    /// The unit of [`Score::number`]: `%`, or nothing.
    #[must_use]
    pub fn unit(self) -> &'static str {
        if self.is_fraction() { "%" } else { "" }
    }

    /// The name for the head of a column of [`Score::number`]: `top-1 %`, `R²`.
    #[must_use]
    pub fn head(self) -> String {
        let name = match self {
            Self::Of(Task::MultiLabel) => "mAP",
            _ => self.name(),
        };
        if self.is_fraction() { format!("{name} %") } else { name.to_owned() }
    }

    /// The title of an axis of [`Score::number`]: `top-1, %`, `R²`.
    #[must_use]
    pub fn title(self) -> String {
        if self.is_fraction() { format!("{}, %", self.name()) } else { self.name().to_owned() }
    }

    /// A value in [`Score::unit`].
    #[must_use]
    pub fn number(self, value: f64) -> f64 {
        if self.is_fraction() { 100.0 * value } else { value }
    }

    /// The number of decimals with which [`Score::number`] is written.
    #[must_use]
    pub fn decimals(self) -> usize {
        if self.is_fraction() { 2 } else { 4 }
    }

    /// A value with its unit: `97.86 %`, `0.9786`.
    #[must_use]
    pub fn text(self, value: f64) -> String {
        let number = format!("{:.*}", self.decimals(), self.number(value));
        if self.is_fraction() { format!("{number} %") } else { number }
    }

    /// A value without its unit, for a column with [`Score::head`].
    #[must_use]
    pub fn cell(self, value: f64) -> String {
        format!("{:.*}", self.decimals(), self.number(value))
    }
}

impl Serialize for Score {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The [`Score`] of a run's task after an epoch; `None` if it was not evaluated.
#[must_use]
pub fn val_score(task: Task, row: &EpochRow) -> Option<f64> {
    match task {
        Task::Classification | Task::Regression => row.val_accuracy,
        Task::Segmentation => row.val_miou,
        Task::MultiLabel => row.labels.val_map,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_r2_is_no_percentage() {
        let texts = Task::ALL.map(|task| Score::Of(task).text(0.97855));
        assert_eq!(texts, ["97.86 %", "97.86 %", "97.86 %", "0.9786"]);
        assert_eq!(Score::Of(Task::Regression).text(-12.5), "-12.5000");
        let heads = Task::ALL.map(|task| Score::Of(task).head());
        assert_eq!(heads, ["top-1 %", "mean IoU %", "mAP %", "R²"]);
        assert_eq!(Score::Of(Task::Regression).title(), "R²");
        assert_eq!(
            serde_json::to_string(&Score::Of(Task::MultiLabel)).unwrap(),
            "\"mean average precision\""
        );
    }

    #[test]
    fn scores_of_several_tasks_are_percentages_only_if_all_are() {
        use Task::{Classification, MultiLabel, Regression, Segmentation};
        assert_eq!(Score::of_all([Regression; 3]), Score::Of(Regression));
        assert_eq!(Score::of_all([]).head(), "score %");
        let mixed = |tasks: &[Task]| Score::of_all(tasks.iter().copied()).text(0.5);
        assert_eq!(mixed(&[Classification, Segmentation, MultiLabel]), "50.00 %");
        assert_eq!(mixed(&[Classification, Segmentation, Regression]), "0.5000");
        assert_eq!(mixed(&[Regression, Regression, MultiLabel, Classification]), "0.5000");
    }
}
