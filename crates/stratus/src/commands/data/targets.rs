//! The statistics of labels and numbers that `stratus data` shows.

use serde::Serialize;
use stratus_data::stats::{LabelPair, TargetStatistics, frequent_pairs, target_statistics};
use stratus_data::{Dataset, TargetKind};

use crate::output::{printable, table};

/// The number of pairs of labels that are shown.
const MAX_PAIRS: usize = 10;
/// The maximum number of names in a caption.
const MAX_CAPTION_NAMES: usize = 8;

/// The labels or numbers of a split.
#[derive(Serialize)]
pub(super) struct TargetSummary {
    kind: TargetKind,
    targets: Vec<Target>,
    /// The labels that occur together most often.
    pairs: Vec<Pair>,
}

/// A label or a number.
#[derive(Serialize)]
struct Target {
    name: String,
    #[serde(flatten)]
    statistics: TargetStatistics,
}

/// Two labels that occur together.
#[derive(Serialize)]
struct Pair {
    first: String,
    second: String,
    images: u64,
}

/// Makes the row of a label or number in its table.
type RowOf = fn(&Target) -> Vec<String>;

impl TargetSummary {
    /// The summary of a data set; `None` if it has classes or masks.
    pub(super) fn new(set: &dyn Dataset) -> Option<Self> {
        let kind = set.target_kind()?;
        let statistics = target_statistics(set).into_iter().enumerate();
        let targets = statistics.map(|(at, statistics)| Target { name: set.class_name(at), statistics });
        let pairs = match kind {
            TargetKind::Labels => frequent_pairs(set, MAX_PAIRS),
            TargetKind::Numbers => Vec::new(),
        };
        let named = |LabelPair { labels: [first, second], samples }| Pair {
            first: set.class_name(first),
            second: set.class_name(second),
            images: samples,
        };
        Some(Self { kind, targets: targets.collect(), pairs: pairs.into_iter().map(named).collect() })
    }

    /// The cells without a label or number.
    pub(super) fn missing(&self) -> u64 {
        self.targets.iter().map(|target| target.statistics.missing).sum()
    }

    /// The numbers that are the same in all images, of which a network cannot learn anything.
    pub(super) fn constants(&self) -> Vec<String> {
        let is_constant = |target: &&Target| {
            self.kind == TargetKind::Numbers && target.statistics.count > 0 && target.statistics.is_constant()
        };
        self.targets.iter().filter(is_constant).map(|target| target.name.clone()).collect()
    }

    /// Renders the tables.
    pub(super) fn render(&self) -> String {
        let (heading, row): (&[&str], RowOf) = match self.kind {
            TargetKind::Labels => (&["  label", "images", "share", "missing"], Target::label_row),
            TargetKind::Numbers => {
                let heading = &["  number", "images", "missing", "min", "mean", "max", "std"];
                (heading, Target::number_row)
            }
        };
        let heading = heading.iter().map(|&text| text.to_owned()).collect();
        let mut text = table(
            &std::iter::once(heading).chain(self.targets.iter().map(row)).collect::<Vec<Vec<String>>>(),
        );
        if !self.pairs.is_empty() {
            let heading = ["  labels together", "images"].map(str::to_owned);
            let row = |Pair { first, second, images }: &Pair| {
                [format!("  {}, {}", printable(first), printable(second)), images.to_string()]
            };
            text.push('\n');
            text.push_str(&table(
                &std::iter::once(heading).chain(self.pairs.iter().map(row)).collect::<Vec<_>>(),
            ));
        }
        text
    }
}

impl Target {
    /// The row of a label.
    fn label_row(&self) -> Vec<String> {
        let TargetStatistics { positives, count, missing, .. } = self.statistics;
        let share = 100.0 * positives as f64 / count.max(1) as f64;
        let name = format!("  {}", printable(&self.name));
        vec![name, positives.to_string(), format!("{share:.2}%"), missing.to_string()]
    }

