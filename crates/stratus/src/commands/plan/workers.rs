//! The share of one of several workers as text.

use crate::output::table;
use stratus_base::text::bytes;
use stratus_train::plan_summary::{GradientBucket, WorkerShare};

/// The rows of the summary.
pub(super) fn summary_rows(shared: &WorkerShare) -> [(String, String); 2] {
    let WorkerShare { workers, parts, parts_of_each, images_of_part, .. } = shared;
    let note = shared.reproducibility_note.map_or(String::new(), |note| format!("; {note}"));
    [
        (
            "workers".to_owned(),
            format!("{workers}, each with {parts_of_each} of {parts} parts of {images_of_part} images"),
        ),
        (
            "exchange".to_owned(),
            format!(
                "{} in {} buckets; a worker sends {} per step{note}",
                bytes(shared.exchanged_bytes),
                shared.buckets.len(),
                bytes(shared.sent_bytes)
            ),
        ),
    ]
}

/// Renders one row per bucket.
pub(super) fn bucket_table(shared: &WorkerShare) -> String {
    let row = |(number, bucket): (usize, &GradientBucket)| {
        [
            format!(
                "  {number}, {} tensors, after step {} ({})",
                bucket.tensors, bucket.after_step, bucket.layer
            ),
            bytes(bucket.bytes),
        ]
    };
    let mut rows = vec![["gradient buckets, sent when complete".to_owned(), String::new()]];
    rows.extend(shared.buckets.iter().enumerate().map(row));
    table(&rows)
}
