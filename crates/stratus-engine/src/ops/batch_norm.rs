//! Batch normalisation, alone or with what follows it: the rectifier and non-overlapping max-pooling.
//!
//! BN, ReLU and pooling are bound by memory: fused, the normalised map is never written, and its gradient is never spread out.

use super::{KernelSpec, expect_counts, expect_same_shape, expect_shape, image_shape};
use crate::differentiate::Differentiator;
use crate::lower::Lowering;
use crate::program::Mode;
use crate::{DType, EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;
use stratus_graph::ops::{BatchNorm2d, MaxPool2d};

/// Max-pooling whose windows neither overlap nor need padding: `stride = kernel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FusedPool {
    /// Window and stride `[vertical, horizontal]`.
    pub window: [usize; 2],
}

impl FusedPool {
    /// The pooling, where it can be fused.
    #[must_use]
    pub fn from_pool(pool: &MaxPool2d) -> Option<Self> {
        (pool.kernel == pool.stride && pool.padding == [0, 0]).then_some(Self { window: pool.kernel })
    }

    /// `[N, C, H / window, W / window]`.
    #[must_use]
    pub fn output_shape(&self, shape: [usize; 4]) -> [usize; 4] {
        [shape[0], shape[1], shape[2] / self.window[0], shape[3] / self.window[1]]
    }
}

/// `(x, weight, bias) updates (running_mean, running_var) -> y, mean, inverse_deviation, index?`.
///
/// `inverse_deviation` is `1 / sqrt(variance + epsilon)`. With a pool, `index` (u8) is the winner's position in its window in row order, or
/// 255 where `relu` cut it off and no gradient passes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormForward {
    /// Attributes.
    pub norm: BatchNorm2d,
    /// Whether the result is rectified.
    pub relu: bool,
    /// Whether the result is pooled.
    pub pool: Option<FusedPool>,
}

/// `(x, weight, bias, running_mean, running_var) -> y`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormInference {
    /// Attributes.
    pub norm: BatchNorm2d,
    /// Whether the result is rectified.
    pub relu: bool,
    /// Whether the result is pooled.
    pub pool: Option<FusedPool>,
}

/// `(x, dy, weight, bias, mean, inverse_deviation, index?) -> dx, dweight, dbias`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormBackward {
    /// Attributes.
    pub norm: BatchNorm2d,
    /// Whether the result was rectified.
    pub relu: bool,
    /// Whether the result was pooled.
    pub pool: Option<FusedPool>,
}

pub(super) fn lower(op: &BatchNorm2d, node: &Node, to: &mut Lowering) -> Result<(), EngineError> {
    let x = to.input(node, 0);
    let [weight, bias, mean, variance] = [0, 1, 2, 3].map(|i| to.parameter(node, i));
    let y = to.output(node);
    match to.mode() {
        Mode::Train => {
            let master = to.precision().master();
            let saved =
                [":mean", ":inverse_deviation"].map(|part| to.saved(node, part, &[op.channels], master));
            let kernel = BatchNormForward { norm: *op, relu: false, pool: None };
            to.push(node, kernel, vec![x, weight, bias], vec![mean, variance], vec![y, saved[0], saved[1]]);
        }
        Mode::Evaluate | Mode::Refresh => {
            let kernel = BatchNormInference { norm: *op, relu: false, pool: None };
            to.push(node, kernel, vec![x, weight, bias, mean, variance], vec![], vec![y]);
        }
    }
    Ok(())
}

/// Checks x, y and everything per channel.
fn check_all(
    norm: &BatchNorm2d,
    pool: Option<FusedPool>,
    x: &Value,
    y: &Value,
    channels: &[&Value],
) -> Result<(), String> {
    let shape = image_shape(x)?;
    expect_shape(y, &pool.map_or(shape, |pool| pool.output_shape(shape)))?;
    if shape[1] != norm.channels {
        return Err(format!(
            "`{}` has {} channels, the batch norm takes {}",
            x.name, shape[1], norm.channels
        ));
    }
    if shape[0] * shape[2] * shape[3] == 0 {
        return Err(format!("`{}` is empty", x.name));
    }
    channels.iter().try_for_each(|value| expect_shape(value, &[norm.channels]))
}

fn check_index(pool: Option<FusedPool>, y: &Value, index: Option<&&Value>) -> Result<(), String> {
    match (pool, index) {
        (None, _) => Ok(()),
        (Some(_), Some(index)) if index.dtype == DType::U8 => expect_same_shape(y, index),
        _ => Err("fused pooling needs an index of type u8".to_owned()),
    }
}

impl KernelSpec for BatchNormForward {
    fn name(&self) -> &'static str {
        match (self.relu, self.pool.is_some()) {
            (false, false) => "batch_norm_forward",
            (true, false) => "batch_norm_relu_forward",
            (false, true) => "batch_norm_pool_forward",
            (true, true) => "batch_norm_relu_pool_forward",
        }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[3, 2, if self.pool.is_some() { 4 } else { 3 }]])?;
        let channels = [&operands[1..5], &operands[6..8]].concat();
        check_all(&self.norm, self.pool, operands[0], operands[5], &channels)?;
        check_index(self.pool, operands[5], operands.get(8))
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        4 * operands[0].elements() as u64
    }

    fn differentiate(&self, step: &Step, to: &mut Differentiator) -> Result<(), EngineError> {
        let Some(dy) = to.gradient(step.outputs[0]) else { return Ok(()) };
        let (x, weight, bias) = (step.inputs[0], step.inputs[1], step.inputs[2]);
        let mut inputs = vec![x, dy, weight, bias, step.outputs[1], step.outputs[2]];
        inputs.extend(step.outputs.get(3));
        let (dweight, dbias) = (to.parameter_gradient(weight), to.parameter_gradient(bias));
        let kernel = BatchNormBackward { norm: self.norm, relu: self.relu, pool: self.pool };
        to.add_gradient(x, |to, dx| {
            to.push(step, kernel, Phase::Backward, inputs, vec![], vec![dx, dweight, dbias]);
        });
        Ok(())
    }
}

impl KernelSpec for BatchNormInference {
    fn name(&self) -> &'static str {
        "batch_norm_inference"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[5, 0, 1]])?;
        check_all(&self.norm, self.pool, operands[0], operands[5], &operands[1..5])
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        2 * operands[0].elements() as u64
    }
}

impl KernelSpec for BatchNormBackward {
    fn name(&self) -> &'static str {
        match (self.relu, self.pool.is_some()) {
            (false, false) => "batch_norm_backward",
            (true, false) => "batch_norm_relu_backward",
            (false, true) => "batch_norm_pool_backward",
            (true, true) => "batch_norm_relu_pool_backward",
        }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let inputs = if self.pool.is_some() { 7 } else { 6 };
        expect_counts(counts, &[[inputs, 0, 3]])?;
        let channels = [&operands[2..6], &operands[inputs + 1..]].concat();
        check_all(&self.norm, self.pool, operands[0], operands[1], &channels)?;
        expect_same_shape(operands[0], operands[inputs])?;
        check_index(self.pool, operands[1], operands.get(6))
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        8 * operands[0].elements() as u64
    }
}
