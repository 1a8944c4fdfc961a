//! The reference backend against the definitions and PyTorch, and all cases on it in every precision.

use std::collections::HashSet;
use stratus_conformance::{Case, cases};
use stratus_engine::backend::PrepareRequest;
use stratus_engine::ops::{
    Adaptive, AdaptiveUpdate, AvgPooling, ClipFactor, ClipGradient, LrnForward, SgdUpdate, SumOfSquares,
};
use stratus_engine::plan::{Persistent, Plan};
use stratus_engine::program::{Layer, Mode};
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::{
    Backend, Choices, Clock, DType, Kernel, Layout, Phase, Precision, Program, Role, Session, Step,
};
use stratus_graph::ops::{Conv2d, LocalResponseNorm};

const PRECISIONS: [Precision; 4] = [Precision::F32, Precision::Bf16, Precision::F16, Precision::F64];

fn run(case: &Case, precision: Precision) -> Vec<Vec<f64>> {
    case.run(&ReferenceBackend, precision, Choices::default())
        .unwrap_or_else(|error| panic!("{} {precision}: {error}", case.name))
}

#[test]
fn case_names_are_unique() {
    let mut names = HashSet::new();
    let cases = PRECISIONS.into_iter().flat_map(cases::benchmarks).map(|case| case.name);
    let cases: HashSet<String> = cases.collect();
    for case in cases::all() {
        assert!(names.insert(case.name.clone()), "two cases are named `{}`", case.name);
    }
    assert!(names.len() > 300 && !cases.is_empty());
}

#[test]
fn every_case_is_deterministic_and_matches_double_precision() {
    for precision in PRECISIONS {
        for case in cases::for_precision(precision) {
            let results = run(&case, precision);
            case.compare(precision, &results, &results).unwrap();
            assert_eq!(results, run(&case, precision), "{} {precision}", case.name);
            // Inputs are exact in single precision, so only the rounding of results differs.
            if precision == Precision::F32 {
                case.compare(precision, &run(&case, Precision::F64), &results).unwrap();
            }
        }
    }
}

/// Convolution by its definition: a sum over channels and taps for every output.
fn convolution(conv: &Conv2d, x: &[f64], shape: [usize; 4], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let [batch, channels, height, width] = shape;
    let [out_height, out_width] = conv.output_size([height, width]).unwrap();
    let [out_channels, per_group, kernel_height, kernel_width] = conv.weight_shape();
    let pixel = |n: usize, c: usize, row: i64, column: i64| {
        let inside = (0..height as i64).contains(&row) && (0..width as i64).contains(&column);
        let position = ((n * channels + c) as i64 * height as i64 + row) * width as i64 + column;
        if inside { x[position as usize] } else { 0.0 }
    };
    let mut y = Vec::new();
    for n in 0..batch {
        for o in 0..out_channels {
            let first = o / (out_channels / conv.groups) * per_group;
            for h in 0..out_height {
                for w in 0..out_width {
                    let mut sum = bias.get(o).copied().unwrap_or(0.0);
                    for i in 0..per_group {
                        for kh in 0..kernel_height {
                            for kw in 0..kernel_width {
                                let row = (h * conv.stride[0] + kh * conv.dilation[0]) as i64;
                                let column = (w * conv.stride[1] + kw * conv.dilation[1]) as i64;
                                let row = row - conv.padding_before[0] as i64;
                                let column = column - conv.padding_before[1] as i64;
                                let tap = ((o * per_group + i) * kernel_height + kh) * kernel_width + kw;
                                sum += weight[tap] * pixel(n, first + i, row, column);
                            }
                        }
                    }
                    y.push(sum);
                }
            }
        }
    }
    y
}

#[test]
fn convolutions_match_their_definition() {
    let mut count = 0;
    for case in cases::for_precision(Precision::F64) {
        let Kernel::Conv2dForward(kernel) = &case.kernel else { continue };
        let inputs = case.generate_inputs();
        let shape = case.inputs[0].shape.as_slice().try_into().unwrap();
        let bias = inputs.get(2).map_or(&[][..], Vec::as_slice);
        let mut expected = convolution(&kernel.conv, &inputs[0], shape, &inputs[1], bias);
        if kernel.relu {
            expected.iter_mut().for_each(|y| *y = y.max(0.0));
        }
        case.compare(Precision::F64, &[expected], &run(&case, Precision::F64)).unwrap();
        count += 1;
    }
    assert!(count > 40, "{count}");
}

