//! Losses of several targets per sample, and of one logit per pixel: the pass that chooses them, and their
//! definition by the reference backend. Gradients are compared with differences in `gradients.rs`, and with
//! PyTorch in the tests of `stratus-train`.

use crate::common::{TestSession, branches, digits};
use crate::reference::one_step;
use stratus_engine::ops::{
    CLASS_WEIGHTS, CountLabels, KernelSpec, PixelCrossEntropy, TargetFunction, TargetLoss,
};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::{
    LossFunction, PREDICTIONS, lower, with_class_weights, with_label_smoothing, with_loss, with_mixed_labels,
};
use stratus_engine::program::Mode;
use stratus_engine::{DType, EngineError, Kernel, Phase, Precision, Program, Role};
use stratus_graph::{Graph, layer_file};

const MISSING: f64 = f64::NAN;

/// Metrics and gradient of one loss.
fn run(
    loss: TargetLoss,
    shape: [usize; 2],
    outputs: &[f64],
    targets: &[f64],
    weights: Option<&[f64]>,
) -> Result<[Vec<f64>; 2], String> {
    let mut inputs =
        vec![("outputs", &shape[..], DType::F64, outputs), ("targets", &shape[..], DType::F32, targets)];
    let weights_shape = [2, shape[1]];
    inputs.extend(weights.map(|weights| ("weights", &weights_shape[..], DType::F64, weights)));
    let gradient = vec![9.0; outputs.len()];
    let results = one_step(
        TargetLoss { class_weighted: weights.is_some(), ..loss },
        &inputs,
        &[],
        &[("metrics", &[4], DType::F64, &[9.0; 4]), ("gradient", &shape, DType::F64, &gradient)],
    )?;
    results.try_into().map_err(|_| "expected two results".to_owned())
}

fn assert_close(got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len());
    let is_close = |(got, expected): (&f64, &f64)| (got - expected).abs() <= 1e-12 * expected.abs().max(1.0);
    assert!(got.iter().zip(expected).all(is_close), "{got:?} is not {expected:?}");
}

const LABELS: TargetLoss = TargetLoss {
    function: TargetFunction::BinaryCrossEntropy,
    auxiliary: None,
    main_weight: None,
    smoothing: 0.0,
    class_weighted: false,
    loss_scaled: false,
    partial: false,
};

#[test]
fn missing_targets_change_neither_loss_nor_counts() {
    let ln_2 = std::f64::consts::LN_2;
    let outputs = [0.0, 5.0, 0.0, f64::NAN, 0.0, 0.0];
    let targets = [1.0, MISSING, 0.0, MISSING, MISSING, MISSING];
    let [metrics, gradient] = run(LABELS, [2, 3], &outputs, &targets, None).unwrap();
    // A logit of 0 says no.
    assert_close(&metrics, &[ln_2, 2.0, 1.0, 1.0]);
    assert_close(&gradient, &[-0.25, 0.0, 0.25, 0.0, 0.0, 0.0]);
    let squares = TargetLoss { function: TargetFunction::SquaredError, ..LABELS };
    let [metrics, gradient] =
        run(squares, [2, 2], &[3.0, f64::NAN, 0.5, 1.0], &[1.0, MISSING, 0.5, 2.0], None).unwrap();
    assert_close(&metrics, &[5.0 / 3.0, 3.0, 3.0 - 5.0, 2.0]);
    assert_close(&gradient, &[4.0 / 3.0, 0.0, 0.0, -2.0 / 3.0]);
    for function in [TargetFunction::BinaryCrossEntropy, TargetFunction::SquaredError, TargetFunction::Huber]
    {
        let loss = TargetLoss { function, ..LABELS };
        let nothing = run(loss, [2, 2], &[1.0, f64::NAN, 3.0, 4.0], &[MISSING; 4], None).unwrap();
        assert_eq!(nothing, [vec![0.0; 4], vec![0.0; 4]]);
    }
}

#[test]
fn huber_loss_is_linear_from_a_difference_of_one() {
    let huber = TargetLoss { function: TargetFunction::Huber, ..LABELS };
    let [metrics, gradient] = run(
        huber,
        [1, 4],
        &[0.5, 1.0, -3.0, 0.0],
        &[0.0; 4],
        Some(&[1.0, 2.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]),
    )
    .unwrap();
    assert_close(&metrics, &[(0.125 + 1.0 + 2.5) / 4.0, 4.0, 4.0 - (0.25 + 1.0 + 9.0), 1.0]);
    assert_close(&gradient, &[0.125, 0.5, -0.25, 0.0]);
}

