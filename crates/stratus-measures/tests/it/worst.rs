//! The worst predictions of a table, and the predictions of a chart.

use proptest::prelude::*;
use stratus_measures::{LabelScores, Prediction, ScoreTable, TargetErrors};

const MISSING: f32 = f32::NAN;

fn table(columns: usize, outputs: &[f32], targets: &[f32]) -> ScoreTable {
    let mut table = ScoreTable::new(columns);
    table.append(outputs, targets).unwrap();
    table
}

fn positions(predictions: &[Prediction]) -> Vec<[usize; 2]> {
    predictions.iter().map(|found| [found.sample, found.column]).collect()
}

#[test]
fn the_most_confident_mistakes_of_labels_are_first() {
    let outputs = [5.0, -1.0, -4.0, 3.0, 0.5, 3.0, -2.0, 9.0];
    let targets = [0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, MISSING];
    let table = table(2, &outputs, &targets);
    let name = |label: usize| label.to_string();
    let found = LabelScores::with_thresholds(&table, 0.0, &[Some(0.5), None], name).unwrap();
    // The second label has the default threshold.
    assert_eq!(positions(&found.worst(&table, 9)), [[0, 0], [1, 0], [1, 1], [2, 1]]);
    assert_eq!(positions(&found.worst(&table, 3)), [[0, 0], [1, 0], [1, 1]]);
    assert_eq!(found.worst(&table, 1), [Prediction { sample: 0, column: 0, output: 5.0, target: 0.0 }]);
    assert_eq!(found.worst(&table, 0), []);
}

#[test]
fn errors_of_numbers_are_relative_to_their_target() {
    // Errors of 1, 2, 3 and 0 beside three errors of 100; one is missing.
    let outputs = [1.0, 100.0, 2.0, 105.0, 3.0, -95.0, 9.0, 7.0];
    let targets = [0.0, 0.0, 0.0, 5.0, 0.0, 5.0, 9.0, MISSING];
    let table = table(2, &outputs, &targets);
    let found = TargetErrors::new(&table, |target| target.to_string());
    // The RMSE are √(14/4) and 100.
    assert_eq!(positions(&found.worst(&table, 9)), [[2, 0], [1, 0], [0, 1], [1, 1], [2, 1], [0, 0]]);
    let exact = self::table(1, &[1.0, 2.0], &[1.0, 2.0]);
    assert_eq!(TargetErrors::new(&exact, |_| String::new()).worst(&exact, 5), []);
}

#[test]
fn points_of_a_chart_are_at_equal_distances() {
    let outputs: Vec<f32> = (0..10u8).map(f32::from).collect();
    let mut targets = outputs.clone();
    targets[2] = MISSING;
    let table = table(1, &outputs, &targets);
    let samples =
        |max_points| -> Vec<usize> { table.points(0, max_points).iter().map(|point| point.sample).collect() };
    assert_eq!(samples(9), [0, 1, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(samples(8), [0, 3, 5, 7, 9]);
    assert_eq!(samples(3), [0, 4, 7]);
    assert_eq!(samples(1), [0]);
    assert_eq!(samples(0), [0; 0]);
    assert_eq!(table.points(1, 5), []);
}

proptest! {
    #[test]
    fn the_worst_are_those_of_a_whole_sort(
        values in prop::collection::vec((-9i8..9, -9i8..9), 0..200),
        count in 0usize..30,
    ) {
        let (outputs, targets): (Vec<f32>, Vec<f32>) =
            values.iter().map(|&(output, target)| (f32::from(output), f32::from(target))).unzip();
        let table = table(1, &outputs, &targets);
        let found = TargetErrors::new(&table, |_| String::new()).worst(&table, count);
        let error = |sample: usize| (outputs[sample] - targets[sample]).abs();
        let mut all: Vec<usize> = (0..values.len()).filter(|&sample| error(sample) > 0.0).collect();
        all.sort_by(|&one, &other| error(other).total_cmp(&error(one)));
        all.truncate(count);
        prop_assert_eq!(found.iter().map(|found| found.sample).collect::<Vec<_>>(), all);
    }
}