    /// The row of a number.
    fn number_row(&self) -> Vec<String> {
        let TargetStatistics { count, missing, mean, deviation, min, max, .. } = self.statistics;
        let mut cells = vec![format!("  {}", printable(&self.name)), count.to_string(), missing.to_string()];
        cells.extend([min, mean, max, deviation].map(decimal));
        cells
    }
}

/// A number with at most four decimals, or with an exponent if it is very small or large.
fn decimal(number: f64) -> String {
    if number != 0.0 && !(1e-3..1e9).contains(&number.abs()) {
        return format!("{number:.4e}");
    }
    format!("{number:.4}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The caption of a sample on a sheet: its labels, or its numbers with their names. Labels of mixed samples
/// have their share.
pub(super) fn caption(set: &dyn Dataset, targets: &[f32]) -> String {
    let kind = set.target_kind().unwrap_or(TargetKind::Labels);
    let shown = |(at, target): (usize, &f32)| {
        let name = set.class_name(at);
        match kind {
            _ if target.is_nan() => None,
            TargetKind::Numbers => Some(format!("{name} {}", decimal(f64::from(*target)))),
            TargetKind::Labels if *target <= 0.0 => None,
            TargetKind::Labels if *target < 1.0 => Some(format!("{name} {:.0} %", 100.0 * target)),
            TargetKind::Labels => Some(name),
        }
    };
    let mut names: Vec<String> =
        targets.iter().enumerate().filter_map(shown).take(MAX_CAPTION_NAMES + 1).collect();
    if names.len() > MAX_CAPTION_NAMES {
        names[MAX_CAPTION_NAMES] = "…".to_owned();
    }
    match (names.is_empty(), kind) {
        (false, _) => names.join(", "),
        (true, TargetKind::Numbers) => "no known number".to_owned(),
        (true, TargetKind::Labels) if targets.iter().all(|target| target.is_nan()) => {
            "no known label".to_owned()
        }
        (true, TargetKind::Labels) => "no label".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use stratus_data::datasets::SyntheticOptions;
    use stratus_data::datasets::class_targets::{LabelsOfClasses, NumbersOfClasses};
    use stratus_data::{OpenOptions, Split, open};

    fn synthetic() -> Arc<dyn Dataset> {
        let synthetic = SyntheticOptions { images: 12, classes: 3, ..SyntheticOptions::default() };
        let options = OpenOptions { shape: [1, 2, 2], synthetic, ..OpenOptions::default() };
        Arc::from(open("synthetic", std::path::Path::new(""), Split::Train, &options).unwrap())
    }

    #[test]
    fn captions_name_labels_and_numbers() {
        let set = LabelsOfClasses::new(synthetic());
        let labels = |targets: [f32; 3]| caption(&set, &targets);
        assert_eq!(labels([0.0, 1.0, f32::NAN]), "1");
        assert_eq!(labels([0.25, 0.0, 1.0]), "0 25 %, 2");
        assert_eq!(labels([0.0; 3]), "no label");
        assert_eq!(labels([f32::NAN; 3]), "no known label");
        let set = NumbersOfClasses::new(synthetic()).unwrap();
        assert_eq!(caption(&set, &[-0.5]), "number -0.5");
        assert_eq!(caption(&set, &[f32::NAN]), "no known number");
        assert_eq!(caption(&set, &[1.5e-7]), "number 1.5000e-7");
    }

    #[test]
    fn constants_are_numbers_of_one_value() {
        let set = NumbersOfClasses::new(synthetic()).unwrap();
        let summary = TargetSummary::new(&set).unwrap();
        assert!(summary.constants().is_empty());
        assert!(summary.render().starts_with("  number"));
        let labels = TargetSummary::new(&LabelsOfClasses::new(synthetic())).unwrap();
        assert_eq!((labels.missing(), labels.constants().len(), labels.pairs.len()), (0, 0, 0));
        assert!(TargetSummary::new(synthetic().as_ref()).is_none());
    }
}