#[test]
fn logits_of_any_size_have_a_loss() {
    let [metrics, gradient] =
        run(LABELS, [2, 2], &[1e4, -1e4, 1e4, -1e4], &[1.0, 0.0, 0.0, 1.0], None).unwrap();
    assert_close(&metrics, &[5e3, 4.0, 2.0, 2.0]);
    assert_close(&gradient, &[0.0, 0.0, 0.25, -0.25]);
    // 0 · ∞ counts as 0, and NaN is never correct.
    let infinite = [f64::INFINITY, f64::NEG_INFINITY];
    let [metrics, gradient] = run(LABELS, [1, 2], &infinite, &[1.0, 0.0], None).unwrap();
    assert_eq!((metrics, gradient), (vec![0.0, 2.0, 2.0, 1.0], vec![0.0; 2]));
    let [metrics, _] = run(LABELS, [1, 2], &[f64::NAN; 2], &[1.0, 0.0], None).unwrap();
    assert!(metrics[0].is_nan());
    assert_eq!(metrics[1..], [2.0, 0.0, 1.0]);
    // A target of weight 0 has no effect.
    let [metrics, gradient] =
        run(LABELS, [1, 2], &[f64::NAN, 0.0], &[1.0; 2], Some(&[0.0, 1.0, 1.0, 3.0])).unwrap();
    assert_close(&metrics, &[1.5 * std::f64::consts::LN_2, 2.0, 0.0, 1.0]);
    assert_close(&gradient, &[0.0, -0.75]);
}

#[test]
fn a_label_out_of_range_is_an_error_that_names_the_sample() {
    for (wrong, shown) in [(1.5, "1.5"), (-0.25, "-0.25"), (f64::INFINITY, "inf")] {
        let error = run(LABELS, [2, 2], &[0.0; 4], &[1.0, MISSING, 0.5, wrong], None).unwrap_err();
        let expected = format!(
            "binary_cross_entropy of layer `step` failed: \
             sample 1: label 1 is {shown}, which is not in [0, 1]"
        );
        assert_eq!(error, expected);
    }
    let squares = TargetLoss { function: TargetFunction::SquaredError, ..LABELS };
    assert!(run(squares, [1, 2], &[0.0; 2], &[-7.0, 1.5], None).is_ok());
}

#[test]
fn present_targets_are_counted_by_column() {
    let targets = [MISSING, 1.0, 0.0, 0.5, MISSING, -3.0];
    let inputs = [("targets", &[3, 2][..], DType::F32, &targets[..])];
    let counts = [("counts", &[2][..], DType::F64, &[9.0; 2][..])];
    assert_eq!(one_step(CountLabels::default(), &inputs, &[], &counts).unwrap(), [vec![1.0, 3.0]]);
}

/// One logit is that of class 1, beside a logit of 0.
#[test]
fn a_binary_loss_is_that_of_two_logits() {
    let outputs = [0.5, -1.5, 0.0, 3.0, -0.25, f64::NAN];
    let labels = [1.0, 0.0, 1.0, 0.0, -1.0, 1.0];
    for (smoothing, class_weighted, count) in
        [(0.0, false, 6), (0.0, true, 5), (0.2, true, 5), (0.1, false, 5)]
    {
        let (outputs, labels) = (&outputs[..count], &labels[..count]);
        let loss = |binary: bool| {
            let pair: Vec<f64> = vec![0.0; count].into_iter().chain(outputs.iter().copied()).collect();
            let (channels, logits) = if binary { (1, outputs.to_vec()) } else { (2, pair) };
            let (shape, labels_shape) = ([1, channels, 1, count], [1, 1, count]);
            let mut inputs = vec![
                ("logits", &shape[..], DType::F64, &logits[..]),
                ("labels", &labels_shape[..], DType::I32, labels),
            ];
            if class_weighted {
                inputs.push(("weights", &[2], DType::F64, &[0.5, 3.0]));
            }
            let loss = PixelCrossEntropy {
                binary,
                smoothing,
                class_weighted,
                predicts: true,
                ..PixelCrossEntropy::default()
            };
            let outputs = [
                ("metrics", &[4][..], DType::F64, &[9.0; 4][..]),
                ("predictions", &labels_shape, DType::I32, &vec![9.0; count]),
                ("dlogits", &shape, DType::F64, &vec![9.0; logits.len()]),
            ];
            one_step(loss, &inputs, &[], &outputs).unwrap()
        };
        let (one, two) = (loss(true), loss(false));
        // With NaN, only the counts can be compared.
        let first = usize::from(count == 6);
        assert_eq!((&one[0][first..], &one[1]), (&two[0][first..], &two[1]));
        assert_eq!(one[2][..count.min(5)], two[2][count..count + count.min(5)]);
        assert_eq!(one[0][0].is_nan(), count == 6);
        assert_eq!(one[1][..5], [1.0, 0.0, 0.0, 1.0, 0.0]);
    }
}

