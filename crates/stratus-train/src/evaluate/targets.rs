//! Scores labels and numbers: the outputs for all samples are gathered, and measured at the end.

use super::scores::TaskMetrics;
use crate::TrainError;
use crate::infer::sigmoid;
use crate::resolve::ResolvedProcess;
use std::mem;
use stratus_data::{BatchBuffer, Dataset};
use stratus_engine::{EngineError, Session};
use stratus_measures::{LabelScores, OperatingPoint, ScoreTable, TargetErrors};
use stratus_run::csv::Task;
use stratus_run::validation::{
    LabelPoint, MAX_CURVE_POINTS, MAX_CURVES, MAX_POINT_TARGETS, MAX_TARGET_POINTS, TargetPoint,
};

/// The logit from which each label applies; `None` for a label without one.
pub(crate) type LogitThresholds = Vec<Option<f32>>;

/// The scales of regression targets, and the thresholds of labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TargetScaling {
    /// Mean and standard deviation of each target, of numbers; empty for labels.
    scales: Vec<[f64; 2]>,
    /// Thresholds that were chosen before, on other samples; `None`: they are chosen on these.
    thresholds: Option<LogitThresholds>,
}

impl TargetScaling {
    /// The scales of an experiment, whose thresholds are chosen on the samples that are evaluated.
    pub fn new(resolved: &ResolvedProcess) -> Self {
        let numbers = |key: &Option<Vec<f64>>| key.clone().unwrap_or_default();
        let data = &resolved.settings().data;
        let scales = numbers(&data.target_mean).into_iter().zip(numbers(&data.target_std));
        Self { scales: scales.map(|(mean, std)| [mean, std]).collect(), thresholds: None }
    }

    /// The same with thresholds that were chosen before. With an empty list, thresholds are chosen on the
    /// samples that are evaluated.
    #[must_use]
    pub fn with_thresholds(self, thresholds: LogitThresholds) -> Self {
        Self { thresholds: (!thresholds.is_empty()).then_some(thresholds), ..self }
    }
}

/// The drawings of labels and numbers in reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TargetPlots {
    /// The precision–recall curves of the labels with the lowest average precision, ordered by label.
    pub curves: Vec<LabelPoint>,
    /// Predictions of the targets with the lowest R², ordered by target.
    pub points: Vec<TargetPoint>,
}

/// The outputs for samples, with their targets.
#[derive(Debug)]
pub(super) struct TargetScorer {
    task: Task,
    table: ScoreTable,
    scaling: TargetScaling,
    /// True if an output was NaN or infinite; then nothing is measured.
    not_finite: bool,
    /// Memory for the outputs and targets of a batch.
    outputs: Vec<f32>,
    targets: Vec<f32>,
}

impl TargetScorer {
    pub fn new(task: Task, columns: usize, scaling: TargetScaling) -> Self {
        let (outputs, targets) = (Vec::new(), Vec::new());
        Self { task, table: ScoreTable::new(columns), scaling, not_finite: false, outputs, targets }
    }

    pub fn columns(&self) -> usize {
        self.table.columns()
    }

    pub fn clear(&mut self) {
        self.table.clear();
        self.not_finite = false;
    }

    /// Adds the outputs `value` of the program's last run on a batch.
    ///
    /// # Errors
    /// If the device fails, or the targets cannot be read.
    pub fn add(
        &mut self,
        session: &Session,
        [program, value]: [usize; 2],
        batch: &BatchBuffer,
        dataset: &dyn Dataset,
    ) -> Result<(), TrainError> {
        let columns = self.columns().max(1);
        session.read_f32(program, value, &mut self.outputs)?;
        self.outputs.truncate(batch.samples * columns);
        for outputs in self.outputs.chunks_exact_mut(columns) {
            for (output, [mean, std]) in outputs.iter_mut().zip(&self.scaling.scales) {
                *output = (f64::from(*output) * std + mean) as f32;
            }
        }
        // A large output may overflow in the unit of its target.
        if !self.outputs.iter().all(|output| output.is_finite()) {
            self.not_finite = true;
            return Ok(());
        }
        self.targets.clear();
        for (&index, known) in batch.indices.iter().zip(batch.targets().chunks_exact(columns)) {
            // The targets in the batch are standardised; those of an image that was skipped are missing.
            let stored = dataset.targets(index as usize)?;
            let target = |(&stored, known): (&f32, &f32)| if known.is_nan() { f32::NAN } else { stored };
            self.targets.extend(stored.iter().zip(known).map(target));
        }
        Ok(self.table.append(&self.outputs, &self.targets)?)
    }

    /// The outputs and targets of each image of the batch that was added last, in the unit of the data set.
    pub fn last_batch(&self) -> impl Iterator<Item = (&[f32], &[f32])> {
        let columns = self.columns().max(1);
        let count = if self.not_finite { 0 } else { self.targets.len() };
        self.outputs.chunks_exact(columns).zip(self.targets[..count].chunks_exact(columns))
    }

