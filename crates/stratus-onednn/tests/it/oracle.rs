//! Every case of the case tables, in every precision, layout and number of threads, against the reference
//! backend.

use crate::common::{
    LAYOUTS, OfferedImplementation, PRECISIONS, backend, choices, implementations, precisions,
};
use stratus_conformance::{Case, Report, Suite, cases};
use stratus_engine::ops::KernelSpec;
use stratus_engine::plan::{Persistent, Plan};
use stratus_engine::{Backend, Choices, Clock, Kernel, Precision, Section, Session};
use stratus_onednn::OneDnn;
use stratus_testing::sample::sample;

/// The expected error text for cases that the backend does not support; `None` for all others.
fn refusal(backend: &OneDnn, case: &Case, precision: Precision) -> Option<&'static str> {
    let on_onednn = matches!(
        case.kernel,
        Kernel::Conv2dForward(_)
            | Kernel::Conv2dBackwardData(_)
            | Kernel::Conv2dBackwardWeights(_)
            | Kernel::LinearForward(_)
            | Kernel::LinearBackwardData(_)
            | Kernel::LinearBackwardWeights(_)
            | Kernel::LinearUpdate(_)
    );
    (on_onednn && !backend.supports(precision)).then_some("needs AVX-512")
}

#[test]
fn refuses_half_and_double_precision() {
    let Some(backend) = backend(1) else { return };
    for precision in [Precision::F16, Precision::F64] {
        assert!(!backend.precisions().contains(&precision));
        let suite = Suite::new(&backend).expecting_errors(|_, _| Some(""));
        suite.run(precision, &cases::for_precision(precision)).assert_passed();
    }
}

/// Runs every `step`-th case, from `offset`, in every layout.
fn compare(threads: usize, step: usize, offset: usize) {
    let Some(backend) = backend(threads) else { return };
    let layouts = |case: &Case| LAYOUTS.map(|layout| (layout.to_owned(), choices(case, layout))).to_vec();
    let suite = Suite::new(&backend).with_variants(layouts);
    let suite = suite.expecting_errors(|case, precision| refusal(&backend, case, precision));
    let mut report = Report::default();
    for precision in PRECISIONS {
        let cases: Vec<Case> = sample(cases::for_precision(precision), step, offset).collect();
        report.extend(suite.run(precision, &cases));
    }
    report.assert_passed();
}

#[test]
fn every_case_matches_the_reference_on_one_thread() {
    compare(1, 1, 0);
}

// `make test` runs every other case on two threads, and the others on three.
#[test]
fn cases_match_the_reference_on_two_threads() {
    compare(2, 2, 0);
}

#[test]
fn cases_match_the_reference_on_three_threads() {
    compare(3, 2, 1);
}

/// The prefixes of the names of native implementations, and of oneDNN's in another role; longer ones first.
const PREFIXES: [&str; 6] =
    ["stratus:winograd:vnni:", "stratus:winograd:", "stratus:", "product:", "forward:", "f32:"];

/// Every implementation of a step, oneDNN's or native: unmeasured plans take the first, so here each is
/// requested by name.
#[test]
fn every_implementation_matches_the_reference() {
    let (mut compared, mut ours, mut kinds) = (0, std::collections::BTreeSet::new(), 0);
    for threads in [1, 3] {
        let Some(backend) = backend(threads) else { return };
        let has = |instructions: &[&str]| instructions.iter().any(|name| backend.describe().contains(name));
        // Native kernels of a convolution (forward, forward with ReLU, both gradients), the weight
        // gradients of convolutions and of linear layers as products, and the input's gradient of a
        // linear layer.
        kinds = 7;
        // With AVX2 or AVX-512, which bf16 needs too, dense 3x3 convolutions and their gradients have one
        // more implementation. Convolutions of bf16 maps also run in f32; the input's gradient of 1x1
        // convolutions runs on a forward kernel with AVX2.
        let bf16 = precisions(&backend).contains(&Precision::Bf16);
        let avx2 = !bf16 && has(&["AVX2"]);
        kinds += if bf16 { 8 } else { 0 };
        kinds += if avx2 { 5 } else { 0 };
        // Integer products (VNNI) add one for the forward passes and the input's gradient.
        kinds += if bf16 && has(&["VNNI", "BF16", "FP16"]) { 3 } else { 0 };
        for precision in precisions(&backend) {
            for case in cases::for_precision(precision) {
                let mut expected = None;
                for OfferedImplementation { layout, name, choices } in
                    implementations(&backend, &case, precision)
                {
                    let got = case.run(&backend, precision, choices).unwrap();
                    let expected = expected.get_or_insert_with(|| case.expected(precision).unwrap());
                    case.compare(precision, expected, &got).unwrap_or_else(|failure| {
                        panic!("{precision} `{}` {layout} by {name}: {failure}", case.name)
                    });
                    compared += 1;
                    let own = PREFIXES.into_iter().find(|own| name.starts_with(own));
                    ours.extend(own.map(|own| format!("{own}{}", case.kernel.name())));
                }
            }
        }
    }
    assert!(compared > 500 && ours.len() == kinds, "{compared} {ours:?}");
}

