//! Metrics of yes-or-no labels, computed by hand and compared with direct implementations.

use proptest::prelude::*;
use stratus_measures::{CurvePoint, LabelRanking, LabelScores, MetricError, ScoreTable};

const MISSING: f32 = f32::NAN;

fn table(columns: usize, outputs: &[f32], targets: &[f32]) -> ScoreTable {
    let mut table = ScoreTable::new(columns);
    table.append(outputs, targets).unwrap();
    table
}

fn ranking(scores: &[f32], targets: &[f32]) -> LabelRanking {
    table(1, scores, targets).ranking(0)
}

fn scores(table: &ScoreTable, threshold: f32) -> LabelScores {
    LabelScores::new(table, threshold, |label| ["cat", "dog", "cow"][label].to_owned())
}

#[test]
fn ranks_a_label_by_hand() {
    // In the order of scores: positive, negative, a tie of both, positive; two targets are missing.
    let label = ranking(&[0.5, 0.9, 0.5, 0.7, 0.1, 0.8, 0.6], &[0.0, 1.0, 1.0, 0.0, 1.0, MISSING, MISSING]);
    assert_eq!((label.positives(), label.negatives(), label.missing()), (3, 2, 2));
    let precision = (1.0 + 2.0 / 4.0 + 3.0 / 5.0) / 3.0;
    assert!((label.average_precision().unwrap() - precision).abs() < 1e-12);
    // Of the six pairs, two are in order and one is a tie.
    assert_eq!(label.auc(), Some(2.5 / 6.0));
    let point = label.at(0.5);
    assert_eq!((point.true_positives, point.false_positives, point.false_negatives), (2, 2, 1));
    assert_eq!((point.precision, point.recall), (Some(0.5), Some(2.0 / 3.0)));
    assert_eq!(point.f1, Some(4.0 / 7.0));
    // Between two scores, the decisions are those of the higher one.
    assert_eq!(label.at(0.3).true_positives, label.at(0.5).true_positives);
    let nothing = label.at(0.91);
    assert_eq!((nothing.precision, nothing.recall, nothing.f1), (None, Some(0.0), Some(0.0)));
    assert_eq!(label.at(f32::NAN).false_negatives, 3);
    let best = label.best_f1().unwrap();
    assert_eq!((best.threshold, best.f1), (0.1, Some(0.75)));
}

#[test]
fn of_equal_f1_the_highest_threshold_is_chosen() {
    // F1 is 2/3 with the first score alone (1 of 1, 1 of 2), and with all four (2 of 4, 2 of 2).
    let label = ranking(&[4.0, 3.0, 2.0, 1.0], &[1.0, 0.0, 0.0, 1.0]);
    assert_eq!(label.at(1.0).f1, label.at(4.0).f1);
    assert_eq!(label.best_f1().unwrap().threshold, 4.0);
}

#[test]
fn thresholds_are_exact_scores() {
    let next = f32::from_bits(0.7f32.to_bits() + 1);
    let label = ranking(&[next, 0.7], &[1.0, 0.0]);
    let best = label.best_f1().unwrap();
    assert_eq!((best.threshold, best.f1, label.auc()), (next, Some(1.0), Some(1.0)));
    // 0 and -0 are a tie.
    let zeros = ranking(&[0.0, -0.0], &[1.0, 0.0]);
    assert_eq!((zeros.auc(), zeros.average_precision()), (Some(0.5), Some(0.5)));
    assert_eq!(zeros.at(0.0).false_positives, 1);
    // A logit is positive above 0, as in the loss.
    let logit = LabelScores::LOGIT_THRESHOLD;
    assert_eq!(ranking(&[0.0, f32::MIN_POSITIVE], &[1.0, 1.0]).at(logit).true_positives, 1);
}

#[test]
fn targets_of_one_half_are_negative() {
    let label = ranking(&[1.0, 2.0, 3.0], &[0.5, 0.51, 0.0]);
    assert_eq!((label.positives(), label.negatives()), (1, 2));
    assert_eq!(scores(&table(1, &[1.0], &[0.5]), 0.5).at_default.accuracy, Some(0.0));
}

