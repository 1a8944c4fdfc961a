//! Recognises runs that have not learned anything: their outputs are no better than a constant answer.

use stratus_experiment::Experiment;
use stratus_measures::{ClassMetrics, LabelMetrics, TargetMetrics};
use stratus_run::classes::OutputMetrics;
use stratus_run::csv::{EpochRow, Task};

/// The maximum probability that constant answers are right for all validation samples. Where it is higher,
/// there are too few samples to tell results from chance.
const MAX_PERFECT_BY_CHANCE: f64 = 1e-3;
/// The number of samples with a target below which a negative R² says nothing.
const MIN_NUMBERS: u64 = 20;
/// The number of standard errors that separate a result from chance.
const STANDARD_ERRORS: f64 = 2.0;
/// The number of iterations below which the warning suggests more of them.
const MIN_ITERATIONS: u64 = 100;

/// The warning for a run whose validation results are not better than those of always predicting the most
/// frequent class, random scores, or the mean. `outputs` are the metrics of the last validation. `None` if
/// nothing was counted, or if there are too few samples to tell.
pub(super) fn chance_warning(
    settings: &Experiment,
    task: Task,
    rows: &[EpochRow],
    outputs: &OutputMetrics,
    iterations: u64,
) -> Option<String> {
    let classes = &outputs.classes[..];
    match task {
        Task::Classification | Task::Segmentation => {}
        Task::MultiLabel => return labels_by_chance(settings, rows, &outputs.labels, iterations),
        Task::Regression => return numbers_by_chance(settings, rows, &outputs.targets, iterations),
    }
    let best = rows.iter().filter_map(|row| row.val_accuracy).filter(|value| value.is_finite());
    let best = best.reduce(f64::max)?;
    let counted: Vec<&ClassMetrics> = classes.iter().filter(|class| class.samples > 0).collect();
    let most = counted.iter().max_by_key(|class| class.samples)?;
    let total: u64 = counted.iter().map(|class| class.samples).sum();
    let share = most.samples as f64 / total as f64;
    if counted.len() < 2 {
        return None;
    }
    let is_chance = match task {
        Task::Classification => is_classification_by_chance(best, &counted, total, share),
        Task::Segmentation => is_segmentation_by_chance(best, rows, counted.len(), share),
        Task::MultiLabel | Task::Regression => false,
    };
    is_chance.then(|| {
        let (measure, samples) = match task {
            Task::Classification => ("top-1 accuracy", "validation images"),
            _ => ("pixel accuracy", "validation pixels"),
        };
        format!(
            "the network has learned nothing: its best {measure}, {:.2} %, is not better than that of always \
             answering `{}`, the class of {:.2} % of the {samples}; {}",
            100.0 * best,
            stratus_base::printable(&most.name),
            100.0 * share,
            advice(settings, iterations)
        )
    })
}

/// The warning for labels that are ranked no better than at random: their mean area under the ROC curve is
/// within the error of a half.
fn labels_by_chance(
    settings: &Experiment,
    rows: &[EpochRow],
    labels: &[LabelMetrics],
    iterations: u64,
) -> Option<String> {
    let best = rows.iter().filter_map(|row| row.labels.val_auc).reduce(f64::max)?;
    // The variance of the statistic of Mann and Whitney for random scores.
    let variance = |label: &LabelMetrics| {
        let (positives, negatives) = (label.positives as f64, label.negatives as f64);
        (positives + negatives + 1.0) / (12.0 * positives * negatives)
    };
    let ranked: Vec<f64> =
        labels.iter().filter(|label| label.positives > 0 && label.negatives > 0).map(variance).collect();
    let error = ranked.iter().sum::<f64>().sqrt() / ranked.len().max(1) as f64;
    // A perfect network could not be told from chance.
    let can_tell = !ranked.is_empty() && STANDARD_ERRORS * error < 0.5;
    (can_tell && best <= 0.5 + STANDARD_ERRORS * error).then(|| {
        format!(
            "the network has learned nothing: its best mean area under the ROC curve, {best:.4}, is not \
             better than that of random answers, 0.5; {}",
            advice(settings, iterations)
        )
    })
}

