//! Convolutions: by cuDNN, where there is one tap alone as matrix products by cuBLAS too, by our own kernels where those do better, and where nothing else
//! applies by our own plain ones. The fastest is found by measuring, bias and rectifier included.

use super::conv_f32;
use super::conv_first::First;
use super::conv_gradient;
use super::convert::check_types;
use super::depthwise::Depthwise;
use super::linear::sum_rows;
use super::{Maker, OnGpu, Operand, THREADS, int, long, vector};
use crate::ffi::cublas::Product;
use crate::ffi::cudnn::{Pass, Problem};
use crate::library::{Candidate, Convolve, Multiply};
use crate::processor::{AMPERE, Argument, Call, Launch, Made, Source};
use stratus_engine::ops::{Conv2dBackwardData, Conv2dBackwardWeights, Conv2dForward};
use stratus_graph::ops::Conv2d;

/// How many configurations of cuDNN are looked at, and what each may need for itself.
const PLANS: usize = 6;
const WORKSPACE: usize = 1 << 30;

/// What our own kernel for any convolution is called.
const PLAIN: &str = "stratus:plain";

/// A convolution's product with its operands: input, weight, output, or the gradient of one of them.
struct Convolution<'a> {
    conv: &'a Conv2d,
    pass: Pass,
    operands: [&'a Operand; 3],
    arguments: [Argument; 3],
    /// What a forward one ends with.
    bias: Option<(Argument, &'a Operand)>,
    relu: bool,
}

impl Convolution<'_> {
    fn problem(&self, tf32: bool) -> Result<Problem, String> {
        let [x, weight, y] = self.operands;
        let of = |operand: &Operand| {
            operand.value.shape.as_slice().try_into().map_err(|_| "a map has four dimensions")
        };
        let Conv2d { padding_before, padding_after, stride, dilation, .. } = *self.conv;
        Ok(Problem {
            pass: self.pass,
            x: of(x)?,
            weight: of(weight)?,
            y: of(y)?,
            padding_before,
            padding_after,
            stride,
            dilation,
            types: [x.dtype(), weight.dtype(), y.dtype()],
            tf32,
        })
    }

    /// The product as one of matrices, where there is one tap at every pixel.
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
        let [of_x, of_weight, of_y] = problem.types;
        Some(match self.pass {
            Pass::Forward => {
                (product([pixels, outputs, inputs], [false, true], [of_x, of_y]), [x, weight, y])
            }
            Pass::BackwardData => {
                (product([pixels, inputs, outputs], [false, false], [of_y, of_x]), [y, weight, x])
            }
            Pass::BackwardWeights => {
                (product([outputs, inputs, pixels], [true, false], [of_x, of_weight]), [y, x, weight])
            }
        })
    }

    /// Our own kernel.
    fn plain(&self, maker: &Maker<'_>) -> Result<Candidate, String> {
        let problem = self.problem(false)?;
        let (name, [first, second, made], count) = match self.pass {
            Pass::Forward => ("conv_forward", [0, 1, 2], self.operands[2].elements()),
            Pass::BackwardData => ("conv_backward_data", [2, 1, 0], self.operands[0].elements()),
            Pass::BackwardWeights => ("conv_backward_weights", [0, 2, 1], self.operands[1].elements()),
        };
        let source = Source::of("conv", self.operands[first].dtype(), 1).with("RELU", 0);
        let mut arguments = [first, second, made].map(|of| self.arguments[of]).to_vec();
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
        let launch = maker.spread(&source, name, count, arguments)?;
        Ok(Candidate { name: PLAIN.to_owned(), calls: vec![Box::new(launch)], scratch_bytes: 0 })
    }

    /// Our own kernel for a convolution in each channel, where this is one.
    fn depthwise(&self, maker: &Maker<'_>) -> Option<Result<Candidate, String>> {
        let problem = self.problem(false).ok()?;
        let depthwise = Depthwise::of(self.conv, problem, self.operands)?;
        Some(depthwise.candidate(self.arguments, maker))
    }

    /// The same with bias and rectifier behind it, where there are any.
    fn finished(&self, mut candidate: Candidate, maker: &Maker<'_>) -> Result<Candidate, String> {
        let y = (self.arguments[2], self.operands[2]);
        if let Some((bias, _)) = self.bias {
            candidate.calls.push(Box::new(add_bias(bias, y, self.relu, maker)?));
        } else if self.relu {
            candidate.calls.push(Box::new(rectify(y, maker)?));
        }
        Ok(candidate)
    }

    /// Our own kernels for sums that are more exact than one f32 after the other, finished.
    fn exact(&self, problem: &Problem, maker: &Maker<'_>) -> Result<Vec<Candidate>, String> {
        if maker.processor.capability() < AMPERE {
            return Ok(Vec::new());
        }
        let exact = conv_f32::candidates(self.conv, problem, self.operands, self.arguments, maker)?;
        exact.into_iter().map(|candidate| self.finished(candidate, maker)).collect()
    }

    /// Our own kernels for some convolutions, finished.
    fn own(&self, problem: &Problem, maker: &Maker<'_>) -> Result<Vec<Candidate>, String> {
        let mut own = Vec::new();
        if let Some(depthwise) = self.depthwise(maker) {
            own.push(self.finished(depthwise?, maker)?);
        }
        if maker.processor.capability() < AMPERE {
            return Ok(own);
        }
        if let Some(first) = First::of(self.conv, problem, self.operands) {
            let bias = self.bias.map(|(bias, _)| bias);
            own.extend(match self.pass {
                Pass::Forward => first.candidates(self.arguments, bias, self.relu, maker)?,
                Pass::BackwardWeights => first.gradients(self.arguments, maker)?,
                Pass::BackwardData => Vec::new(),
            });
        }
        if self.pass == Pass::BackwardWeights {
            let (conv, operands) = (self.conv, self.operands);
            own.extend(conv_gradient::candidates(conv, problem, operands, self.arguments, maker)?);
        }
        Ok(own)
    }

    fn make(&self, maker: &Maker<'_>) -> Result<Candidate, String> {
        check_types(self.operands)?;
        let plain = || self.finished(self.plain(maker)?, maker);
        let problem = self.problem(maker.library.is_some_and(|library| library.tf32))?;
        let exact = self.exact(&problem, maker)?;
        let own = self.own(&problem, maker)?;
        let Some(library) = maker.library else {
            let wanted = |candidate: &Candidate| maker.wanted.is_none_or(|name| candidate.name == name);
            return exact.into_iter().chain(own).find(wanted).map_or_else(plain, Ok);
        };
        if maker.wanted == Some(PLAIN) {
            return plain();
        }
        let mut candidates = exact;
        if let Some((product, operands)) = self.product(&problem) {
            let call = Multiply { cublas: library.cublas.clone(), product, operands };
            let calls: Vec<Box<dyn Call>> = vec![Box::new(call)];
            let candidate = Candidate { name: "cublas".to_owned(), calls, scratch_bytes: 0 };
            candidates.push(self.finished(candidate, maker)?);
        }
        candidates.extend(own);
        // What the library has no kernel for, ours does: its reason is of use to nobody.
        let known = library.known(&problem, maker.asked());
        let plans = library.cudnn.plans(&problem, PLANS, WORKSPACE, known.as_deref()).unwrap_or_default();
        for plan in plans {
            let candidate = Candidate {
                name: plan.name.clone(),
                scratch_bytes: plan.workspace,
                calls: vec![Box::new(Convolve { plan, operands: self.arguments, workspace: 0 })],
            };
            candidates.push(self.finished(candidate, maker)?);
        }
        if candidates.is_empty() {
            candidates.push(plain()?);
        }
        let operands = self.arguments.into_iter().zip(self.operands).chain(self.bias);
        let places = operands.map(|(argument, operand)| {
            let position = match argument {
                Argument::Operand(position) => position,
                _ => 0,
            };
            (position, operand.layout.bytes(operand.dtype()))
        });
        match library.choose(&problem, candidates, places, maker.asked()) {
            // What was found and does not run is as good as nothing; what was asked for by name is another matter.
            Err(_) if maker.wanted.is_none() => plain(),
            chosen => chosen,
        }
    }
}