fn lowered(graph: &Graph, mode: Mode, loss: LossFunction) -> Program {
    with_loss(lower(graph, mode, Precision::Bf16, 6).unwrap(), loss).unwrap()
}

#[test]
fn every_loss_of_a_network_is_replaced() {
    for (loss, name) in [
        (LossFunction::BinaryCrossEntropy, "binary_cross_entropy"),
        (LossFunction::SquaredError, "squared_error"),
        (LossFunction::Huber, "huber"),
    ] {
        let program = lowered(&branches(), Mode::Train, loss);
        let losses: Vec<_> = program.steps.iter().filter(|step| step.phase == Phase::Loss).collect();
        let names: Vec<&str> = losses.iter().map(|step| step.kernel.name()).collect();
        assert_eq!(names, [name.to_owned(), format!("auxiliary_{name}")]);
        for step in losses {
            assert_eq!(program.layers[step.layers[0]].kind, name);
        }
        let labels = program.value(program.find_role(Role::Labels).unwrap());
        assert_eq!((&labels.shape[..], labels.dtype), (&[6, 10][..], DType::F32));
        let weighted = with_class_weights(with_mixed_labels(program).unwrap()).unwrap();
        let labels = weighted.value(weighted.find_role(Role::Labels).unwrap());
        assert_eq!(labels.shape, [6, 10], "targets are mixed before they are written");
        let weights = weighted.value(weighted.find(CLASS_WEIGHTS).unwrap());
        assert_eq!((&weights.shape[..], weights.dtype), (&[2, 10][..], DType::F32));
        let smoothed = with_label_smoothing(weighted, 0.1).unwrap();
        let smoothing = |step: &stratus_engine::Step| match step.kernel {
            Kernel::TargetLoss(loss) => Some(loss.smoothing),
            _ => None,
        };
        let expected = if loss == LossFunction::BinaryCrossEntropy { 0.1 } else { 0.0 };
        let found: Vec<f32> = smoothed.steps.iter().filter_map(smoothing).collect();
        assert_eq!(found, [expected; 2]);
        assert!(differentiate(&smoothed).is_ok());
        assert!(
            lowered(&branches(), Mode::Evaluate, loss).steps.iter().any(|step| step.kernel.name() == name)
        );
    }
    let plain = lower(&branches(), Mode::Train, Precision::Bf16, 6).unwrap();
    assert_eq!(with_loss(plain.clone(), LossFunction::CrossEntropy).unwrap().dump(), plain.dump());
}

/// A convolution with per-pixel outputs.
fn pixels(channels: usize) -> Graph {
    let text = format!(
        "name = \"pixels\"\ninput = [2, 5, 4]\noutput = \"conv\"\n\n\
         [[layer]]\nname = \"conv\"\nop = \"conv2d\"\nout_channels = {channels}\nkernel = 1\n"
    );
    layer_file::parse(&text).unwrap()
}

#[test]
fn one_logit_a_pixel_has_two_classes() {
    let program = lowered(&pixels(1), Mode::Evaluate, LossFunction::BinaryCrossEntropy);
    let step = program.steps.iter().find(|step| step.phase == Phase::Loss).unwrap();
    assert!(matches!(step.kernel, Kernel::PixelCrossEntropy(loss) if loss.binary && loss.predicts));
    let shape_of = |name: &str| program.value(program.find(name).unwrap()).shape.clone();
    assert_eq!([shape_of("labels"), shape_of(PREDICTIONS)], [[6, 5, 4], [6, 5, 4]]);
    let weighted = with_class_weights(program.clone()).unwrap();
    assert_eq!(weighted.value(weighted.find(CLASS_WEIGHTS).unwrap()).shape, [2]);
}

