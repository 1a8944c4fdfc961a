//! Convolutions. The fastest of these candidates, including bias and ReLU, is determined by measuring:
//!
//! | implementation | applies to |
//! |---|---|
//! | cuDNN | all convolutions: its best configurations that are deterministic and precise enough |
//! | `cublas` | 1×1 convolutions, as matrix products |
//! | `stratus:f32:…` (`f32.rs`) | f32 without TF32, sums more exact than cuDNN's |
//! | `stratus:depthwise` (`depthwise.rs`) | one filter per channel |
//! | `stratus:first:…` (`first_layer.rs`, `first_layer_gradient.rs`) | at most four channels, bf16 or f16 |
//! | `stratus:tensor:…`, `stratus:wgmma:…` (`weight_gradient.rs`) | f32 weight gradients, bf16 or f16 maps |
//! | `stratus:plain` | all other convolutions, and all in the emulation |

mod depthwise;
mod f32;
mod first_layer;
mod first_layer_gradient;
mod weight_gradient;

use self::depthwise::Depthwise;
use self::first_layer::FirstLayer;
use super::bias::{add_bias, sum_rows};
use super::convert::check_types;
use super::{BuildResult, GpuOp, KernelBuilder, Operand, int, long, vector};
use crate::ffi::cublas::Product;
use crate::ffi::cudnn::{Pass, Problem};
use crate::gpu_libraries::{ConvolutionCall, MatmulCall};
use crate::processor::{AMPERE, Argument, Call, Implementation, Launch, Source};
use stratus_engine::ops::{Conv2dBackwardData, Conv2dBackwardWeights, Conv2dForward};
use stratus_graph::ops::Conv2d;

/// The native kernel for any convolution, with a thread per output element.
const PLAIN: &str = "stratus:plain";

