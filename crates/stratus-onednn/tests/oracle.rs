//! Every case of the case tables, in every precision, layout and number of threads, against the reference backend.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{LAYOUTS, PRECISIONS, backend, choices};
use stratus_engine::cases;
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::{Choices, EngineError, Precision};

/// Cases that the backend says it cannot run: precision, layout, the beginning of the case's name, and a part of the reason.
const UNSUPPORTED: [(Precision, &str, &str, &str); 0] = [];

fn compare_all(threads: usize) {
    let Some(backend) = backend(threads) else { return };
    let mut failures = Vec::new();
    let mut used = [false; UNSUPPORTED.len()];
    for precision in PRECISIONS {
        for case in cases::of(precision) {
            let expected = cases::run(&ReferenceBackend, &case, precision, Choices::default()).unwrap();
            for layout in LAYOUTS {
                let listed = UNSUPPORTED
                    .iter()
                    .position(|u| (u.0, u.1) == (precision, layout) && case.name.starts_with(u.2));
                let failure = match (cases::run(&backend, &case, precision, choices(&case, layout)), listed) {
                    (Ok(got), None) => case.compare(precision, &expected, &got).err(),
                    (Ok(_), Some(_)) => Some("it is listed as unsupported, and runs".to_owned()),
                    (Err(EngineError::Unsupported { reason, .. }), Some(listed))
                        if reason.contains(UNSUPPORTED[listed].3) =>
                    {
                        used[listed] = true;
                        None
                    }
                    (Err(error), _) => Some(error.to_string()),
                };
                failures.extend(failure.map(|failure| format!("{precision} {layout} `{}`: {failure}", case.name)));
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    assert_eq!(used, [true; UNSUPPORTED.len()], "something listed as unsupported is no case");
}

#[test]
fn every_case_on_one_thread() {
    compare_all(1);
}

#[test]
fn every_case_on_two_threads() {
    compare_all(2);
}

#[test]
fn every_case_on_three_threads() {
    compare_all(3);
}