#[test]
fn a_loss_that_does_not_fit_the_output_is_refused() {
    let refused = |channels: usize, loss: LossFunction| {
        let program = lower(&pixels(channels), Mode::Train, Precision::F32, 3).unwrap();
        match with_loss(program, loss).unwrap_err() {
            EngineError::InvalidRequest(message) => message,
            other => panic!("{other}"),
        }
    };
    assert_eq!(
        refused(2, LossFunction::BinaryCrossEntropy),
        "network `pixels`: the output is [3, 2, 5, 4], but binary_cross_entropy needs [batch, targets] or \
         [batch, 1, height, width]"
    );
    assert_eq!(
        refused(1, LossFunction::Huber),
        "network `pixels`: the output is [3, 1, 5, 4], but huber needs [batch, targets]"
    );
}

#[test]
fn invalid_attributes_and_operands_are_refused() {
    let error = |loss: TargetLoss, shape: [usize; 2], dtype: DType, targets: &[usize]| {
        let mut program = lowered(&digits([2, 9, 8], 4, 3), Mode::Train, LossFunction::BinaryCrossEntropy);
        let step = program.steps.iter().position(|step| step.phase == Phase::Loss).unwrap();
        let labels = program.find_role(Role::Labels).unwrap().0;
        (program.values[labels].shape, program.values[labels].dtype) = (targets.to_vec(), dtype);
        let outputs = program.steps[step].inputs[0].0;
        program.values[outputs].shape = shape.to_vec();
        program.steps[step].kernel = loss.into();
        program.verify("test").unwrap_err().to_string()
    };
    let shape = [6, 4];
    let found = error(LABELS, shape, DType::I32, &shape);
    assert!(found.contains("`labels`: expected targets in f32, got i32"), "{found}");
    let found = error(LABELS, shape, DType::F32, &[6, 3]);
    assert!(found.contains("`labels`: expected [6, 4], got [6, 3]"), "{found}");
    let found = error(TargetLoss { smoothing: 1.0, ..LABELS }, shape, DType::F32, &shape);
    assert!(found.contains("label smoothing must be in [0, 1), got 1"), "{found}");
    let numbers = TargetLoss { function: TargetFunction::Huber, smoothing: 0.1, ..LABELS };
    let found = error(numbers, shape, DType::F32, &shape);
    assert!(found.contains("huber has no labels to smooth"), "{found}");
}

/// A plan stores the kernels of a program.
#[test]
fn losses_are_stored_and_read() {
    let losses: [Kernel; 3] = [
        LABELS.into(),
        TargetLoss { function: TargetFunction::Huber, auxiliary: Some(0.3), partial: true, ..LABELS }.into(),
        PixelCrossEntropy { binary: true, ..PixelCrossEntropy::default() }.into(),
    ];
    for loss in losses {
        let text = serde_json::to_string(&loss).unwrap();
        assert_eq!(serde_json::from_str::<Kernel>(&text).unwrap(), loss, "{text}");
    }
    assert_eq!(
        serde_json::to_string(&Kernel::from(LABELS)).unwrap(),
        r#"{"target_loss":{"function":"binary_cross_entropy"}}"#
    );
}

/// Training by each loss lowers it.
#[test]
fn gradients_lead_downhill() {
    for loss in [LossFunction::BinaryCrossEntropy, LossFunction::SquaredError, LossFunction::Huber] {
        let forward = with_loss(lower(&branches(), Mode::Train, Precision::F64, 6).unwrap(), loss).unwrap();
        let program = differentiate(&forward).unwrap();
        let mut test = TestSession::filled(&program);
        let before = test.loss();
        let (weight, slope) = (test.read("fc2.weight"), test.read_gradient("fc2.weight"));
        let moved: Vec<f64> =
            weight.iter().zip(&slope).map(|(weight, slope)| weight - 0.01 * slope).collect();
        test.write("fc2.weight", &moved);
        let after = test.loss();
        let expected = 0.01 * slope.iter().map(|slope| slope * slope).sum::<f64>();
        assert!(expected > 0.0 && (before - after - expected).abs() < 0.2 * expected, "{before} {after}");
    }
}