/// One pass of a convolution, with its operands: input, weight, output, or the gradient of one of them.
struct Convolution<'a> {
    conv: &'a Conv2d,
    pass: Pass,
    operands: [&'a Operand; 3],
    arguments: [Argument; 3],
    /// The bias, which only the forward pass has.
    bias: Option<(Argument, &'a Operand)>,
    /// True if ReLU follows, in the forward pass only.
    relu: bool,
}

impl Convolution<'_> {
    fn problem(&self, tf32: bool) -> Result<Problem, String> {
        let [x, weight, y] = self.operands;
        let shape = |operand: &Operand| {
            operand.value.shape.as_slice().try_into().map_err(|_| "maps must have four dimensions")
        };
        let Conv2d { padding_before, padding_after, stride, dilation, .. } = *self.conv;
        Ok(Problem {
            pass: self.pass,
            x: shape(x)?,
            weight: shape(weight)?,
            y: shape(y)?,
            padding_before,
            padding_after,
            stride,
            dilation,
            types: [x.dtype(), weight.dtype(), y.dtype()],
            tf32,
        })
    }

    /// The pass of a 1×1 convolution as a matrix product over `P = N·H·W` pixels, with K outputs and C
    /// channels:
    ///
    /// ```text
    /// forward           y [P, K] = x [P, C] · wᵀ [C, K]
    /// data gradient    dx [P, C] = dy [P, K] · w [K, C]
    /// weight gradient  dw [K, C] = dyᵀ [K, P] · x [P, C]
    /// ```
    fn product(&self, problem: &Problem) -> Option<(Product, [Argument; 3])> {
        if !self.conv.is_pointwise() {
            return None;
        }
        let pixels = problem.x[0] * problem.x[2] * problem.x[3];
        let (inputs, outputs) = (problem.x[1], problem.y[1]);
        let [x, weight, y] = self.arguments;
        let product = |[rows, columns, depth]: [usize; 3], [a_transposed, b_transposed]: [bool; 2], types| {
            Product { rows, columns, depth, a_transposed, b_transposed, types, tf32: problem.tf32 }
        };
        let [x_dtype, weight_dtype, y_dtype] = problem.types;
        Some(match self.pass {
            Pass::Forward => {
                (product([pixels, outputs, inputs], [false, true], [x_dtype, y_dtype]), [x, weight, y])
            }
            Pass::BackwardData => {
                (product([pixels, inputs, outputs], [false, false], [y_dtype, x_dtype]), [y, weight, x])
            }
            Pass::BackwardWeights => {
                (product([outputs, inputs, pixels], [true, false], [x_dtype, weight_dtype]), [y, x, weight])
            }
        })
    }

    /// The plain native kernel.
    fn plain(&self, builder: &KernelBuilder<'_>) -> Result<Implementation, String> {
        let problem = self.problem(false)?;
        let (name, [first, second, result], count) = match self.pass {
            Pass::Forward => ("conv_forward", [0, 1, 2], self.operands[2].elements()),
            Pass::BackwardData => ("conv_backward_data", [2, 1, 0], self.operands[0].elements()),
            Pass::BackwardWeights => ("conv_backward_weights", [0, 2, 1], self.operands[1].elements()),
        };
        let source = Source::new("conv", self.operands[first].dtype(), 1).with("RELU", 0);
        let mut arguments = [first, second, result].map(|operand| self.arguments[operand]).to_vec();
        arguments.push(long(count));
        if self.pass == Pass::BackwardWeights {
            arguments.push(long(problem.x[0]));
        }
        let Conv2d { kernel, stride, padding_before, dilation, groups, .. } = *self.conv;
        let numbers = [problem.x[1], problem.x[2], problem.x[3], problem.y[1], problem.y[2], problem.y[3]];
        let pairs = [kernel, padding_before, stride, dilation].into_iter().flatten();
        for number in numbers.into_iter().chain(pairs).chain([groups]) {
            arguments.push(int(number)?);
        }
        let launch = builder.grid_stride(&source, name, count, arguments)?;
        Ok(Implementation { name: PLAIN.to_owned(), calls: vec![Box::new(launch)], scratch_bytes: 0 })
    }

    /// The depthwise kernel, if it supports this convolution.
    fn depthwise(&self, builder: &KernelBuilder<'_>) -> Option<Result<Implementation, String>> {
        let problem = self.problem(false).ok()?;
        let depthwise = Depthwise::new(self.conv, problem, self.operands)?;
        Some(depthwise.candidate(self.arguments, builder))
    }

    /// Appends bias and ReLU to a candidate, if there are any.
    fn with_bias_and_relu(
        &self,
        mut candidate: Implementation,
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        let y = (self.arguments[2], self.operands[2]);
        if let Some((bias, _)) = self.bias {
            candidate.calls.push(Box::new(add_bias(bias, y, self.relu, builder)?));
        } else if self.relu {
            candidate.calls.push(Box::new(apply_relu(y, builder)?));
        }
        Ok(candidate)
    }

    /// The native f32 kernels, with bias and ReLU.
    fn f32_candidates(
        &self,
        problem: &Problem,
        builder: &KernelBuilder<'_>,
    ) -> Result<Vec<Implementation>, String> {
        if builder.processor.capability() < AMPERE {
            return Ok(Vec::new());
        }
        let candidates = f32::candidates(self.conv, problem, self.operands, self.arguments, builder)?;
        candidates.into_iter().map(|candidate| self.with_bias_and_relu(candidate, builder)).collect()
    }

    /// The native kernels for special convolutions, with bias and ReLU.
    fn special_candidates(
        &self,
        problem: &Problem,
        builder: &KernelBuilder<'_>,
    ) -> Result<Vec<Implementation>, String> {
        let mut candidates = Vec::new();
        if let Some(depthwise) = self.depthwise(builder) {
            candidates.push(self.with_bias_and_relu(depthwise?, builder)?);
        }
        if builder.processor.capability() < AMPERE {
            return Ok(candidates);
        }
        if let Some(first) = FirstLayer::new(self.conv, problem, self.operands) {
            let bias = self.bias.map(|(bias, _)| bias);
            candidates.extend(match self.pass {
                Pass::Forward => first.candidates(self.arguments, bias, self.relu, builder)?,
                Pass::BackwardWeights => first.gradients(self.arguments, builder)?,
                Pass::BackwardData => Vec::new(),
            });
        }
        if self.pass == Pass::BackwardWeights {
            let (conv, operands) = (self.conv, self.operands);
            candidates.extend(weight_gradient::candidates(conv, problem, operands, self.arguments, builder)?);
        }
        Ok(candidates)
    }

    fn build(&self, builder: &KernelBuilder<'_>) -> Result<Implementation, String> {
        check_types(self.operands)?;
        let plain = || self.with_bias_and_relu(self.plain(builder)?, builder);
        let problem = self.problem(builder.tf32)?;
        if let Some(convolutions) = builder.convolutions {
            convolutions.borrow_mut().push((problem, builder.requested.map(str::to_owned)));
        }
        let mut candidates = self.f32_candidates(&problem, builder)?;
        let special = self.special_candidates(&problem, builder)?;
        let Some(libraries) = builder.libraries else {
            let requested = |candidate: &Implementation| builder.allows(&candidate.name);
            return candidates.into_iter().chain(special).find(requested).map_or_else(plain, Ok);
        };
        if builder.requested == Some(PLAIN) {
            return plain();
        }
        if let Some((product, operands)) = self.product(&problem) {
            let call = MatmulCall { cublas: libraries.cublas.clone(), product, operands };
            let calls: Vec<Box<dyn Call>> = vec![Box::new(call)];
            let candidate = Implementation { name: "cublas".to_owned(), calls, scratch_bytes: 0 };
            candidates.push(self.with_bias_and_relu(candidate, builder)?);
        }
        candidates.extend(special);
        let name = libraries.chosen_name(&problem, builder.choice());
        // If cuDNN has no plan, a native kernel is used: cuDNN's error would not help.
        let plans = libraries.plans(&problem, name.as_deref());
        for plan in plans {
            let candidate = Implementation {
                name: plan.name.clone(),
                scratch_bytes: plan.workspace,
                calls: vec![Box::new(ConvolutionCall { plan, operands: self.arguments, workspace: 0 })],
            };
            candidates.push(self.with_bias_and_relu(candidate, builder)?);
        }
        if candidates.is_empty() {
            candidates.push(plain()?);
        }
        let operands = self.arguments.into_iter().zip(self.operands).chain(self.bias);
        let sizes = operands.map(|(argument, operand)| {
            let position = match argument {
                Argument::Operand(position) => position,
                _ => 0,
            };
            (position, operand.layout.bytes(operand.dtype()))
        });
        match libraries.choose(&problem, candidates, sizes, builder.choice()) {
            // If no candidate runs, the plain kernel is used, except if one was requested by name.
            Err(_) if builder.requested.is_none() => plain(),
            chosen => chosen,
        }
    }
}

