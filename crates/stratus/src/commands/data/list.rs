//! `stratus data list`: the data sets there are.

use serde::Serialize;
use stratus_data::datasets;

use crate::errors::Result;
use crate::output::{Output, pairs};

#[derive(Serialize)]
struct Listed {
    name: &'static str,
    summary: &'static str,
}

pub(super) fn list(output: &Output) -> Result {
    let sets: Vec<Listed> =
        datasets::REGISTRY.iter().map(|entry| Listed { name: entry.name, summary: entry.summary }).collect();
    output.result(&sets, || {
        pairs(&sets.iter().map(|set| (set.name.to_owned(), set.summary.to_owned())).collect::<Vec<_>>())
    })
}