/// The warning for numbers that are predicted no better than by their mean.
fn numbers_by_chance(
    settings: &Experiment,
    rows: &[EpochRow],
    targets: &[TargetMetrics],
    iterations: u64,
) -> Option<String> {
    let best = rows.iter().filter_map(|row| row.val_accuracy).reduce(f64::max)?;
    let samples = targets.iter().map(|target| target.samples).min()?;
    (best <= 0.0 && samples >= MIN_NUMBERS).then(|| {
        format!(
            "the network has learned nothing: its best R², {best:.4}, is not better than that of always \
             answering the mean, 0; {}",
            advice(settings, iterations)
        )
    })
}

/// True if the accuracy is within the error of chance, and so is the mean accuracy of the classes, which is
/// higher if rare classes are recognised at the cost of frequent ones.
fn is_classification_by_chance(best: f64, counted: &[&ClassMetrics], total: u64, share: f64) -> bool {
    let samples = total as f64;
    // A perfect network could not be told from chance.
    if share.powf(samples) > MAX_PERFECT_BY_CHANCE {
        return false;
    }
    let error = (share * (1.0 - share) / samples).sqrt();
    let classes = counted.len() as f64;
    let mean_accuracy = counted.iter().map(|class| class.accuracy.unwrap_or(0.0)).sum::<f64>() / classes;
    let class_share = 1.0 / classes;
    let variance = |class: &&ClassMetrics| class_share * (1.0 - class_share) / class.samples as f64;
    let mean_error = counted.iter().map(variance).sum::<f64>().sqrt() / classes;
    best <= share + STANDARD_ERRORS * error && mean_accuracy <= class_share + STANDARD_ERRORS * mean_error
}

/// True if neither accuracy nor mean IoU is higher than with a constant answer. Pixels of an image depend on
/// each other, so there is no error of chance to allow for.
fn is_segmentation_by_chance(best: f64, rows: &[EpochRow], classes: usize, share: f64) -> bool {
    let miou = rows.iter().filter_map(|row| row.val_miou).filter(|value| value.is_finite());
    let constant_miou = share / classes as f64;
    best <= share && miou.reduce(f64::max).is_some_and(|miou| miou <= constant_miou)
}

