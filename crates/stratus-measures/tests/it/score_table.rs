//! Tables of scores: what they accept, and how those of workers are merged.

use stratus_measures::{MetricError, ScoreTable};

const MISSING: f32 = f32::NAN;

/// A table of two columns with a batch of the given numbers of samples each, numbered from `first`.
fn numbered(batches: &[usize], mut first: usize) -> ScoreTable {
    let mut table = ScoreTable::new(2);
    for &samples in batches {
        let outputs: Vec<f32> = (2 * first..2 * (first + samples)).map(|value| value as f32).collect();
        let targets: Vec<f32> = outputs.iter().map(|value| -value).collect();
        table.append(&outputs, &targets).unwrap();
        first += samples;
    }
    table
}

#[test]
fn reads_rows_and_columns() {
    let mut table = ScoreTable::with_capacity(2, 3);
    table.append(&[1.0, 2.0, 3.0, 4.0], &[0.0, 1.0, MISSING, 0.5]).unwrap();
    table.append(&[], &[]).unwrap();
    table.append(&[5.0, 6.0], &[1.0, 1.0]).unwrap();
    assert_eq!((table.columns(), table.samples()), (2, 3));
    let rows: Vec<&[f32]> = table.rows().map(|(outputs, _)| outputs).collect();
    assert_eq!(rows, [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]);
    assert_eq!(table.column(1).collect::<Vec<_>>(), [(2.0, 1.0), (4.0, 0.5), (6.0, 1.0)]);
    assert!(table.column(0).nth(1).unwrap().1.is_nan());
    assert_eq!(table.column(2).count(), 0);
    assert_eq!((table.ranking(0).missing(), table.ranking(2).missing()), (1, 0));
    table.clear();
    assert_eq!((table.samples(), table.rows().len(), table.column(0).count()), (0, 0, 0));
    let empty = ScoreTable::new(0);
    assert_eq!((empty.samples(), empty.rows().len(), empty.column(0).count()), (0, 0, 0));
}

#[test]
fn rejects_scores_that_are_not_finite_and_names_them() {
    let mut table = numbered(&[3], 0);
    let nan = table.append(&[1.0, 2.0, 3.0, f32::NAN], &[MISSING; 4]).unwrap_err();
    assert_eq!(nan, MetricError::NotFinite { item: "output", sample: 4, column: 1 });
    assert_eq!(nan.to_string(), "the output of sample 4 in column 1 is not a finite number");
    let infinite = table.append(&[f32::NEG_INFINITY, 2.0], &[0.0, 1.0]).unwrap_err();
    assert_eq!(infinite, MetricError::NotFinite { item: "output", sample: 3, column: 0 });
    let target = table.append(&[1.0, 2.0], &[0.0, f32::INFINITY]).unwrap_err();
    assert_eq!(target.to_string(), "the target of sample 3 in column 1 is not a finite number");
    let size = |columns, outputs, targets| MetricError::TableSizeMismatch { columns, outputs, targets };
    assert_eq!(table.append(&[1.0, 2.0], &[0.0]), Err(size(2, 2, 1)));
    assert_eq!(table.append(&[1.0], &[0.0]), Err(size(2, 1, 1)));
    assert_eq!(ScoreTable::new(0).append(&[1.0], &[0.0]), Err(size(0, 1, 1)));
    assert_eq!(size(2, 3, 1).to_string(), "3 outputs and 1 targets are no rows of 2 columns");
    assert_eq!(table.outputs(), numbered(&[3], 0).outputs());
    assert_eq!(table.targets().len(), 6);
}

#[test]
fn merges_tables_in_their_order() {
    let mut first = numbered(&[2, 1], 0);
    first.merge(&numbered(&[3], 3)).unwrap();
    assert_eq!(first.outputs(), numbered(&[6], 0).outputs());
    assert_eq!(first.targets(), numbered(&[6], 0).targets());
    let error = first.merge(&ScoreTable::new(3)).unwrap_err();
    assert_eq!(error, MetricError::ColumnCountMismatch { columns: 2, found: 3 });
    assert_eq!(error.to_string(), "expected 2 columns, one per label or target, found 3");
}

#[test]
fn tables_of_workers_that_took_turns_become_that_of_one() {
    // Batches of 2 samples; the last batch has one.
    let whole = numbered(&[2, 2, 2, 1], 0);
    let (mut even, mut odd) = (numbered(&[2], 0), numbered(&[2], 2));
    even.merge(&numbered(&[2], 4)).unwrap();
    odd.merge(&numbered(&[1], 6)).unwrap();
    let merged = ScoreTable::merge_turns(2, &[even.clone(), odd]).unwrap();
    assert_eq!((merged.outputs(), merged.targets()), (whole.outputs(), whole.targets()));
    // Merged batches can be merged again.
    let again = ScoreTable::merge_turns(2, &[merged]).unwrap();
    assert_eq!(again.outputs(), whole.outputs());
    // A worker without samples took no turn.
    let alone = ScoreTable::merge_turns(2, &[ScoreTable::new(2), even.clone()]).unwrap();
    assert_eq!(alone.outputs(), even.outputs());
    assert_eq!(ScoreTable::merge_turns(2, &[]).unwrap().samples(), 0);
    let error = ScoreTable::merge_turns(3, &[even]).unwrap_err();
    assert_eq!(error, MetricError::ColumnCountMismatch { columns: 3, found: 2 });
}

#[test]
fn tables_survive_as_bytes() {
    let mut table = ScoreTable::new(2);
    table.append(&[0.25, -0.0, f32::MIN_POSITIVE, 4.0], &[1.0, f32::NAN, 0.0, 0.5]).unwrap();
    table.append(&[-3.5, 2.0], &[f32::NAN, f32::NAN]).unwrap();
    let bytes = table.to_bytes();
    let read = ScoreTable::from_bytes(&bytes).unwrap();
    assert_eq!(read.to_bytes(), bytes);
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(read.outputs()), bits(table.outputs()));
    assert_eq!(bits(read.targets()), bits(table.targets()));
    // The batches too: merged in turns, they alternate.
    let merged = ScoreTable::merge_turns(2, &[read, table]).unwrap();
    assert_eq!(bits(&merged.outputs()[..8]), bits(&[0.25, -0.0, f32::MIN_POSITIVE, 4.0].repeat(2)));
    for length in 0..bytes.len() {
        assert!(ScoreTable::from_bytes(&bytes[..length]).is_err(), "{length} bytes");
    }
    let mut huge = bytes;
    huge[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(ScoreTable::from_bytes(&huge).is_err());
    assert_eq!(ScoreTable::from_bytes(&ScoreTable::new(0).to_bytes()).unwrap().samples(), 0);
}