    /// Takes the gathered outputs, and whether all were finite. None are left.
    pub fn take_table(&mut self) -> (ScoreTable, bool) {
        let empty = ScoreTable::new(self.columns());
        (mem::replace(&mut self.table, empty), !self.not_finite)
    }

    /// Replaces the outputs by those of all workers, which took turns batch by batch.
    ///
    /// # Errors
    /// If they have other columns.
    pub fn merge_turns(&mut self, all: &[ScoreTable], are_finite: bool) -> Result<(), TrainError> {
        self.table = ScoreTable::merge_turns(self.columns(), all)?;
        self.not_finite = !are_finite;
        Ok(())
    }

    /// The measures of labels, whose thresholds are probabilities, and the logits of these thresholds.
    ///
    /// # Errors
    /// If there are thresholds of another number of labels.
    pub fn labels(
        &self,
        name: impl Fn(usize) -> String,
    ) -> Result<(LabelScores, LogitThresholds), TrainError> {
        let empty = ScoreTable::new(self.columns());
        let table = if self.not_finite { &empty } else { &self.table };
        let default = LabelScores::LOGIT_THRESHOLD;
        let mut scores = match &self.scaling.thresholds {
            None => LabelScores::new(table, default, name),
            Some(thresholds) => LabelScores::with_thresholds(table, default, thresholds, name)?,
        };
        let thresholds = scores.thresholds();
        let to_probability = |point: &mut OperatingPoint| {
            point.threshold = sigmoid(f64::from(point.threshold)) as f32;
        };
        for label in &mut scores.labels {
            to_probability(&mut label.at_default);
            label.at_chosen.iter_mut().for_each(to_probability);
        }
        Ok((scores, thresholds))
    }

    /// The errors of numbers.
    pub fn numbers(&self, name: impl Fn(usize) -> String) -> TargetErrors {
        let empty = ScoreTable::new(self.columns());
        TargetErrors::new(if self.not_finite { &empty } else { &self.table }, name)
    }

    /// The drawings of these outputs, whose metrics are known. The result depends neither on the number of
    /// workers nor on their turns.
    pub fn plots(&self, metrics: &TaskMetrics) -> TargetPlots {
        let table = &self.table;
        let mut plots = TargetPlots::default();
        match metrics {
            _ if self.not_finite => {}
            TaskMetrics::MultiLabel(scores) => {
                let precisions = scores.labels.iter().map(|label| label.average_precision);
                for label in lowest(precisions, MAX_CURVES) {
                    let curve = table.ranking(label).curve(MAX_CURVE_POINTS);
                    plots.curves.extend(curve.iter().map(|point| LabelPoint {
                        label,
                        threshold: sigmoid(f64::from(point.threshold)) as f32,
                        recall: point.recall,
                        precision: point.precision,
                    }));
                }
            }
            TaskMetrics::Regression(errors) => {
                for target in lowest(errors.targets.iter().map(|target| target.r2), MAX_POINT_TARGETS) {
                    let points = table.points(target, MAX_TARGET_POINTS);
                    plots.points.extend(points.iter().map(|point| TargetPoint {
                        target,
                        number: point.target,
                        predicted: point.output,
                    }));
                }
            }
            TaskMetrics::Classification(_) | TaskMetrics::Segmentation(_) => {}
        }
        plots
    }

    /// True if labels are scored; else numbers.
    pub fn is_labels(&self) -> bool {
        self.task == Task::MultiLabel
    }
}

/// The positions of the `count` lowest values, in order. Undefined values are the highest, and the first of
/// equal values is the lowest.
fn lowest(values: impl Iterator<Item = Option<f64>>, count: usize) -> Vec<usize> {
    let mut values: Vec<(f64, usize)> = values.map(|value| value.unwrap_or(f64::INFINITY)).zip(0..).collect();
    values.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    values.truncate(count);
    let mut positions: Vec<usize> = values.into_iter().map(|(_, position)| position).collect();
    positions.sort_unstable();
    positions
}

/// A wrong prediction for an image.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TargetMistake {
    /// Labels that were predicted but do not apply, and that apply but were not predicted, the most confident
    /// first.
    Labels { wrong: Vec<usize>, missed: Vec<usize> },
    /// The target with the largest error in standard deviations, and its number.
    Number { target: usize, number: f32, predicted: f32 },
}