/// Bias and rectifier behind a convolution or a matrix product, in place.
pub(super) fn add_bias(
    bias: Argument,
    y: (Argument, &Operand),
    relu: bool,
    maker: &Maker<'_>,
) -> Result<Launch, String> {
    let (argument, y) = y;
    let columns = y.value.shape.get(1).copied().unwrap_or(1);
    let count = y.elements();
    let vector = vector(&[y.dtype()], &[columns]);
    let source = Source::of("conv", y.dtype(), vector).with("RELU", u8::from(relu));
    maker.spread(&source, "add_bias", count / vector, vec![bias, argument, long(count), int(columns)?])
}

/// The rectifier behind a convolution without bias, in place.
fn rectify(y: (Argument, &Operand), maker: &Maker<'_>) -> Result<Launch, String> {
    let (argument, y) = y;
    let count = y.elements();
    let vector = vector(&[y.dtype()], &[count]);
    let source = Source::of("elementwise", y.dtype(), vector);
    let arguments = vec![argument, argument, long(count), Argument::Float(f32::NAN)];
    maker.spread(&source, "relu_forward", count / vector, arguments)
}

impl OnGpu for Conv2dForward {
    fn make(&self, operands: &[Operand], counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        let y = counts[0];
        let convolution = Convolution {
            conv: &self.conv,
            pass: Pass::Forward,
            operands: [&operands[0], &operands[1], &operands[y]],
            arguments: [0, 1, y].map(Argument::Operand),
            bias: self.conv.bias.then(|| (Argument::Operand(2), &operands[2])),
            relu: self.relu,
        };
        Ok(convolution.make(maker)?.into())
    }
}

impl OnGpu for Conv2dBackwardData {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        let convolution = Convolution {
            conv: &self.conv,
            pass: Pass::BackwardData,
            operands: [&operands[2], &operands[1], &operands[0]],
            arguments: [2, 1, 0].map(Argument::Operand),
            bias: None,
            relu: false,
        };
        Ok(convolution.make(maker)?.into())
    }
}

impl OnGpu for Conv2dBackwardWeights {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        let convolution = Convolution {
            conv: &self.conv,
            pass: Pass::BackwardWeights,
            operands: [&operands[0], &operands[2], &operands[1]],
            arguments: [0, 2, 1].map(Argument::Operand),
            bias: None,
            relu: false,
        };
        let mut made = convolution.make(maker)?;
        if self.conv.bias {
            let sums = sum_rows(&operands[1], [1, 3], made.scratch_bytes, maker)?;
            made.scratch_bytes = sums.scratch_bytes;
            made.calls.extend(sums.calls);
        }
        Ok(made.into())
    }
}

/// Blocks of a kernel with a thread for each of `count`.
pub(super) fn blocks(count: usize) -> u32 {
    u32::try_from(count.div_ceil(THREADS as usize)).unwrap_or(u32::MAX)
}
