//! Tables of scores compared with scikit-learn (`scripts/check-measures.sh --write`).

use serde::Deserialize;
use serde_json::Value;
use stratus_measures::{LabelScores, ScoreTable, TargetErrors};

#[derive(Deserialize)]
struct Case {
    name: String,
    columns: usize,
    outputs: Vec<f32>,
    targets: Vec<Option<f32>>,
    /// Only for labels.
    threshold: Option<f32>,
    expected: Value,
}

/// Compares two documents; numbers within 1e-6.
fn assert_near(place: &str, found: &Value, expected: &Value) {
    match (found, expected) {
        (Value::Object(found), Value::Object(expected)) => {
            assert!(found.keys().eq(expected.keys()), "{place}: {found:?} instead of {expected:?}");
            for (key, value) in expected {
                assert_near(&format!("{place}, {key}"), &found[key], value);
            }
        }
        (Value::Array(found), Value::Array(expected)) => {
            assert_eq!(found.len(), expected.len(), "{place}");
            for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
                assert_near(&format!("{place}, {index}"), found, expected);
            }
        }
        (Value::Number(left), Value::Number(right)) if left.is_f64() && right.is_f64() => {
            let (left, right) = (left.as_f64().unwrap(), right.as_f64().unwrap());
            let near = (left - right).abs() <= 1e-6 * right.abs().max(1.0);
            assert!(near, "{place}: {left} instead of {right}");
        }
        _ => assert_eq!(found, expected, "{place}"),
    }
}

#[test]
fn labels_and_numbers_match_scikit_learn() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../fixtures/scores.json")).unwrap();
    assert_eq!(cases.iter().filter(|case| case.threshold.is_some()).count(), 5);
    assert_eq!(cases.iter().filter(|case| case.threshold.is_none()).count(), 3);
    for case in cases {
        let targets: Vec<f32> = case.targets.iter().map(|target| target.unwrap_or(f32::NAN)).collect();
        let mut table = ScoreTable::new(case.columns);
        table.append(&case.outputs, &targets).unwrap();
        let name = |column| format!("column {column}");
        let found = match case.threshold {
            Some(threshold) => serde_json::to_value(LabelScores::new(&table, threshold, name)),
            None => serde_json::to_value(TargetErrors::new(&table, name)),
        };
        assert_near(&case.name, &found.unwrap(), &case.expected);
    }
}