#[test]
fn batch_norm_and_running_statistics_match_pytorch() {
    let case = |name: &str| {
        let case = cases::for_precision(Precision::F64).into_iter().find(|case| case.name == name);
        let case = case.unwrap_or_else(|| panic!("no case `{name}`"));
        (case.generate_inputs(), run(&case, Precision::F64))
    };
    let (inputs, results) = case("batch_norm_statistics 2x17x6x5");
    let [running_mean, running_var, mean, inverse_deviation, moments] = &results[..] else {
        panic!("{results:?}")
    };
    let count = 2.0 * 6.0 * 5.0;
    for c in 0..17 {
        let channel = |values: &[f64]| -> Vec<f64> {
            (0..2).flat_map(|n| values[(n * 17 + c) * 30..][..30].to_vec()).collect()
        };
        let x = channel(&inputs[0]);
        let average = x.iter().sum::<f64>() / count;
        let variance = x.iter().map(|x| (x - average).powi(2)).sum::<f64>() / count;
        assert!((mean[c] - average).abs() < 1e-14);
        assert!((inverse_deviation[c] - (variance + f64::from(1e-5f32)).powf(-0.5)).abs() < 1e-12);
        let momentum = f64::from(0.1f32);
        let unbiased = variance * count / (count - 1.0);
        assert!((running_mean[c] - ((1.0 - momentum) * inputs[1][c] + momentum * average)).abs() < 1e-14);
        assert!((running_var[c] - ((1.0 - momentum) * inputs[2][c] + momentum * unbiased)).abs() < 1e-13);
        assert!((moments[c] - average).abs() < 1e-14 && (moments[17 + c] - count * variance).abs() < 1e-12);
    }
    let (inputs, results) = case("batch_norm_apply 2x17x6x5");
    for (position, (x, y)) in inputs[0].iter().zip(&results[0]).enumerate() {
        let c = position / 30 % 17;
        let expected = inputs[1][c] * (x - inputs[3][c]) * inputs[4][c] + inputs[2][c];
        assert!((y - expected).abs() < 1e-12);
    }
}

/// An operand of a single step.
pub type Given<'a> = (&'a str, &'a [usize], DType, &'a [f64]);

