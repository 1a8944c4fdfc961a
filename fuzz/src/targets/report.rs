//! Run directories of strangers, as a page: each file in turn is damaged.

use crate::scratch;
use std::slice;
use stratus_report::{page, report::Report};

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "report",
    run,
    seeds: seeds::report,
    dictionary: &[
        "<b0fuzz",
        "</script><b0fuzz",
        "\"><b0fuzz",
        "\"status\"",
        "\"time\"",
        "[model]",
        "\"train\"",
        "\"program\"",
        "\"steps\"",
        "\"values\"",
    ],
    max_bytes: 65536,
};

fn run(data: &[u8]) {
    let Some((&choice, content)) = data.split_first() else { return };
    let names = [
        "experiment.toml",
        "summary.json",
        "machine.json",
        "plan.json",
        "data.json",
        "epochs.csv",
        "iterations.csv",
        "usage.csv",
        "classes.csv",
        "variants.csv",
        "optimise/pruning.json",
        "optimise/request.json",
        "workers/1/usage.csv",
    ];
    for (number, name) in names.into_iter().enumerate() {
        let path =
            scratch::file(&format!("run/{name}"), if number == usize::from(choice) { content } else { b"" });
        if number != usize::from(choice) && number > 0 {
            let _ = std::fs::remove_file(path);
        }
    }
    let report = Report::read(slice::from_ref(&scratch::folder().join("run")), None, None);
    let html = page::render(&report);
    assert!(!html.contains("<b0fuzz"), "text of a run is not escaped");
}
