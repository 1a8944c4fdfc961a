//! Errors of predicted numbers, computed by hand.

use stratus_measures::{ScoreTable, TargetErrors};

const MISSING: f32 = f32::NAN;

fn errors(columns: usize, outputs: &[f32], targets: &[f32]) -> TargetErrors {
    let mut table = ScoreTable::new(columns);
    table.append(outputs, targets).unwrap();
    TargetErrors::new(&table, |target| ["age", "size"][target].to_owned())
}

#[test]
fn computes_errors_by_hand() {
    let found = errors(2, &[1.0, 10.0, 3.0, 20.0, 5.0, 7.0], &[2.0, 14.0, 4.0, MISSING, 9.0, 8.0]);
    assert_eq!(found.samples, 3);
    let age = &found.targets[0];
    assert_eq!((age.samples, age.missing, age.mean), (3, 0, Some(5.0)));
    // Errors 1, 1 and 4; squared deviations 9, 1 and 16.
    assert_eq!((age.mae, age.r2), (Some(2.0), Some(1.0 - 18.0 / 26.0)));
    assert!((age.rmse.unwrap() - 6f64.sqrt()).abs() < 1e-12);
    let size = &found.targets[1];
    assert_eq!((size.samples, size.missing, size.mean), (2, 1, Some(11.0)));
    assert_eq!((size.mae, size.rmse, size.r2), (Some(2.5), Some(8.5f64.sqrt()), Some(1.0 - 17.0 / 18.0)));
    assert_eq!(found.mae, Some(2.25));
    assert!((found.r2.unwrap() - (8.0 / 26.0 + 1.0 / 18.0) / 2.0).abs() < 1e-12);
}

#[test]
fn undefined_errors_are_none() {
    // Of a constant, the rounded mean of the sum differs from the number.
    let constant = errors(1, &[1.0; 10], &[0.1; 10]);
    assert_eq!((constant.r2, constant.targets[0].r2), (None, None));
    assert!((constant.mae.unwrap() - 0.9).abs() < 1e-7);
    let single = errors(2, &[1.0, 2.0], &[1.5, MISSING]);
    assert_eq!((single.r2, single.mae, single.rmse), (None, Some(0.5), Some(0.5)));
    let absent = &single.targets[1];
    assert_eq!((absent.samples, absent.missing), (0, 1));
    assert_eq!((absent.mean, absent.mae, absent.rmse, absent.r2), (None, None, None, None));
    let empty = errors(1, &[1.0, 2.0], &[MISSING, MISSING]);
    assert_eq!((empty.samples, empty.mae, empty.rmse, empty.r2), (0, None, None, None));
}

#[test]
fn the_largest_numbers_do_not_overflow() {
    let found = errors(1, &[f32::MAX, f32::MIN], &[f32::MIN, f32::MAX]);
    assert_eq!(found.rmse, Some(2.0 * f64::from(f32::MAX)));
    assert_eq!(found.r2, Some(-3.0));
    let small = f32::from_bits(1);
    assert_eq!(errors(1, &[0.0, small], &[0.0, small]).r2, Some(1.0));
}

#[test]
fn stores_errors_by_the_documented_names() {
    let found = errors(1, &[1.0, 2.0], &[1.0, 4.0]);
    let text = serde_json::to_string(&found).unwrap();
    assert_eq!(
        text.replace(&2f64.sqrt().to_string(), "√2"),
        r#"{"samples":2,"mae":1.0,"rmse":√2,"r2":0.11111111111111116,"targets":[{"target":0,"#.to_owned()
            + r#""name":"age","samples":2,"missing":0,"mean":2.5,"mae":1.0,"rmse":√2,"#
            + r#""r2":0.11111111111111116}]}"#
    );
    assert_eq!(serde_json::from_str::<TargetErrors>(&text).unwrap(), found);
}