/// The suggested change: of the number of iterations if they were few, else of the learning rate.
fn advice(settings: &Experiment, iterations: u64) -> String {
    let batch = settings.train.batch_size;
    if iterations < MIN_ITERATIONS {
        let plural = if iterations == 1 { "" } else { "s" };
        return format!(
            "{iterations} iteration{plural} of {batch} images are few: use smaller batches (--batch), more \
             epochs (--epochs) or another learning rate (--lr)"
        );
    }
    let rate = settings.optimiser.learning_rate * settings.learning_rate_factor().unwrap_or(1.0);
    format!(
        "use a learning rate (--lr) ten times lower or higher than {}, or smaller batches (--batch), and \
         look at images and labels with `stratus data show`",
        stratus_base::text::significant(rate)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_measures::{LabelScores, ScoreTable, TargetErrors};
    use stratus_run::csv::LabelColumns;

    fn classes(counts: &[(u64, f64)]) -> Vec<ClassMetrics> {
        let class = |(class, &(samples, accuracy)): (usize, &(u64, f64))| ClassMetrics {
            class,
            name: format!("c{class}"),
            samples,
            accuracy: Some(accuracy),
            iou: None,
            bf: None,
        };
        counts.iter().enumerate().map(class).collect()
    }

    /// The warning for rows of epochs with a measure, which `row` makes, and for these outputs.
    fn warning_of(task: Task, rows: &[EpochRow], outputs: &OutputMetrics) -> Option<String> {
        let settings = Experiment::builtin("digits").unwrap();
        chance_warning(&settings, task, rows, outputs, 1000)
    }

    #[test]
    fn labels_and_numbers_by_chance_are_recognised() {
        let outputs_of = |samples: usize| {
            let mut table = ScoreTable::new(1);
            let targets: Vec<f32> =
                (0..samples).map(|sample| (sample % 4 == 0).into()).map(|is: u8| is.into()).collect();
            table.append(&vec![0.5; samples], &targets).unwrap();
            let name = |_| "one".to_owned();
            let labels = LabelScores::new(&table, LabelScores::LOGIT_THRESHOLD, name).labels;
            OutputMetrics {
                labels,
                targets: TargetErrors::new(&table, name).targets,
                ..OutputMetrics::default()
            }
        };
        let ranked = |auc: f64| {
            let labels = LabelColumns { val_auc: Some(auc), ..LabelColumns::default() };
            [EpochRow::default(), EpochRow { labels, ..EpochRow::default() }]
        };
        let found = warning_of(Task::MultiLabel, &ranked(0.52), &outputs_of(400)).unwrap();
        assert!(found.contains("mean area under the ROC curve, 0.5200, is not better"), "{found}");
        assert_eq!(warning_of(Task::MultiLabel, &ranked(0.7), &outputs_of(400)), None);
        // Two standard errors of 8 samples reach a perfect ranking.
        assert_eq!(warning_of(Task::MultiLabel, &ranked(0.4), &outputs_of(4)), None);
        let found = warning_of(Task::Regression, &[row(Some(-0.1), None)], &outputs_of(40)).unwrap();
        assert!(found.contains("its best R², -0.1000, is not better"), "{found}");
        assert_eq!(warning_of(Task::Regression, &[row(Some(0.01), None)], &outputs_of(40)), None);
        assert_eq!(warning_of(Task::Regression, &[row(Some(-0.1), None)], &outputs_of(8)), None);
    }

    fn row(val_accuracy: Option<f64>, val_miou: Option<f64>) -> EpochRow {
        EpochRow { val_accuracy, val_miou, ..EpochRow::default() }
    }

    fn warning(
        task: Task,
        best: f64,
        miou: Option<f64>,
        counts: &[(u64, f64)],
        iterations: u64,
    ) -> Option<String> {
        let settings = Experiment::builtin("digits").unwrap().with_overrides(&[("train.batch_size", "4096")]);
        let rows = [row(None, None), row(Some(best), miou), row(Some(f64::NAN), None)];
        let outputs = OutputMetrics { classes: classes(counts), ..OutputMetrics::default() };
        chance_warning(&settings.unwrap(), task, &rows, &outputs, iterations)
    }

    #[test]
    fn constant_answers_are_recognised() {
        let constant = [(980, 0.0), (1135, 1.0), (1032, 0.0)];
        let found = warning(Task::Classification, 1135.0 / 3147.0, None, &constant, 2).unwrap();
        assert_eq!(
            found,
            "the network has learned nothing: its best top-1 accuracy, 36.07 %, is not better than that of \
             always answering `c1`, the class of 36.07 % of the validation images; 2 iterations of 4096 \
             images are few: use smaller batches (--batch), more epochs (--epochs) or another learning rate \
             (--lr)"
        );
        let random = [(1000, 0.11), (1000, 0.09), (1000, 0.03)];
        let found = warning(Task::Classification, 0.05, None, &random, 5000).unwrap();
        assert!(found.contains("; use a learning rate (--lr) ten times"), "{found}");
        assert!(warning(Task::Segmentation, 0.6, Some(0.3), &[(600, 1.0), (400, 0.0)], 500).is_some());
    }

    #[test]
    fn results_raise_no_false_alarm() {
        let of = |best, counts: &[(u64, f64)]| warning(Task::Classification, best, None, counts, 2);
        assert_eq!(of(0.5, &[(1000, 0.5), (1000, 0.5), (1000, 0.5)]), None);
        // Rare classes are recognised, with an accuracy below the share of the frequent class.
        assert_eq!(of(0.85, &[(900, 0.86), (100, 0.8)]), None);
        // Few or unbalanced images, where even a perfect network could be chance.
        assert_eq!(of(0.5, &[(3, 1.0), (3, 0.0)]), None);
        assert_eq!(of(0.95, &[(95, 1.0), (5, 0.0)]), None);
        // One class, classes that were not counted, and no validation.
        assert_eq!(of(1.0, &[(500, 1.0), (0, 0.0)]), None);
        assert_eq!(of(0.1, &[]), None);
        assert_eq!(warning(Task::Classification, f64::NAN, None, &[(50, 0.0), (50, 0.0)], 2), None);
        let balanced = [(900, 0.8), (100, 0.7)];
        assert_eq!(warning(Task::Segmentation, 0.8, Some(0.5), &balanced, 500), None);
        assert_eq!(warning(Task::Segmentation, 0.8, None, &balanced, 500), None);
    }
}
