//! Fused convolutions in inference against the reference backend.

use crate::common::network::offered;
use crate::common::{LAYOUTS, backend, choices, precisions};
use std::collections::BTreeSet;
use stratus_conformance::{Fill, cases};
use stratus_engine::Kernel;
use stratus_engine::backend::step_key;

/// Every layout of maps and every implementation. Activations of which oneDNN would lose a NaN run in place,
/// as do those behind native kernels, except for depthwise convolutions.
#[test]
fn every_case_and_implementation_matches_the_reference() {
    let (mut compared, mut families, mut in_registers) = (0, BTreeSet::new(), BTreeSet::new());
    for threads in [1, 3] {
        let Some(backend) = backend(threads) else { return };
        for precision in precisions(&backend) {
            for case in cases::inference(precision) {
                let program = case.program(precision).unwrap();
                let key = step_key(&program, &program.steps[0]);
                let expected = case.expected(precision).unwrap();
                for layout in LAYOUTS {
                    let choices = choices(&case, layout);
                    for name in offered(&backend, &program, &choices, &key) {
                        let mut choices = choices.clone();
                        choices.implementations.insert(key.clone(), name.clone());
                        let got = case.run(&backend, precision, choices).unwrap();
                        case.compare(precision, &expected, &got).unwrap_or_else(|failure| {
                            panic!("{precision} `{}` {layout} by {name}: {failure}", case.name)
                        });
                        compared += 1;
                        let family = name.split(':').next().unwrap_or_default();
                        let kind =
                            if family == "stratus" { &name[..name.rfind(':').unwrap()] } else { family };
                        let is_onednn = !["stratus", "separate", "f32"].contains(&family);
                        families.insert(if is_onednn { "oneDNN" } else { kind }.to_owned());
                        if let (true, Kernel::Conv2dInference(kernel)) = (is_onednn, &case.kernel) {
                            in_registers.insert((kernel.adds, format!("{:?}", kernel.activation)));
                        }
                    }
                }
            }
        }
    }
    assert!(compared > 500, "{compared}");
    for family in ["oneDNN", "separate", "stratus:depthwise", "stratus:grouped"] {
        assert!(families.contains(family), "{families:?}");
    }
    // Alone and after a sum: no activation, ReLU, leaky ReLU, GELU, hard swish, Mish and SiLU.
    assert_eq!(in_registers.len(), 14, "{in_registers:?}");
}

/// A NaN in the image reaches the output whatever the activation, so that a diverged network is noticed.
#[test]
fn nan_is_propagated() {
    let Some(backend) = backend(2) else { return };
    for precision in precisions(&backend) {
        for mut case in cases::inference(precision) {
            let Kernel::Conv2dInference(kernel) = case.kernel else { panic!("{}", case.name) };
            // A sum's addend is the last input.
            let last = case.inputs.len() - 1;
            let position = if kernel.adds { last } else { 0 };
            let program = case.program(precision).unwrap();
            let key = step_key(&program, &program.steps[0]);
            case.inputs[position].fill = Fill::Missing;
            for layout in LAYOUTS {
                let choices = choices(&case, layout);
                for name in offered(&backend, &program, &choices, &key) {
                    let mut choices = choices.clone();
                    choices.implementations.insert(key.clone(), name.clone());
                    let got = case.run(&backend, precision, choices).unwrap();
                    let is_kept = got.iter().flatten().all(|value| value.is_nan());
                    assert!(is_kept, "{precision} `{}` {layout} by {name}", case.name);
                }
            }
        }
    }
}