/// Runs one step on given inputs and updates; outputs are given with their initial contents. Returns updates
/// and outputs.
pub fn one_step(
    kernel: impl Into<Kernel>,
    inputs: &[Given<'_>],
    updates: &[Given<'_>],
    outputs: &[Given<'_>],
) -> Result<Vec<Vec<f64>>, String> {
    let mut program = Program {
        network: "one step".to_owned(),
        mode: Mode::Evaluate,
        precision: Precision::F64,
        batch: 1,
        batch_parts: 1,
        stage: None,
        layers: vec![Layer { name: "step".to_owned(), kind: "step".to_owned() }],
        values: Vec::new(),
        steps: Vec::new(),
        sections: Vec::new(),
    };
    let mut add = |given: &[Given<'_>]| -> Vec<_> {
        given
            .iter()
            .map(|(name, shape, dtype, _)| program.add_value(*name, shape, *dtype, Role::Buffer))
            .collect()
    };
    let step = Step {
        kernel: kernel.into(),
        phase: Phase::Loss,
        layers: vec![0],
        inputs: add(inputs),
        updates: add(updates),
        outputs: add(outputs),
    };
    program.steps.push(step);
    let mut persistent = Persistent::default();
    let plan =
        Plan::prepare(&ReferenceBackend, &program, Choices::default(), false, &mut persistent).unwrap();
    let mut session = Session::new(vec![plan], persistent).unwrap();
    for (value, (.., contents)) in inputs.iter().chain(updates).chain(outputs).enumerate() {
        session.write_value(0, value, contents).unwrap();
    }
    session.run(0, &mut [], &mut [], &mut Clock::disabled(1), 0).map_err(|error| error.to_string())?;
    Ok((inputs.len()..program.values.len()).map(|value| session.read_value(0, value).unwrap()).collect())
}

/// PyTorch 2.15's `clip_grad_norm_` with the norms 1.5 and 10, in double precision.
#[test]
fn gradient_clipping_matches_pytorch() {
    let gradients = [vec![0.5, -1.0, 2.0], vec![0.25, -3.0]];
    let clipped = [
        vec![0.198_245_527_734_794, -0.396_491_055_469_588, 0.792_982_110_939_176],
        vec![0.099_122_763_867_397, -1.189_473_166_408_764],
    ];
    for (max_norm, expected) in [(1.5, &clipped), (10.0, &gradients)] {
        let mut norm = Vec::new();
        for gradient in &gradients {
            let inputs = [("gradient", &[gradient.len()][..], DType::F64, &gradient[..])];
            let results = if norm.is_empty() {
                one_step(SumOfSquares { first: true }, &inputs, &[], &[("norm", &[2], DType::F64, &[0.0; 2])])
            } else {
                let updates = [("norm", &[2][..], DType::F64, &norm[..])];
                one_step(SumOfSquares { first: false }, &inputs, &updates, &[])
            };
            norm = results.unwrap().swap_remove(0);
        }
        let updates = [("norm", &[2][..], DType::F64, &norm[..])];
        norm =
            one_step(ClipFactor { max_norm, loss_scaled: false }, &[], &updates, &[]).unwrap().swap_remove(0);
        for (gradient, expected) in gradients.iter().zip(expected) {
            let inputs = [("norm", &[2][..], DType::F64, &norm[..])];
            let updates = [("gradient", &[gradient.len()][..], DType::F64, &gradient[..])];
            let clipped = one_step(ClipGradient, &inputs, &updates, &[]).unwrap().swap_remove(0);
            for (clipped, expected) in clipped.iter().zip(expected) {
                assert!((clipped - expected).abs() < 1e-14, "{clipped} {expected}");
            }
        }
    }
}

/// Three steps of PyTorch 2.15's `SGD(lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)`, in double
/// precision.
#[test]
fn nesterov_updates_match_pytorch() {
    let sgd =
        SgdUpdate { momentum: 0.9, weight_decay: 0.01, nesterov: true, rate_factor: 1.0, loss_scaled: false };
    let (mut parameter, mut velocity) = (vec![1.0, -2.0, 0.5], vec![0.0; 3]);
    for gradient in [[0.5, -1.0, 2.0], [0.25, 0.5, -1.0], [-0.75, 0.125, 0.5]] {
        let scalars = [0.1, 0.0, 0.0, 0.0];
        let inputs =
            [("gradient", &[3][..], DType::F64, &gradient[..]), ("hyper", &[4], DType::F64, &scalars[..])];
        let updates = [
            ("parameter", &[3][..], DType::F64, &parameter[..]),
            ("velocity", &[3], DType::F64, &velocity[..]),
        ];
        let mut results = one_step(sgd, &inputs, &updates, &[]).unwrap();
        velocity = results.swap_remove(1);
        parameter = results.swap_remove(0);
    }
    let expected = [0.895_369_708_191, -1.800_128_416_382, -0.014_120_321_230];
    // Momentum and weight decay are f32.
    let difference =
        parameter.iter().zip(expected).map(|(got, expected)| (got - expected).abs()).fold(0.0, f64::max);
    assert!(difference < 1e-7, "{parameter:?}");
}

/// Three steps of PyTorch 2.15's `Adam` and `AdamW` (lr=0.1, betas=(0.8, 0.95)), `Adagrad` (lr=0.1) and
/// `Adadelta` (lr=0.5, rho=0.9), all with eps=1e-3 and weight_decay=0.01, in double precision: the parameter,
/// then the state.
#[test]
fn adaptive_updates_match_pytorch() {
    let (betas, epsilon) = ([0.8, 0.95], 1e-3);
    let cases: [(Adaptive, f64, &[[f64; 3]]); 4] = [
        (
            Adaptive::Adam { betas, epsilon, decoupled: false },
            0.1,
            &[
                [0.823_728_940_120, -1.866_260_173_724, 0.347_378_080_445],
                [-0.041_663_471_941, -0.032_353_348_202, 0.198_037_197_830],
                [0.042_445_592_734, 0.058_501_936_335, 0.241_214_337_008],
            ],
        ),
        (
            Adaptive::Adam { betas, epsilon, decoupled: true },
            0.1,
            &[
                [0.822_924_182_708, -1.865_714_783_210, 0.346_634_166_582],
                [-0.046, -0.023, 0.196],
                [0.042_375, 0.057_781_25, 0.240_5],
            ],
        ),
        (
            Adaptive::Adagrad { epsilon },
            0.1,
            &[
                [0.934_087_120_870, -1.952_024_988_010, 0.422_547_212_987],
                [0.876_930_197_493, 1.282_905_689_995, 5.266_504_955_750],
            ],
        ),
        (
            Adaptive::Adadelta { rho: 0.9, epsilon },
            0.5,
            &[
                [0.979_896_264_257, -1.989_152_885_019, 0.464_468_016_301],
                [0.082_010_055_169, 0.106_157_809_134, 0.440_298_861_850],
                [0.002_676_804_142, 0.001_177_180_652, 0.001_328_048_885],
            ],
        ),
    ];
    for (rule, rate, expected) in cases {
        let mut held = vec![vec![1.0, -2.0, 0.5]];
        held.resize(expected.len(), vec![0.0; 3]);
        let gradients = [[0.5, -1.0, 2.0], [0.25, 0.5, -1.0], [-0.75, 0.125, 0.5]];
        for (iteration, gradient) in gradients.iter().enumerate() {
            let scalars = [rate, iteration as f64, 0.0, 0.0];
            let inputs = [
                ("gradient", &[3][..], DType::F64, &gradient[..]),
                ("hyper", &[4], DType::F64, &scalars[..]),
            ];
            let names = ["parameter", "first", "second"];
            let updates: Vec<_> = names
                .iter()
                .zip(&held)
                .map(|(name, held)| (*name, &[3][..], DType::F64, &held[..]))
                .collect();
            held = one_step(
                AdaptiveUpdate { rule, weight_decay: 0.01, rate_factor: 1.0, loss_scaled: false },
                &inputs,
                &updates,
                &[],
            )
            .unwrap();
        }
        for (got, expected) in held.iter().zip(expected) {
            let difference = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(difference < 1e-11, "{rule:?}: {held:?}");
        }
    }
}

#[test]
fn reference_rejects_layouts_other_than_row_major() {
    let case =
        cases::for_precision(Precision::F32).into_iter().find(|case| case.name.starts_with("relu ")).unwrap();
    let program = case.program(Precision::F32).unwrap();
    let prepare = |request: &PrepareRequest| {
        ReferenceBackend.prepare(&program, request).err().map(|error| error.to_string())
    };
    let shape = &case.inputs[0].shape;
    let mut request = PrepareRequest::default();
    request.fixed.insert("x".to_owned(), Layout::plain(shape));
    assert_eq!(prepare(&request), None);
    request.fixed.insert("x".to_owned(), Layout::channels_last(shape));
    insta::assert_snapshot!(
        prepare(&request).unwrap(),
        @"the reference backend supports row-major layouts only; layout nhwc was requested for `x`"
    );
    let mut request = PrepareRequest::default();
    request.choices.layouts.insert("y".to_owned(), "aBcd16b".to_owned());
    assert!(prepare(&request).unwrap().contains("layout aBcd16b was requested for `y`"));
    let mut request = PrepareRequest::default();
    request.choices.implementations.insert(format!("{}:relu_forward", case.name), "jit".to_owned());
    assert!(prepare(&request).unwrap().contains("no implementation `jit`"));
}

#[test]
fn measurements_describe_the_case() {
    let case = cases::for_precision(Precision::F32)
        .into_iter()
        .find(|case| case.name.starts_with("linear "))
        .unwrap();
    let measured = case.bench(&ReferenceBackend, Precision::F32, Choices::default(), false, 3).unwrap();
    assert_eq!(
        (measured.kernel, measured.implementation.as_str(), measured.runs),
        ("linear_forward", "reference", 3)
    );
    // x 2x1568, weight 10x1568, bias 10, y 2x10.
    assert_eq!(measured.flops, 2 * 2 * 10 * 1568);
    assert_eq!(measured.bytes, 4 * (2 * 1568 + 10 * 1568 + 10 + 20));
    assert_eq!(measured.layout_seconds, 0.0);
}

/// A pixel of a padded image: zero beyond its borders if padding counts, else `None`.
fn padded(x: &[f64], plane: usize, size: [usize; 2], at: [i64; 2]) -> Option<f64> {
    let inside = (0..2).all(|axis| (0..size[axis] as i64).contains(&at[axis]));
    inside.then(|| x[(plane * size[0] + at[0] as usize) * size[1] + at[1] as usize])
}

#[test]
fn average_pooling_matches_its_definition() {
    let mut checked = [0; 3];
    for case in cases::for_precision(Precision::F64) {
        let Kernel::AvgPoolForward(kernel) = &case.kernel else { continue };
        let (x, [batch, channels, height, width]) =
            (&case.generate_inputs()[0], case.inputs[0].shape[..].try_into().unwrap());
        let size: [usize; 2] = [height, width];
        let outputs = [case.outputs[0].shape[2], case.outputs[0].shape[3]];
        let planes: usize = batch * channels;
        let mut expected = Vec::new();
        for (plane, h, w) in (0..planes)
            .flat_map(|p| (0..outputs[0]).flat_map(move |h| (0..outputs[1]).map(move |w| (p, h, w))))
        {
            let at = [h, w];
            let ranges: [std::ops::Range<i64>; 2] = std::array::from_fn(|axis| match kernel.pooling {
                AvgPooling::Windows(pool) => {
                    let start = (at[axis] * pool.stride[axis]) as i64 - pool.padding[axis] as i64;
                    start..start + pool.kernel[axis] as i64
                }
                AvgPooling::Bins(_) => {
                    let (bins, size) = (outputs[axis] as f64, size[axis] as f64);
                    let [start, end] =
                        [at[axis] as f64, at[axis] as f64 + 1.0].map(|edge| edge * size / bins);
                    start.floor() as i64..end.ceil() as i64
                }
            });
            let window = ranges[0].clone().flat_map(|i| ranges[1].clone().map(move |j| [i, j]));
            let pixels: Vec<Option<f64>> = window.map(|at| padded(x, plane, size, at)).collect();
            let sum: f64 = pixels.iter().flatten().sum();
            let all = matches!(kernel.pooling, AvgPooling::Windows(pool) if pool.count_include_pad);
            let count = if all { pixels.len() } else { pixels.iter().flatten().count() };
            expected.push(sum / count as f64);
        }
        case.compare(Precision::F64, &[expected], &run(&case, Precision::F64)).unwrap();
        checked[match kernel.pooling {
            AvgPooling::Windows(pool) => usize::from(pool.count_include_pad),
            AvgPooling::Bins(_) => 2,
        }] += 1;
    }
    assert!(checked.iter().all(|&count| count > 5), "{checked:?}");
}

/// Values computed by hand: alpha is divided by the size, and an even window has one more channel before than
/// after.
#[test]
fn local_response_norm_matches_values_computed_by_hand() {
    let mut case = cases::for_precision(Precision::F64)
        .into_iter()
        .find(|case| matches!(case.kernel, Kernel::LrnForward(_)))
        .unwrap();
    let x = [1.0, 2.0, 3.0];
    case.inputs[0].shape = vec![1, 3, 1, 1];
    case.outputs[0].shape = vec![1, 3, 1, 1];
    for (size, alpha, expected) in [
        (3, 3.0, [1.0 / 6.0, 2.0 / 15.0, 3.0 / 14.0]),
        (2, 2.0, [1.0 / 2.0, 2.0 / 6.0, 3.0 / 14.0]),
        (7, 7.0, [1.0 / 15.0, 2.0 / 15.0, 3.0 / 15.0]),
    ] {
        case.kernel = LrnForward { norm: LocalResponseNorm { size, alpha, beta: 1.0, k: 1.0 } }.into();
        let mut persistent = Persistent::default();
        let program = case.program(Precision::F64).unwrap();
        let plan =
            Plan::prepare(&ReferenceBackend, &program, Choices::default(), false, &mut persistent).unwrap();
        let mut session = Session::new(vec![plan], persistent).unwrap();
        let [from, to] = ["x", "y"].map(|name| program.values.iter().position(|v| v.name == name).unwrap());
        session.write_value(0, from, &x).unwrap();
        session.run(0, &mut [], &mut [], &mut Clock::disabled(1), 0).unwrap();
        stratus_conformance::compare(&expected, &session.read_value(0, to).unwrap(), 1e-12).unwrap();
    }
}
