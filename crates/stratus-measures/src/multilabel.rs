//! Metrics of samples with several yes-or-no labels.

use serde::{Deserialize, Serialize};

use crate::ranking::f1;
use crate::ratio::{mean, ratio};
use crate::{LabelRanking, MetricError, OperatingPoint, ScoreTable};

/// The metrics of one label. `None` is undefined, and null in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabelMetrics {
    /// The label index.
    pub label: usize,
    /// The label name.
    pub name: String,
    /// The number of samples with the label.
    pub positives: u64,
    /// The number of samples without the label.
    pub negatives: u64,
    /// The number of samples for which it is not known.
    pub missing: u64,
    /// Average precision; `None` without positives.
    pub average_precision: Option<f64>,
    /// The area under the ROC curve; `None` without positives or without negatives.
    pub auc: Option<f64>,
    /// The decisions at the default threshold, which is the same for all labels.
    pub at_default: OperatingPoint,
    /// The decisions at the label's own threshold; `None` if it has none, for lack of positives.
    pub at_chosen: Option<OperatingPoint>,
}

/// The metrics of all labels at one threshold each.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThresholdScores {
    /// The mean F1 of the labels that have one.
    pub macro_f1: Option<f64>,
    /// The F1 of the summed decisions of all labels.
    pub micro_f1: Option<f64>,
    /// The share of correct decisions over all samples and labels.
    pub accuracy: Option<f64>,
    /// The share of samples whose known labels are all decided correctly. Samples without any known label do
    /// not count.
    pub exact_match: Option<f64>,
}

/// The metrics of several yes-or-no labels.
///
/// They agree with scikit-learn's (1.9) `average_precision_score`, `roc_auc_score`, `f1_score` and
/// `accuracy_score`, computed for each label on the samples for which it is known. Where scikit-learn warns
/// and replaces an undefined metric by a number, the metric is `None` here and excluded from means.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabelScores {
    /// The number of samples with at least one known label.
    pub samples: u64,
    /// The mean average precision of the labels that have positives.
    pub mean_average_precision: Option<f64>,
    /// The mean AUC of the labels that have positives and negatives.
    pub mean_auc: Option<f64>,
    /// The metrics at the default threshold.
    pub at_default: ThresholdScores,
    /// The metrics at the labels' own thresholds. A label without one has no part in the macro F1; elsewhere
    /// it is decided at the default threshold.
    pub at_chosen: ThresholdScores,
    /// The metrics of each label.
    pub labels: Vec<LabelMetrics>,
}

impl LabelScores {
    /// The default threshold of probabilities.
    pub const PROBABILITY_THRESHOLD: f32 = 0.5;

    /// The default threshold of logits: the smallest positive number. A label is predicted if its logit is
    /// above 0, as the loss counts.
    pub const LOGIT_THRESHOLD: f32 = f32::from_bits(1);

    /// Computes the metrics of a table whose outputs are probabilities or logits. The labels' own thresholds
    /// are chosen to maximise their F1 on these samples ([`LabelRanking::best_f1`]). `name` returns the name
    /// of a label.
    #[must_use]
    pub fn new(table: &ScoreTable, default_threshold: f32, name: impl Fn(usize) -> String) -> Self {
        Self::compute(table, default_threshold, |_, ranking| ranking.best_f1(), name)
    }

    /// Computes the metrics at thresholds that were chosen before, one per label, on other samples.
    ///
    /// # Errors
    /// If the number of thresholds is not the number of labels.
    pub fn with_thresholds(
        table: &ScoreTable,
        default_threshold: f32,
        thresholds: &[Option<f32>],
        name: impl Fn(usize) -> String,
    ) -> Result<Self, MetricError> {
        table.check_columns(thresholds.len())?;
        let choose = |label: usize, ranking: &LabelRanking| {
            thresholds.get(label).copied().flatten().map(|threshold| ranking.at(threshold))
        };
        Ok(Self::compute(table, default_threshold, choose, name))
    }

    /// The labels' own thresholds, for [`with_thresholds`](Self::with_thresholds).
    #[must_use]
    pub fn thresholds(&self) -> Vec<Option<f32>> {
        self.labels.iter().map(|label| label.at_chosen.map(|point| point.threshold)).collect()
    }

    fn compute(
        table: &ScoreTable,
        default_threshold: f32,
        choose: impl Fn(usize, &LabelRanking) -> Option<OperatingPoint>,
        name: impl Fn(usize) -> String,
    ) -> Self {
        let metrics = |label| {
            let ranking = table.ranking(label);
            LabelMetrics {
                label,
                name: name(label),
                positives: ranking.positives(),
                negatives: ranking.negatives(),
                missing: ranking.missing(),
                average_precision: ranking.average_precision(),
                auc: ranking.auc(),
                at_default: ranking.at(default_threshold),
                at_chosen: choose(label, &ranking),
            }
        };
        let labels: Vec<LabelMetrics> = (0..table.columns()).map(metrics).collect();
        let at_default: Vec<OperatingPoint> = labels.iter().map(|label| label.at_default).collect();
        let at_chosen: Vec<OperatingPoint> =
            labels.iter().map(|label| label.at_chosen.unwrap_or(label.at_default)).collect();
        let default_f1 = mean(labels.iter().map(|label| label.at_default.f1));
        let chosen_f1 = mean(labels.iter().map(|label| label.at_chosen.and_then(|point| point.f1)));
        let known = |(_, targets): &(&[f32], &[f32])| targets.iter().any(|target| !target.is_nan());
        Self {
            samples: table.rows().filter(known).count() as u64,
            mean_average_precision: mean(labels.iter().map(|label| label.average_precision)),
            mean_auc: mean(labels.iter().map(|label| label.auc)),
            at_default: ThresholdScores::new(table, &at_default, default_f1),
            at_chosen: ThresholdScores::new(table, &at_chosen, chosen_f1),
            labels,
        }
    }
}

impl ThresholdScores {
    /// The metrics of decisions at a threshold per column of the table.
    fn new(table: &ScoreTable, points: &[OperatingPoint], macro_f1: Option<f64>) -> Self {
        let sum = |count: fn(&OperatingPoint) -> u64| points.iter().map(count).sum::<u64>();
        let false_positives = sum(|point| point.false_positives);
        let false_negatives = sum(|point| point.false_negatives);
        let [mut values, mut samples, mut exact] = [0u64; 3];
        for (outputs, targets) in table.rows() {
            let (mut known, mut correct) = (0, 0);
            for ((output, target), point) in outputs.iter().zip(targets).zip(points) {
                if !target.is_nan() {
                    known += 1;
                    correct += u64::from((*output >= point.threshold) == (*target > 0.5));
                }
            }
            values += known;
            samples += u64::from(known > 0);
            exact += u64::from(known > 0 && correct == known);
        }
        Self {
            macro_f1,
            micro_f1: f1(sum(|point| point.true_positives), false_positives, false_negatives),
            accuracy: ratio(values - false_positives - false_negatives, values),
            exact_match: ratio(exact, samples),
        }
    }
}
