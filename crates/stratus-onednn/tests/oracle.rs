//! Every case of the case tables, in every precision, layout and number of threads, against the reference backend.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{LAYOUTS, PRECISIONS, backend, choices};
use stratus_engine::cases::{self, Case};
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::{Choices, EngineError, Kernel, Precision};
use stratus_onednn::OneDnn;

/// What the backend may refuse, and the words it does so with. Everything else runs.
fn refusal(backend: &OneDnn, case: &Case, precision: Precision) -> Option<&'static str> {
    let on_onednn = matches!(
        case.kernel,
        Kernel::Conv2dForward(_)
            | Kernel::Conv2dBackwardData(_)
            | Kernel::Conv2dBackwardWeights(_)
            | Kernel::LinearForward(_)
            | Kernel::LinearBackwardData(_)
            | Kernel::LinearBackwardWeights(_)
    );
    (on_onednn && !backend.supports(precision)).then_some("processors with AVX-512 alone")
}

fn compare_all(threads: usize) {
    let Some(backend) = backend(threads) else { return };
    let mut failures = Vec::new();
    for precision in PRECISIONS {
        for case in cases::of(precision) {
            let expected = cases::run(&ReferenceBackend, &case, precision, Choices::default()).unwrap();
            for layout in LAYOUTS {
                let got = cases::run(&backend, &case, precision, choices(&case, layout));
                let failure = match (got, refusal(&backend, &case, precision)) {
                    (Ok(got), None) => case.compare(precision, &expected, &got).err(),
                    (Ok(_), Some(_)) => Some("it should be refused, and runs".to_owned()),
                    (Err(EngineError::Unsupported { reason, .. }), Some(part)) if reason.contains(part) => {
                        None
                    }
                    (Err(error), _) => Some(error.to_string()),
                };
                failures.extend(
                    failure.map(|failure| format!("{precision} {layout} `{}`: {failure}", case.name)),
                );
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
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

#[test]
fn double_precision_is_refused() {
    let Some(backend) = backend(1) else { return };
    for case in cases::of(Precision::F64) {
        let result = cases::run(&backend, &case, Precision::F64, Choices::default());
        assert!(matches!(result, Err(EngineError::Unsupported { .. })), "`{}`: {result:?}", case.name);
    }
}