/// Applies the ReLU after a convolution without bias, in place.
fn apply_relu(y: (Argument, &Operand), builder: &KernelBuilder<'_>) -> Result<Launch, String> {
    let (argument, y) = y;
    let count = y.elements();
    let vector = vector(&[y.dtype()], &[count]);
    let source = Source::new("elementwise", y.dtype(), vector);
    let arguments = vec![argument, argument, long(count), Argument::Float(f32::NAN)];
    builder.grid_stride(&source, "relu_forward", count / vector, arguments)
}

impl GpuOp for Conv2dForward {
    fn build(&self, operands: &[Operand], counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let y = counts[0];
        let convolution = Convolution {
            conv: &self.conv,
            pass: Pass::Forward,
            operands: [&operands[0], &operands[1], &operands[y]],
            arguments: [0, 1, y].map(Argument::Operand),
            bias: self.conv.bias.then(|| (Argument::Operand(2), &operands[2])),
            relu: self.relu,
        };
        convolution.build(builder)
    }
}

impl GpuOp for Conv2dBackwardData {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let convolution = Convolution {
            conv: &self.conv,
            pass: Pass::BackwardData,
            operands: [&operands[2], &operands[1], &operands[0]],
            arguments: [2, 1, 0].map(Argument::Operand),
            bias: None,
            relu: false,
        };
        convolution.build(builder)
    }
}

impl GpuOp for Conv2dBackwardWeights {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let convolution = Convolution {
            conv: &self.conv,
            pass: Pass::BackwardWeights,
            operands: [&operands[0], &operands[2], &operands[1]],
            arguments: [0, 2, 1].map(Argument::Operand),
            bias: None,
            relu: false,
        };
        let mut implementation = convolution.build(builder)?;
        if self.conv.bias {
            let sums = sum_rows(&operands[1], [1, 3], implementation.scratch_bytes, builder)?;
            implementation.scratch_bytes = sums.scratch_bytes;
            implementation.calls.extend(sums.calls);
        }
        Ok(implementation)
    }
}
