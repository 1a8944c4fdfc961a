//! Int8 inference against the reference backend.

use crate::common::network::offered;
use crate::common::{LAYOUTS, backend, choices, precisions};
use stratus_conformance::cases;
use stratus_engine::Kernel;
use stratus_engine::backend::{Backend, step_key};

/// Channels last, the layout of the kernels for bytes, and every layout of maps in real numbers; every
/// implementation of a convolution.
#[test]
fn every_case_and_implementation_matches_the_reference() {
    let mut compared = 0;
    for threads in [1, 3] {
        let Some(backend) = backend(threads) else { return };
        let max_weight = backend.max_int8_weight().unwrap();
        for precision in precisions(&backend) {
            for case in cases::quantised(precision, max_weight) {
                let program = case.program(precision).unwrap();
                let key = step_key(&program, &program.steps[0]);
                let plain = choices(&case, "nhwc");
                let tried = match case.kernel {
                    Kernel::QuantisedConv2d(_) => {
                        let names = offered(&backend, &program, &plain, &key);
                        names.into_iter().map(|name| (plain.clone(), name)).collect()
                    }
                    Kernel::FakeQuantise(_) | Kernel::FakeQuantiseBackward(_) => {
                        LAYOUTS.map(|layout| (choices(&case, layout), String::new())).to_vec()
                    }
                    _ => vec![(plain, String::new())],
                };
                for (mut choices, name) in tried {
                    if !name.is_empty() {
                        choices.implementations.insert(key.clone(), name.clone());
                    }
                    let got = case.run(&backend, precision, choices).unwrap();
                    let expected = case.expected(precision).unwrap();
                    case.compare(precision, &expected, &got)
                        .unwrap_or_else(|failure| panic!("{precision} `{}` by {name}: {failure}", case.name));
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 500, "{compared}");
}
