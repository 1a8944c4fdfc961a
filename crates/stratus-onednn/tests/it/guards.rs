//! What kernels may not do, whatever they compute: write beside their operands, depend on what memory held,
//! hide what is not a number.

use crate::common::guarded::run;
use crate::common::{LAYOUTS, backend, precisions};
use stratus_conformance::{Case, cases};
use stratus_engine::ops::Kernel;
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::{Backend, Choices, EngineError, Precision};
use stratus_onednn::OneDnn;

fn every_case(backend: &OneDnn, mut check: impl FnMut(&Case, Precision, &str) -> Result<(), String>) {
    let mut failures = Vec::new();
    for precision in precisions(backend) {
        for (case, layout) in
            cases::of(precision).iter().flat_map(|case| LAYOUTS.map(|layout| (case.clone(), layout)))
        {
            if let Err(problem) = check(&case, precision, layout) {
                failures.push(format!("{precision} {layout} `{}`: {problem}", case.name));
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn kernels_write_their_operands_alone_and_repeat_their_bits() {
    for threads in [1, 2] {
        let (Some(first), Some(second)) = (backend(threads), backend(threads)) else { return };
        every_case(&first, |case, precision, layout| {
            let (bits, _) = run(&first, case, precision, layout, &case.draw())?;
            let (again, _) = run(&second, case, precision, layout, &case.draw())?;
            if bits == again { Ok(()) } else { Err("other bits from the same inputs".to_owned()) }
        });
    }
}

/// Where the reference's result is not a number, the backend's is not either. It may be so elsewhere: a
/// kernel may multiply by zeros.
#[test]
fn a_nan_shows_where_the_reference_shows_it() {
    let Some(backend) = backend(2) else { return };
    every_case(&backend, |case, precision, layout| {
        let map = match case.kernel {
            Kernel::ReluForward(_)
            | Kernel::AddForward(_)
            | Kernel::ConcatForward(_)
            | Kernel::ConcatBackward(_)
            | Kernel::Dropout(_)
            | Kernel::Dropout2d(_)
            | Kernel::BiasGradient(_)
            | Kernel::Conv2dBackwardData(_)
            | Kernel::MaxPoolForward(_)
            | Kernel::AvgPoolForward(_)
            | Kernel::LrnForward(_)
            | Kernel::LayerNormForward(_)
            | Kernel::LayerNormGradients(_)
            | Kernel::LayerScale(_)
            | Kernel::SelectChannels(_)
            | Kernel::PlaceChannels(_)
            | Kernel::BatchNormApply(_)
            | Kernel::BatchNormAddApply(_)
            | Kernel::BatchNormStatistics(_)
            | Kernel::BatchNormInference(_)
            | Kernel::Conv2dForward(_)
            | Kernel::LinearForward(_)
            | Kernel::StemStatistics(_)
            | Kernel::StemApply(_)
            | Kernel::StemInference(_)
            | Kernel::Accumulate(_)
            | Kernel::Convert(_) => 0,
            _ => return Ok(()),
        };
        let mut contents = case.draw();
        let middle = contents[map].len() / 2;
        contents[map][middle] = f64::NAN;
        let (_, expected) = run(&ReferenceBackend, case, precision, "plain", &contents)?;
        let (_, got) = run(&backend, case, precision, layout, &contents)?;
        for ((operand, expected), got) in
            case.results().zip(&expected).zip(&got).filter(|r| r.0.0.name != "index")
        {
            let hidden =
                expected.iter().zip(got).filter(|(expected, got)| expected.is_nan() && !got.is_nan());
            match hidden.count() {
                0 => {}
                count => return Err(format!("`{}` hides {count} NaN", operand.name)),
            }
        }
        Ok(())
    });
}

#[test]
fn a_label_beyond_the_classes_is_an_error_that_names_the_sample() {
    let Some(backend) = backend(2) else { return };
    let case = cases::of(Precision::F32)
        .into_iter()
        .find(|case| case.name == "softmax_cross_entropy_gradient 64x10")
        .unwrap();
    let mut contents = case.draw();
    contents[1][37] = 10.0;
    let expected = run(&ReferenceBackend, &case, Precision::F32, "plain", &contents).unwrap_err();
    assert_eq!(run(&backend, &case, Precision::F32, "nhwc", &contents).unwrap_err(), expected);
    assert!(expected.contains("sample 37"), "{expected}");
}

/// Maps of a step in different layouts: an error, and no wrong result.
#[test]
fn maps_in_different_layouts_are_refused_by_native_kernels() {
    let Some(backend) = backend(1) else { return };
    for case in cases::of(Precision::F32) {
        let native = matches!(
            case.kernel,
            Kernel::BatchNormBackwardData(_)
                | Kernel::BatchNormGradients(_)
                | Kernel::BatchNormApply(_)
                | Kernel::BatchNormAddApply(_)
                | Kernel::BatchNormAddReluGradients(_)
                | Kernel::BatchNormInference(_)
                | Kernel::BatchNormInferenceBackward(_)
                | Kernel::MaxPoolBackward(_)
                | Kernel::MaxPoolForward(_)
                | Kernel::AvgPoolBackward(_)
                | Kernel::AvgPoolForward(_)
                | Kernel::LrnBackward(_)
                | Kernel::LrnForward(_)
                | Kernel::LayerNormBackward(_)
                | Kernel::LayerNormForward(_)
                | Kernel::LayerNormGradients(_)
                | Kernel::LayerScale(_)
                | Kernel::LayerScaleGradient(_)
                | Kernel::ReluBackward(_)
                | Kernel::ReluForward(_)
                | Kernel::AddForward(_)
                | Kernel::Dropout(_)
                | Kernel::Dropout2d(_)
                | Kernel::Accumulate(_)
        );
        let maps: Vec<&str> = case.operands().filter(|o| o.shape.len() == 4).map(|o| o.name).collect();
        if !native || maps.len() < 2 {
            continue;
        }
        // One block of 16 channels is the same bytes as 16 channels last.
        let is_either =
            case.operands().any(|operand| operand.shape.get(1) == Some(&16) || operand.shape == [16]);
        for (position, odd) in maps.iter().enumerate() {
            let tag = |name: &&str| if name == odd { "nChw16c" } else { "nhwc" };
            let layouts = maps.iter().map(|name| ((*name).to_owned(), tag(name).to_owned())).collect();
            let choices = Choices { layouts, ..Choices::default() };
            let what = format!("`{}` with operand {position} in blocks", case.name);
            match case.run(&backend, Precision::F32, choices) {
                Err(EngineError::Unsupported { .. }) => {}
                Err(error) => panic!("{what}: {error}"),
                Ok(got) => {
                    assert!(is_either, "{what}");
                    let plain = Choices::default();
                    let expected = case.run(&ReferenceBackend, Precision::F32, plain).unwrap();
                    case.compare(Precision::F32, &expected, &got)
                        .unwrap_or_else(|off| panic!("{what}: {off}"));
                }
            }
        }
    }
}

/// oneDNN issue 6035: the kernels that write out of bounds are not used where they do, and are where they do
/// not.
#[test]
fn kernels_that_are_known_to_write_out_of_bounds_are_not_used() {
    let Some(backend) = backend(2) else { return };
    let mut met = [0; 2];
    for case in cases::of(Precision::F32) {
        let Kernel::Conv2dBackwardWeights(k) = &case.kernel else { continue };
        if k.conv.kernel != [1, 1] {
            continue;
        }
        let request = stratus_engine::PrepareRequest {
            choices: crate::common::choices(&case, "nhwc"),
            ..Default::default()
        };
        let prepared = backend.prepare(&case.program(Precision::F32).unwrap(), &request).unwrap();
        let name = &prepared.steps[0].implementation;
        if k.conv.stride != [1, 1] && k.conv.in_channels < 16 {
            assert!(!name.starts_with("jit_1x1"), "`{}` runs on {name}", case.name);
            met[0] += 1;
        } else {
            met[1] += usize::from(name.starts_with("jit_1x1"));
        }
    }
    assert!(met[0] >= 2, "no case of the table is in danger");
    let wide = cfg!(all(target_os = "linux", target_arch = "x86_64"));
    assert!(met[1] > 0 || !wide, "the kernels in question have other names here: {met:?}");
}
