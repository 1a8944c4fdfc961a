//! A network with transposed convolutions and spatial dropout.

use crate::common::{ITERATION_SCALARS, decoder, training_program};
use crate::reference::one_step;
use stratus_engine::ops::{
    AddBias, BiasGradient, Conv2dBackwardData, Conv2dBackwardWeights, Conv2dForward, Dropout2d, KernelSpec,
};
use stratus_engine::{DType, Kernel, Phase, Precision, Role};
use stratus_graph::ops::ConvTranspose2d;

#[test]
fn training_program_in_bf16() {
    insta::assert_snapshot!(training_program(&decoder(), Precision::Bf16, 4).dump());
}

/// Kernels that compute gradients of convolutions belong to the forward pass of transposed ones, and vice
/// versa.
#[test]
fn kernels_have_the_phase_of_their_layer() {
    let program = training_program(&decoder(), Precision::Bf16, 4);
    let phases = |layer: &str| -> Vec<(Phase, &'static str)> {
        let steps = program.steps.iter().filter(|step| program.layer_name(step) == layer);
        steps.map(|step| (step.phase, step.kernel.name())).collect()
    };
    assert_eq!(
        phases("up2")[..5],
        [
            (Phase::Forward, "conv2d_backward_data"),
            (Phase::Forward, "add_bias"),
            (Phase::BackwardWeights, "bias_gradient"),
            (Phase::Update, "sgd_update"),
            (Phase::BackwardData, "conv2d_forward"),
        ]
    );
    // Kernels read the weight's bf16 copy, which the update refreshes.
    for step in program.steps.iter().filter(|step| matches!(step.kernel, Kernel::Conv2dBackwardData(_))) {
        assert_eq!(program.value(step.inputs[1]).role, Role::ComputeCopy);
    }
}

/// Expected values are those of PyTorch 2.15, in double precision: `ConvTranspose2d(2, 4, (2, 3), stride=(2,
/// 1), padding=(0, 1), output_padding=(1, 0), groups=2)` and its gradients. All are integers.
#[test]
fn transposed_convolutions_match_pytorch() {
    let whole = |numbers: &[i32]| -> Vec<f64> { numbers.iter().map(|&number| f64::from(number)).collect() };
    let x = whole(&[-5, 2, -2, 5, 1, -3, 4, 0]);
    let weight = whole(&[-6, -1, 4, -4, 1, 6, -2, 3, -5, 0, 5, -3, 2, -6, -1, 4, -4, 1, 6, -2, 3, -5, 0, 5]);
    let bias = whole(&[-2, -1, 0, 1]);
    let dy: Vec<f64> = (0..40).map(|i| f64::from(i * 3 % 7 - 3)).collect();
    let y = whole(&[
        -9, -24, -15, -30, -30, -15, -24, -9, -2, -2, -20, 30, -26, 24, -17, 24, -11, 30, -1, -1, -12, 17,
        -16, 13, -24, -4, -16, 4, 0, 0, -19, 10, 16, 6, -7, 13, 1, 21, 1, 1,
    ]);
    let dx = whole(&[-26, 18, -18, -16, -19, 18, 17, -14]);
    let dweight =
        whole(&[4, 1, 4, 11, -34, 11, -17, 15, -10, 11, 1, -3, -3, 6, 5, 0, -17, 7, -9, 10, -13, -6, 8, 10]);
    let op = ConvTranspose2d {
        in_channels: 2,
        out_channels: 4,
        kernel: [2, 3],
        stride: [2, 1],
        padding_before: [0, 1],
        padding_after: [0, 1],
        output_padding: [1, 0],
        dilation: [1, 1],
        groups: 2,
        bias: true,
    };
    let conv = op.transposed();
    let (x_shape, y_shape, weight_shape) = ([1, 2, 2, 2], [1, 4, 5, 2], op.weight_shape());
    let given = |name, shape, contents| (name, shape, DType::F64, contents);
    let (x, weight) = (given("x", &x_shape[..], &x[..]), given("weight", &weight_shape, &weight));
    let dy = given("dy", &y_shape, &dy);
    let (bias, zeros) = (given("bias", &[4], &bias), [0.0; 40]);
    let one = |kernel: Kernel, inputs: &[crate::reference::Given<'_>], name, shape| {
        let length = <[usize]>::iter(shape).product();
        one_step(kernel, inputs, &[], &[given(name, shape, &zeros[..length])]).unwrap().swap_remove(0)
    };
    let product = one(Conv2dBackwardData { conv }.into(), &[x, weight], "y", &y_shape);
    let sum = one_step(AddBias, &[bias], &[given("y", &y_shape, &product)], &[]).unwrap();
    assert_eq!(sum, [y]);
    assert_eq!(one(Conv2dForward { conv, relu: false }.into(), &[dy, weight], "dx", &x_shape), dx);
    assert_eq!(one(Conv2dBackwardWeights { conv }.into(), &[dy, x], "dweight", &weight_shape), dweight);
    assert_eq!(one(BiasGradient.into(), &[dy], "dbias", &[4]), [0.0, -1.0, -2.0, 4.0]);
}

#[test]
fn spatial_dropout_drops_whole_channels() {
    let (shape, dropout) = ([40, 25, 2, 3], Dropout2d { p: 0.3, layer: 2, whole_samples: false });
    let x: Vec<f64> = (0..6000).map(|i| f64::from(i) + 1.0).collect();
    let inputs = [("x", &shape[..], DType::F64, &x[..]), ("hyper", &[4], DType::F64, &ITERATION_SCALARS)];
    let y = one_step(dropout, &inputs, &[], &[("y", &shape, DType::F64, &vec![0.0; 6000])]).unwrap();
    let mut dropped = 0;
    let mask = dropout.mask(&ITERATION_SCALARS);
    for (channel, (x, y)) in x.chunks_exact(6).zip(y[0].chunks_exact(6)).enumerate() {
        let factor = if mask.keeps(channel as u64) { dropout.scale() } else { 0.0 };
        dropped += usize::from(factor == 0.0);
        assert!(x.iter().zip(y).all(|(x, y)| *y == x * factor), "channel {channel}: {y:?}");
    }
    assert!((250..350).contains(&dropped), "{dropped} of 1000");
}