#[test]
fn undefined_metrics_of_labels_are_none() {
    let empty = ranking(&[], &[]);
    assert_eq!((empty.average_precision(), empty.auc(), empty.best_f1()), (None, None, None));
    assert_eq!(empty.at(0.5).f1, None);
    assert_eq!(empty.curve(10), []);
    let negative = ranking(&[1.0, 2.0], &[0.0, 0.0]);
    assert_eq!((negative.average_precision(), negative.auc(), negative.best_f1()), (None, None, None));
    assert_eq!((negative.at(3.0).f1, negative.at(2.0).f1), (None, Some(0.0)));
    let positive = ranking(&[1.0, 2.0], &[1.0, 1.0]);
    assert_eq!((positive.average_precision(), positive.auc()), (Some(1.0), None));
    assert_eq!(positive.best_f1().unwrap().threshold, 1.0);

    // The first label is never known, the second never present.
    let partly = scores(&table(2, &[1.0, -1.0, 2.0, -3.0], &[MISSING, 0.0, MISSING, 0.0]), 0.0);
    assert_eq!((partly.samples, partly.mean_average_precision, partly.mean_auc), (2, None, None));
    assert_eq!((partly.at_default.macro_f1, partly.at_default.micro_f1), (None, None));
    assert_eq!((partly.at_default.accuracy, partly.at_default.exact_match), (Some(1.0), Some(1.0)));
    assert_eq!(partly.labels[0].missing, 2);
    assert_eq!(partly.thresholds(), [None, None]);
    let nothing = scores(&table(2, &[1.0, 2.0], &[MISSING; 2]), 0.0);
    assert_eq!((nothing.samples, nothing.at_default), (0, nothing.at_chosen));
    assert_eq!((nothing.at_default.accuracy, nothing.at_default.exact_match), (None, None));
    let none = scores(&ScoreTable::new(0), 0.0);
    assert_eq!((none.samples, none.labels.len(), none.at_chosen.micro_f1), (0, 0, None));
}

#[test]
fn all_labels_of_a_sample_must_match() {
    let outputs = [3.0, -1.0, 1.0, 1.0, -2.0, -1.0, -1.0, -1.0];
    let targets = [1.0, 0.0, 1.0, 0.0, 0.0, MISSING, MISSING, MISSING];
    let found = scores(&table(2, &outputs, &targets), LabelScores::LOGIT_THRESHOLD);
    // The second sample has a wrong label, the third a single one, the fourth none.
    assert_eq!(found.samples, 3);
    assert_eq!(found.at_default.exact_match, Some(2.0 / 3.0));
    assert_eq!(found.at_default.accuracy, Some(4.0 / 5.0));
    // Two labels are right and one is wrongly predicted; the second label is never present.
    assert_eq!(found.at_default.micro_f1, Some(4.0 / 5.0));
    assert_eq!(found.at_default.macro_f1, Some(0.5));
    assert_eq!(found.at_chosen.macro_f1, Some(1.0));
    // Without a threshold of its own, the second label is decided at the default threshold.
    assert_eq!((found.thresholds(), found.at_chosen.micro_f1), (vec![Some(1.0), None], Some(4.0 / 5.0)));
}

#[test]
fn thresholds_of_other_samples_are_used_as_they_are() {
    let chosen = scores(&table(2, &[1.0, 5.0, 2.0, 6.0], &[0.0, 1.0, 1.0, 0.0]), 0.0).thresholds();
    assert_eq!(chosen, [Some(2.0), Some(5.0)]);
    let other = table(2, &[1.5, 4.0, 2.5, 7.0], &[1.0, 0.0, 1.0, 1.0]);
    let name = |label: usize| label.to_string();
    let found = LabelScores::with_thresholds(&other, 0.0, &chosen, name).unwrap();
    assert_eq!(found.thresholds(), chosen);
    // 1.5 is below its threshold.
    assert_eq!(found.labels[0].at_chosen.unwrap().f1, Some(2.0 / 3.0));
    assert_eq!(found.labels[1].at_chosen.unwrap().f1, Some(1.0));
    assert_eq!(found.at_chosen.exact_match, Some(0.5));
    assert_eq!(found.at_default.exact_match, Some(0.5));
    let error = LabelScores::with_thresholds(&other, 0.0, &[None], name).unwrap_err();
    assert_eq!(error, MetricError::ColumnCountMismatch { columns: 2, found: 1 });
    let missing = LabelScores::with_thresholds(&other, 0.0, &[None, Some(1.0)], name).unwrap();
    assert_eq!((missing.labels[0].at_chosen, missing.at_chosen.macro_f1), (None, Some(2.0 / 3.0)));
}