impl TargetScorer {
    /// The mistake in the outputs for an image, if there is one, and its severity: of labels, the
    /// distance of the logit from its threshold; of numbers, the error in standard deviations. Without chosen
    /// thresholds, labels apply from a probability of 0.5.
    pub fn mistake(&self, outputs: &[f32], targets: &[f32]) -> Option<(f64, TargetMistake)> {
        let known = outputs.iter().zip(targets).enumerate().filter(|(_, (_, target))| !target.is_nan());
        if self.is_labels() {
            let threshold = |label: usize| {
                let chosen =
                    self.scaling.thresholds.as_ref().and_then(|all| all.get(label).copied().flatten());
                chosen.unwrap_or(LabelScores::LOGIT_THRESHOLD)
            };
            let mut found: Vec<(f64, usize, bool)> = known
                .filter(|&(label, (output, target))| (*output >= threshold(label)) != (*target > 0.5))
                .map(|(label, (output, target))| {
                    (f64::from((output - threshold(label)).abs()), label, *target > 0.5)
                })
                .collect();
            found.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
            let severity = found.first()?.0;
            let labels = |applies: bool| {
                found.iter().filter(|label| label.2 == applies).map(|label| label.1).collect::<Vec<_>>()
            };
            return Some((severity, TargetMistake::Labels { wrong: labels(false), missed: labels(true) }));
        }
        let std = |target: usize| self.scaling.scales.get(target).map_or(1.0, |[_, std]| *std);
        let errors = known.map(|(target, (output, number))| {
            ((f64::from(*output) - f64::from(*number)).abs() / std(target), target, *number, *output)
        });
        let worst = errors.reduce(|worst, error| if error.0 > worst.0 { error } else { worst });
        let (severity, target, number, predicted) = worst.filter(|worst| worst.0 > 0.0)?;
        Some((severity, TargetMistake::Number { target, number, predicted }))
    }
}

/// An error of a program without predictions.
pub(super) fn no_predictions(network: &str) -> EngineError {
    EngineError::InvalidRequest(format!("`{network}` makes no predictions"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_measures::ScoreTable;

    fn scorer(task: Task, columns: usize) -> TargetScorer {
        TargetScorer::new(task, columns, TargetScaling::default())
    }

    fn metrics(scorer: &TargetScorer) -> TaskMetrics {
        let name = |index: usize| index.to_string();
        if scorer.is_labels() {
            TaskMetrics::MultiLabel(scorer.labels(name).unwrap().0)
        } else {
            TaskMetrics::Regression(scorer.numbers(name))
        }
    }

    #[test]
    fn the_lowest_values_are_kept_in_order() {
        let values = [Some(0.5), None, Some(0.1), Some(0.5), Some(-2.0)];
        let kept = |count: usize| lowest(values.into_iter(), count);
        assert_eq!(
            (kept(0), kept(2), kept(3), kept(9)),
            (vec![], vec![2, 4], vec![0, 2, 4], vec![0, 1, 2, 3, 4])
        );
    }

    /// The point at the threshold that a label got is on its curve, and says what the table of labels does.
    #[test]
    fn curves_have_the_thresholds_of_the_labels() {
        let mut scorer = scorer(Task::MultiLabel, 2);
        let outputs: Vec<f32> = (0..400u16).map(|i| f32::from(i * 37 % 101) / 9.0 - 5.0).collect();
        let targets: Vec<f32> = outputs
            .iter()
            .enumerate()
            .map(|(i, z)| f32::from(u8::from(*z > 0.0) ^ u8::from(i % 7 == 0)))
            .collect();
        scorer.table.append(&outputs, &targets).unwrap();
        let metrics = metrics(&scorer);
        let TaskMetrics::MultiLabel(scores) = &metrics else { panic!() };
        let plots = scorer.plots(&metrics);
        assert!(plots.points.is_empty());
        for label in &scores.labels {
            let chosen = label.at_chosen.unwrap();
            let curve: Vec<_> = plots.curves.iter().filter(|point| point.label == label.label).collect();
            assert!((50..=MAX_CURVE_POINTS).contains(&curve.len()), "{}", curve.len());
            let at: Vec<_> = curve.iter().filter(|point| point.threshold == chosen.threshold).collect();
            assert_eq!(at.len(), 1);
            assert_eq!((Some(at[0].precision), Some(at[0].recall)), (chosen.precision, chosen.recall));
            assert!(curve.iter().all(|point| (0.0..=1.0).contains(&point.threshold)));
        }
    }

    #[test]
    fn plots_of_several_workers_are_those_of_one() {
        let batch = |number: u16| -> (Vec<f32>, Vec<f32>) {
            let value = |i: u16| f32::from((number * 31 + i * 17) % 23) / 7.0 - 1.5;
            (
                (0..6).map(value).collect(),
                (3..9).map(|i| if i == 5 { f32::NAN } else { value(i).round() }).collect(),
            )
        };
        for task in [Task::MultiLabel, Task::Regression] {
            let mut tables = vec![ScoreTable::new(3); 3];
            let mut one = scorer(task, 3);
            for number in 0..8 {
                let (outputs, mut targets) = batch(number);
                if task == Task::MultiLabel {
                    targets.iter_mut().for_each(|target| *target = target.signum().max(0.0));
                }
                one.table.append(&outputs, &targets).unwrap();
                tables[usize::from(number) % 3].append(&outputs, &targets).unwrap();
            }
            let mut merged = scorer(task, 3);
            merged.merge_turns(&tables, true).unwrap();
            let expected = one.plots(&metrics(&one));
            assert_eq!(merged.plots(&metrics(&merged)), expected);
            assert!(expected.curves.len() + expected.points.len() >= 6, "{expected:?}");
            // Outputs that are not finite draw nothing.
            merged.not_finite = true;
            assert_eq!(merged.plots(&metrics(&merged)), TargetPlots::default());
        }
    }
}
