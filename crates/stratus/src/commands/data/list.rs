//! `stratus data list`: lists the known data sets.

use serde::Serialize;
use stratus_data::datasets;

use crate::errors::Result;
use crate::output::{Output, key_value_list};

#[derive(Serialize)]
struct DatasetRow {
    name: &'static str,
    summary: &'static str,
}

pub(super) fn list(output: &Output) -> Result {
    let sets: Vec<DatasetRow> = datasets::REGISTRY
        .iter()
        .map(|entry| DatasetRow { name: entry.name, summary: entry.summary })
        .collect();
    output.print_wrapped(&sets, || {
        key_value_list(
            &sets.iter().map(|set| (set.name.to_owned(), set.summary.to_owned())).collect::<Vec<_>>(),
        )
    })
}
