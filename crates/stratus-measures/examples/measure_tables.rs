//! Reads tables of scores, a JSON object per line, and prints the metrics of each, a JSON object per line.
//! `scripts/check-measures.sh` compares them with scikit-learn's.
//!
//!     cargo run -p stratus-measures --example measure_tables < TABLES
//!
//! A table has `columns`, and `outputs` and `targets` of `[samples, columns]`, where a target of null is
//! missing. With `threshold`, its columns are labels, else numbers.

#![allow(clippy::unwrap_used, reason = "an example fails by panicking")]

use serde::Deserialize;
use serde_json::Value;
use stratus_measures::{LabelScores, ScoreTable, TargetErrors};

#[derive(Deserialize)]
struct Case {
    columns: usize,
    outputs: Vec<f32>,
    targets: Vec<Option<f32>>,
    threshold: Option<f32>,
}

fn metrics(case: &Case) -> Value {
    let targets: Vec<f32> = case.targets.iter().map(|target| target.unwrap_or(f32::NAN)).collect();
    let mut table = ScoreTable::new(case.columns);
    table.append(&case.outputs, &targets).unwrap();
    let name = |column: usize| format!("column {column}");
    match case.threshold {
        Some(threshold) => serde_json::to_value(LabelScores::new(&table, threshold, name)).unwrap(),
        None => serde_json::to_value(TargetErrors::new(&table, name)).unwrap(),
    }
}

fn main() {
    for line in std::io::stdin().lines() {
        let case: Case = serde_json::from_str(&line.unwrap()).unwrap();
        println!("{}", metrics(&case));
    }
}