/// Concat copies channels by position: one map may be channels last and the next blocked.
#[test]
fn concat_accepts_maps_in_different_layouts() {
    let Some(backend) = backend(2) else { return };
    let mut mixed = 0;
    for case in cases::for_precision(Precision::F32) {
        if !matches!(case.kernel, Kernel::ConcatForward(_) | Kernel::ConcatBackward(_)) {
            continue;
        }
        let expected = case.expected(Precision::F32).unwrap();
        for odd in 0..2 {
            let layout = |position: usize| LAYOUTS[(position + odd) % 2].to_owned();
            let names = case.operands().enumerate();
            let layouts = names.map(|(position, operand)| (operand.name.to_owned(), layout(position)));
            let choices = Choices { layouts: layouts.collect(), ..Choices::default() };
            let got = case.run(&backend, Precision::F32, choices).unwrap();
            case.compare(Precision::F32, &expected, &got).unwrap();
            mixed += 1;
        }
    }
    assert!(mixed > 40, "{mixed}");
}

/// Runs a case sample by sample, in order or in reverse; its first input and its output have a row per
/// sample.
fn run_in_tiles(
    backend: &OneDnn,
    case: &Case,
    precision: Precision,
    layout: &str,
    from_last: bool,
) -> Vec<f64> {
    let mut program = case.program(precision).unwrap();
    let step = program.steps[0].clone();
    for id in [step.inputs[0], step.outputs[0]] {
        program.values[id.0].per_sample = true;
    }
    program.sections.push(Section {
        first: 0,
        count: 1,
        tiles: program.batch,
        micro_batches: false,
        reversed: from_last,
        in_flight: 1,
    });
    let mut persistent = Persistent::default();
    let plan = Plan::prepare(backend, &program, choices(case, layout), false, &mut persistent).unwrap();
    let mut session = Session::new(vec![plan], persistent).unwrap();
    for (id, contents) in step.inputs.iter().zip(case.generate_inputs()) {
        session.write_value(0, id.0, &contents).unwrap();
    }
    session.run(0, &mut [], &mut [], &mut Clock::disabled(1), 0).unwrap();
    session.read_value(0, step.outputs[0].0).unwrap()
}

/// Masks match the reference's in every element and layout, whole or tiled.
#[test]
fn dropout_masks_match_the_reference() {
    let Some(backend) = backend(3) else { return };
    let mut in_tiles = 0;
    for (precision, layout) in PRECISIONS.into_iter().flat_map(|p| LAYOUTS.map(|layout| (p, layout))) {
        for case in cases::for_precision(precision) {
            if !matches!(case.kernel, Kernel::Dropout(_)) {
                continue;
            }
            let expected = case.expected(precision).unwrap();
            let got = case.run(&backend, precision, choices(&case, layout)).unwrap();
            let dropped = |results: &[Vec<f64>]| results[0].iter().map(|&y| y == 0.0).collect::<Vec<_>>();
            assert_eq!(dropped(&expected), dropped(&got), "{precision} {layout} `{}`", case.name);
            if case.inputs[0].shape[0] > 1 {
                for from_last in [false, true] {
                    let tiled = run_in_tiles(&backend, &case, precision, layout, from_last);
                    assert_eq!(tiled, got[0], "{precision} {layout} `{}` in tiles", case.name);
                    in_tiles += 1;
                }
            }
        }
    }
    assert!(in_tiles > 40, "{in_tiles}");
}
