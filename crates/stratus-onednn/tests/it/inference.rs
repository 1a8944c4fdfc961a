//! Fused convolutions in inference against the reference backend.

use crate::common::{OfferedImplementation, backend, implementations, precisions};
use std::collections::BTreeSet;
use stratus_conformance::{Fill, cases};
use stratus_engine::Kernel;

/// Every layout of maps and every implementation, and that each form of epilogue has been tried.
#[test]
fn every_case_and_implementation_matches_the_reference() {
    let (mut compared, mut families, mut in_registers) = (0, BTreeSet::new(), BTreeSet::new());
    for threads in [1, 3] {
        let Some(backend) = backend(threads) else { return };
        for precision in precisions(&backend) {
            for case in cases::inference(precision) {
                let Kernel::Conv2dInference(kernel) = case.kernel else { panic!("{}", case.name) };
                let expected = case.expected(precision).unwrap();
                for OfferedImplementation { layout, name, choices } in
                    implementations(&backend, &case, precision)
                {
                    let got = case.run(&backend, precision, choices).unwrap();
                    case.compare(precision, &expected, &got).unwrap_or_else(|failure| {
                        panic!("{precision} `{}` {layout} by {name}: {failure}", case.name)
                    });
                    compared += 1;
                    let families_of_ours =
                        ["stratus:depthwise", "stratus:grouped", "stratus:", "separate:", "f32:"];
                    let ours = families_of_ours.into_iter().find(|family| name.starts_with(family));
                    if ours.is_none() {
                        in_registers.insert((kernel.adds, format!("{:?}", kernel.activation)));
                    }
                    families.insert((ours, kernel.adds));
                }
            }
        }
    }
    assert!(compared > 500, "{compared}");
    for family in [None, Some("separate:"), Some("stratus:depthwise"), Some("stratus:grouped")] {
        for adds in [false, true] {
            assert!(families.contains(&(family, adds)), "{family:?} {adds}: {families:?}");
        }
    }
    // Alone and after a sum: no activation, ReLU, leaky ReLU, GELU, hard swish, Mish and SiLU.
    assert_eq!(in_registers.len(), 14, "{in_registers:?}");
}

/// A NaN in the image, or in the map that is added, reaches the output whatever the activation, so that a
/// diverged network is noticed.
#[test]
fn nan_is_propagated() {
    let Some(backend) = backend(2) else { return };
    for precision in precisions(&backend) {
        for mut case in cases::inference(precision) {
            let Kernel::Conv2dInference(kernel) = case.kernel else { panic!("{}", case.name) };
            let position = if kernel.adds { kernel.inputs() - 1 } else { 0 };
            case.inputs[position].fill = Fill::Missing;
            for OfferedImplementation { layout, name, choices } in implementations(&backend, &case, precision)
            {
                let got = case.run(&backend, precision, choices).unwrap();
                let is_kept = got.iter().flatten().all(|value| value.is_nan());
                assert!(is_kept, "{precision} `{}` {layout} by {name}", case.name);
            }
        }
    }
}