#[test]
fn stores_label_scores_by_the_documented_names() {
    let found = scores(&table(1, &[1.0, -1.0], &[1.0, 0.0]), 0.5);
    let text = serde_json::to_string(&found).unwrap();
    let all = r#"{"macro_f1":1.0,"micro_f1":1.0,"accuracy":1.0,"exact_match":1.0}"#;
    let point = |threshold: &str| {
        format!(r#"{{"threshold":{threshold},"true_positives":1,"false_positives":0,"false_negatives":0,"#)
            + r#""precision":1.0,"recall":1.0,"f1":1.0}"#
    };
    let (default, chosen) = (point("0.5"), point("1.0"));
    let label = r#"{"label":0,"name":"cat","positives":1,"negatives":1,"missing":0,"#.to_owned()
        + r#""average_precision":1.0,"auc":1.0,"#
        + &format!(r#""at_default":{default},"at_chosen":{chosen}}}"#);
    let expected = r#"{"samples":2,"mean_average_precision":1.0,"mean_auc":1.0,"#.to_owned()
        + &format!(r#""at_default":{all},"at_chosen":{all},"labels":[{label}]}}"#);
    assert_eq!(text, expected);
    assert_eq!(serde_json::from_str::<LabelScores>(&text).unwrap(), found);
}

#[test]
fn short_curves_are_complete() {
    let curve = ranking(&[3.0, 2.0, 2.0, 1.0], &[1.0, 0.0, 1.0, 0.0]).curve(4);
    let point = |threshold, recall, precision| CurvePoint { threshold, recall, precision };
    assert_eq!(curve, [point(3.0, 0.5, 1.0), point(2.0, 1.0, 2.0 / 3.0), point(1.0, 1.0, 0.5)]);
}

/// F1 at a point of a curve.
fn f1(point: &CurvePoint) -> f64 {
    2.0 * point.precision * point.recall / (point.precision + point.recall).max(f64::MIN_POSITIVE)
}

/// Scores with many ties, targets, and some missing.
fn samples() -> impl Strategy<Value = Vec<(f32, f32)>> {
    let target = prop_oneof![4 => Just(0.0f32), 4 => Just(1.0f32), 1 => Just(MISSING)];
    let score = (-8i8..8).prop_map(|value| f32::from(value) / 4.0);
    prop::collection::vec((score, target), 0..60)
}

proptest! {
    #[test]
    fn rankings_match_their_definitions(samples in samples(), threshold in -9i8..9) {
        let (scores, targets): (Vec<f32>, Vec<f32>) = samples.iter().copied().unzip();
        let label = ranking(&scores, &targets);
        let with = |wanted: f32| {
            let kept = samples.iter().filter(|(_, target)| *target == wanted);
            kept.map(|(score, _)| *score).collect::<Vec<f32>>()
        };
        let (positives, negatives) = (with(1.0), with(0.0));
        // The share of ordered pairs.
        let pairs = positives.iter().flat_map(|left| negatives.iter().map(move |right| (left, right)));
        let ordered: f64 = pairs
            .map(|(left, right)| if left > right { 1.0 } else if left == right { 0.5 } else { 0.0 })
            .sum();
        let auc = ordered / (positives.len() * negatives.len()) as f64;
        prop_assert!(label.auc().map_or(auc.is_nan(), |found| (found - auc).abs() < 1e-12));
        let above = |scores: &[f32], threshold: f32| {
            scores.iter().filter(|&&score| score >= threshold).count() as f64
        };
        // Average precision is also the mean over positives of the precision at their score.
        let precision = |&threshold: &f32| {
            above(&positives, threshold)
                / (above(&positives, threshold) + above(&negatives, threshold))
        };
        let average = positives.iter().map(precision).sum::<f64>() / positives.len() as f64;
        let found = label.average_precision();
        prop_assert!(found.map_or(average.is_nan(), |found| (found - average).abs() < 1e-12));
        // No threshold has a higher F1 than the best, and no higher threshold has the same.
        let f1 = |threshold: f32| {
            let (right, wrong) = (above(&positives, threshold), above(&negatives, threshold));
            2.0 * right / (right + wrong + positives.len() as f64)
        };
        let threshold = f32::from(threshold) / 4.0;
        let point = label.at(threshold);
        prop_assert_eq!(point.true_positives as f64, above(&positives, threshold));
        prop_assert_eq!(point.false_positives as f64, above(&negatives, threshold));
        prop_assert_eq!((point.true_positives + point.false_negatives) as usize, positives.len());
        if let Some(best) = label.best_f1() {
            prop_assert!(positives.contains(&best.threshold));
            prop_assert!((best.f1.unwrap() - f1(best.threshold)).abs() < 1e-12);
            for &score in &scores {
                let margin = if score > best.threshold { 1e-9 } else { -1e-12 };
                prop_assert!(f1(score) < best.f1.unwrap() - margin, "{score} {best:?}");
            }
        } else {
            prop_assert!(positives.is_empty());
        }
    }

    #[test]
    fn thinned_curves_keep_their_ends_and_maxima(
        samples in prop::collection::vec((-1e3f32..1e3, prop::bool::weighted(0.3)), 1..400),
        max_points in 0usize..40,
    ) {
        let scores: Vec<f32> = samples.iter().map(|sample| sample.0).collect();
        let targets: Vec<f32> = samples.iter().map(|sample| f32::from(u8::from(sample.1))).collect();
        let label = ranking(&scores, &targets);
        let (whole, thin) = (label.curve(usize::MAX), label.curve(max_points));
        prop_assert!(thin.len() <= max_points.max(4));
        prop_assert_eq!((thin.first(), thin.last()), (whole.first(), whole.last()));
        prop_assert!(thin.iter().all(|point| whole.contains(point)));
        prop_assert!(thin.windows(2).all(|pair| pair[0].threshold > pair[1].threshold));
        let highest = |curve: &[CurvePoint], value: fn(&CurvePoint) -> f64| {
            curve.iter().map(value).fold(0.0, f64::max)
        };
        prop_assert!((highest(&thin, f1) - highest(&whole, f1)).abs() < 1e-12);
        prop_assert_eq!(highest(&thin, |p| p.precision), highest(&whole, |p| p.precision));
        if let Some(best) = label.best_f1() {
            prop_assert!(thin.iter().any(|point| point.threshold == best.threshold));
        }
    }
}

#[test]
fn thinned_curves_follow_the_whole_one() {
    // Scores fall, and so does the share of positives: the curve is smooth and falls from 1.
    let samples: Vec<(f32, f32)> = (0..20_000u32)
        .map(|index| {
            let hash = f64::from(index.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 24);
            (-(index as f32), f32::from(u8::from(hash < 1.0 - f64::from(index) / 20_000.0)))
        })
        .collect();
    let (scores, targets): (Vec<f32>, Vec<f32>) = samples.into_iter().unzip();
    let label = ranking(&scores, &targets);
    let (whole, thin) = (label.curve(usize::MAX), label.curve(100));
    assert_eq!(whole.len(), 20_000);
    assert!((90..=100).contains(&thin.len()), "{}", thin.len());
    // Every point is near the straight line between its neighbours among the thinned points.
    let mut from = thin.windows(2);
    let mut ends = from.next().unwrap();
    for point in &whole {
        while point.threshold < ends[1].threshold {
            ends = from.next().unwrap();
        }
        let across = (ends[1].recall - ends[0].recall).max(1e-9);
        let share = ((point.recall - ends[0].recall) / across).clamp(0.0, 1.0);
        let line = ends[0].precision + share * (ends[1].precision - ends[0].precision);
        let gap = (line - point.precision).abs();
        assert!(gap < 0.02 || point.recall < 0.01, "{point:?}, {line}");
    }
}
