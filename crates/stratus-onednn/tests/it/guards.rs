//! Guarantees of all kernels: they do not write outside of their operands, do not depend on uninitialised
//! memory, and do not hide NaN.

use crate::common::guarded::run;
use crate::common::{LAYOUTS, backend, precisions};
use stratus_conformance::{Case, cases};
use stratus_engine::ops::Kernel;
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::{Backend, Choices, EngineError, Precision};
use stratus_onednn::OneDnn;
use stratus_testing::sample::sample;

/// Checks every case in every layout; in `make test` in one of the two, alternating from `offset`.
fn every_case(
    backend: &OneDnn,
    offset: usize,
    mut check: impl FnMut(&Case, Precision, &str) -> Result<(), String>,
) {
    let mut failures = Vec::new();
    for precision in precisions(backend) {
        for (position, case) in cases::for_precision(precision).iter().enumerate() {
            for layout in sample(LAYOUTS, 2, position + offset) {
                if let Err(problem) = check(case, precision, layout) {
                    failures.push(format!("{precision} {layout} `{}`: {problem}", case.name));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn kernels_write_only_their_operands_and_are_deterministic() {
    for threads in [1, 2] {
        let (Some(first), Some(second)) = (backend(threads), backend(threads)) else { return };
        every_case(&first, threads, |case, precision, layout| {
            let (bits, _) = run(&first, case, precision, layout, &case.generate_inputs())?;
            let (again, _) = run(&second, case, precision, layout, &case.generate_inputs())?;
            if bits == again { Ok(()) } else { Err("not deterministic".to_owned()) }
        });
    }
}

/// If the reference's result is NaN, the backend's is too. The backend may have more NaN: a kernel may
/// multiply by zeros.
#[test]
fn kernels_propagate_nan_like_the_reference() {
    let Some(backend) = backend(2) else { return };
    every_case(&backend, 0, |case, precision, layout| {
        let map = match case.kernel {
            // Their inputs are integers, or targets, of which NaN is a missing one.
            Kernel::CountLabels(_) | Kernel::NormalisePixels(_) => return Ok(()),
            // The reference multiplies NaN by a gradient of 0, or by a weight of 0; the kernels skip both.
            Kernel::BatchNormGradients(_) | Kernel::ResizeBackward(_) => return Ok(()),
            _ => 0,
        };
        let mut contents = case.generate_inputs();
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
fn an_out_of_range_label_is_an_error_that_names_the_sample() {
    let Some(backend) = backend(2) else { return };
    let case = cases::for_precision(Precision::F32)
        .into_iter()
        .find(|case| case.name == "softmax_cross_entropy_gradient 64x10")
        .unwrap();
    let mut contents = case.generate_inputs();
    contents[1][37] = 10.0;
    let expected = run(&ReferenceBackend, &case, Precision::F32, "plain", &contents).unwrap_err();
    assert_eq!(run(&backend, &case, Precision::F32, "nhwc", &contents).unwrap_err(), expected);
    assert!(expected.contains("sample 37"), "{expected}");
}

#[test]
fn a_label_that_is_no_share_is_an_error_that_names_the_sample() {
    let Some(backend) = backend(2) else { return };
    let case = cases::for_precision(Precision::F32)
        .into_iter()
        .find(|case| case.name == "binary_cross_entropy_gradient 64x9")
        .unwrap();
    let mut contents = case.generate_inputs();
    contents[1][37 * 9 + 4] = 1.1;
    let expected = run(&ReferenceBackend, &case, Precision::F32, "plain", &contents).unwrap_err();
    assert_eq!(run(&backend, &case, Precision::F32, "nhwc", &contents).unwrap_err(), expected);
    assert!(expected.contains("sample 37: label 4 is 1.1, which is not in [0, 1]"), "{expected}");
}

/// Maps of a step in different layouts are an error, not a wrong result.
#[test]
fn native_kernels_refuse_maps_in_different_layouts() {
    let Some(backend) = backend(1) else { return };
    for case in cases::for_precision(Precision::F32) {
        let accepts_mixed = matches!(
            case.kernel,
            Kernel::AdaptiveUpdate(_)
                | Kernel::AddBias(_)
                | Kernel::AddTiles(_)
                | Kernel::AdjustLossScale(_)
                | Kernel::AllReduceBucket(_)
                | Kernel::BatchNormStatistics(_)
                | Kernel::BatchNormStatisticsFromSums(_)
                | Kernel::BatchNormSums(_)
                | Kernel::BiasGradient(_)
                | Kernel::ChannelScale(_)
                | Kernel::ChannelScaleGradient(_)
                | Kernel::ChannelScaleMeanBackward(_)
                | Kernel::ClipFactor(_)
                | Kernel::ClipGradient(_)
                | Kernel::ConcatBackward(_)
                | Kernel::ConcatForward(_)
                | Kernel::Conv2dBackwardData(_)
                | Kernel::Conv2dBackwardWeights(_)
                | Kernel::Conv2dForward(_)
                | Kernel::Convert(_)
                | Kernel::CountLabels(_)
                | Kernel::DistillationLoss(_)
                | Kernel::EmaUpdate(_)
                | Kernel::FindOverflow(_)
                | Kernel::Flatten(_)
                | Kernel::JoinWeights(_)
                | Kernel::LinearBackwardData(_)
                | Kernel::LinearBackwardWeights(_)
                | Kernel::LinearForward(_)
                | Kernel::LinearUpdate(_)
                | Kernel::NormalisePixels(_)
                | Kernel::PixelCrossEntropy(_)
                | Kernel::Reorder(_)
                | Kernel::ResizeBackward(_)
                | Kernel::ResizeForward(_)
                | Kernel::Scale(_)
                | Kernel::ScatterChannels(_)
                | Kernel::SelectChannels(_)
                | Kernel::SgdUpdate(_)
                | Kernel::SoftmaxCrossEntropy(_)
                | Kernel::SplitGradient(_)
                | Kernel::StageTransfer(_)
                | Kernel::StemApply(_)
                | Kernel::StemGradients(_)
                | Kernel::StemInference(_)
                | Kernel::StemStatistics(_)
                | Kernel::SumOfSquares(_)
                | Kernel::TargetLoss(_)
                | Kernel::TreeSum(_)
        );
        let maps: Vec<&str> = case.operands().filter(|o| o.shape.len() == 4).map(|o| o.name).collect();
        if accepts_mixed || maps.len() < 2 {
            continue;
        }
        // 16 channels in one block are the same bytes as 16 channels last.
        let is_either =
            case.operands().any(|operand| operand.shape.get(1) == Some(&16) || operand.shape == [16]);
        for (position, odd) in maps.iter().enumerate() {
            let tag = |name: &&str| if name == odd { "nChw16c" } else { "nhwc" };
            let layouts = maps.iter().map(|name| ((*name).to_owned(), tag(name).to_owned())).collect();
            let choices = Choices { layouts, ..Choices::default() };
            let context = format!("`{}` with operand {position} in blocks", case.name);
            match case.run(&backend, Precision::F32, choices) {
                Err(EngineError::Unsupported { .. }) => {}
                Err(error) => panic!("{context}: {error}"),
                Ok(got) => {
                    assert!(is_either, "{context}");
                    let plain = Choices::default();
                    let expected = case.run(&ReferenceBackend, Precision::F32, plain).unwrap();
                    case.compare(Precision::F32, &expected, &got)
                        .unwrap_or_else(|off| panic!("{context}: {off}"));
                }
            }
        }
    }
}

/// oneDNN issue 6035: the kernels that write out of bounds are avoided for the affected convolutions, and
/// used for others.
#[test]
fn kernels_known_to_write_out_of_bounds_are_not_used() {
    let Some(backend) = backend(2) else { return };
    let mut found = [0; 2];
    for case in cases::for_precision(Precision::F32) {
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
            found[0] += 1;
        } else {
            found[1] += usize::from(name.starts_with("jit_1x1"));
        }
    }
    assert!(found[0] >= 2, "no case of the table is affected");
    let has_kernels = cfg!(all(target_os = "linux", target_arch = "x86_64"));
    assert!(found[1] > 0 || !has_kernels, "the affected kernels were not found: {found:?}");
}
