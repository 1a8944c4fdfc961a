//! Steps on our own kernels.

use crate::native::batch_norm::BatchNorm;
use crate::native::elementwise::{Machine, Rates};
use crate::native::loss::softmax_cross_entropy;
use crate::native::pool::{MaxPool, Pool};
use crate::native::rows::Geometry;
use crate::native::simd::Bf16;
use stratus_engine::ops::{Kernel, SgdUpdate};
use stratus_engine::{DType, Layout, Operands, PreparedStep, Program, Step, StepKernel};
use stratus_graph::ops::{BatchNorm2d, MaxPool2d};

/// A kernel from a closure.
struct Native<F>(F);

impl<F: FnMut(&mut Operands<'_>) + Send> StepKernel for Native<F> {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        (self.0)(operands);
        Ok(())
    }
}

fn step(scratch_bytes: usize, run: impl FnMut(&mut Operands<'_>) + Send + 'static) -> PreparedStep {
    PreparedStep { implementation: String::new(), scratch_bytes, kernel: Box::new(Native(run)) }
}

/// The kernel of a step that oneDNN does not run.
pub(crate) fn prepare(
    machine: &Machine,
    program: &Program,
    of: &Step,
    layouts: &[Layout],
) -> Result<PreparedStep, String> {
    let value = |position: usize| of.operands().nth(position).map(|id| program.value(id));
    let geometry = |position: usize| {
        of.operands()
            .nth(position)
            .and_then(|id| Geometry::of(&program.value(id).shape, &layouts[id.0]))
            .ok_or_else(|| format!("operand {position} lies in a layout that our kernels do not walk"))
    };
    let dtype = value(0).map_or(DType::F32, |v| v.dtype);
    let machine = machine.clone();
    let implementation = format!("stratus:{:?}", machine.level).to_lowercase();
    let mut prepared = match of.kernel.clone() {
        Kernel::BatchNormForward(k) => {
            let norm = batch_norm(&machine, geometry(0)?, &k.norm, k.relu, k.pool.map(|p| p.window), dtype);
            step(norm.scratch_bytes(), move |o| {
                let (x, weight, bias) = (o.take(0), o.elements(1), o.elements(2));
                let running = [o.elements(3), o.elements(4)];
                let (y, saved) = (o.take(5), [o.elements(6), o.elements(7)]);
                let (index, scratch) =
                    if norm.pool.is_some() { (o.take(8), o.take(9)) } else { (o.take(9), o.take(8)) };
                norm.forward(x, [weight, bias], running, y, saved, index, scratch);
            })
        }
        Kernel::BatchNormInference(k) => {
            let norm = batch_norm(&machine, geometry(0)?, &k.norm, k.relu, k.pool.map(|p| p.window), dtype);
            step(norm.scratch_bytes(), move |o| {
                let x = o.take(0);
                let parameters = [o.elements(1), o.elements(2), o.elements(3), o.elements(4)].map(|s| &*s);
                norm.inference(x, parameters, o.take(5), o.take(6));
            })
        }
        Kernel::BatchNormBackward(k) => {
            let norm = batch_norm(&machine, geometry(0)?, &k.norm, k.relu, k.pool.map(|p| p.window), dtype);
            let first = if norm.pool.is_some() { 7 } else { 6 };
            step(norm.scratch_bytes(), move |o| {
                let (x, dy) = (o.take(0), o.take(1));
                let parameters = [o.elements(2), o.elements(3), o.elements(4), o.elements(5)].map(|s| &*s);
                let index = if norm.pool.is_some() { o.take(6) } else { <&mut [u8]>::default() };
                let (dx, gradients) = (o.take(first), [o.elements(first + 1), o.elements(first + 2)]);
                norm.backward(x, dy, parameters, index, dx, gradients, o.take(first + 3));
            })
        }
        Kernel::ReluForward(_) => match dtype {
            DType::Bf16 => step(0, move |o| machine.relu(o.elements::<Bf16>(0), o.elements(1))),
            _ => step(0, move |o| machine.relu(o.elements::<f32>(0), o.elements(1))),
        },
        Kernel::ReluBackward(_) => match dtype {
            DType::Bf16 => {
                step(0, move |o| machine.relu_backward(o.elements::<Bf16>(0), o.elements(1), o.elements(2)))
            }
            _ => step(0, move |o| machine.relu_backward(o.elements::<f32>(0), o.elements(1), o.elements(2))),
        },
        Kernel::Accumulate(_) => match dtype {
            DType::Bf16 => step(0, move |o| machine.accumulate(o.elements::<Bf16>(0), o.elements(1))),
            _ => step(0, move |o| machine.accumulate(o.elements::<f32>(0), o.elements(1))),
        },
        Kernel::MaxPoolForward(k) => {
            let pool = max_pool(&machine, &k.pool, geometry(0)?, geometry(1)?);
            match dtype {
                DType::Bf16 => {
                    step(0, move |o| pool.forward(o.elements::<Bf16>(0), o.elements(1), o.take(2)))
                }
                _ => step(0, move |o| pool.forward(o.elements::<f32>(0), o.elements(1), o.take(2))),
            }
        }
        Kernel::MaxPoolBackward(k) => {
            let pool = max_pool(&machine, &k.pool, geometry(2)?, geometry(0)?);
            match dtype {
                DType::Bf16 => {
                    step(0, move |o| pool.backward(o.elements::<Bf16>(0), o.take(1), o.elements(2)))
                }
                _ => step(0, move |o| pool.backward(o.elements::<f32>(0), o.take(1), o.elements(2))),
            }
        }
        Kernel::SoftmaxCrossEntropy(_) => {
            let classes = value(0).and_then(|v| v.shape.get(1).copied()).unwrap_or(1);
            let team = machine.team.clone();
            match value(3).map(|v| v.dtype) {
                Some(DType::Bf16) => step(0, move |o| {
                    softmax_cross_entropy::<Bf16>(
                        &team,
                        o.elements(0),
                        o.elements(1),
                        classes,
                        o.elements(2),
                        o.elements(3),
                    );
                }),
                _ => step(0, move |o| {
                    softmax_cross_entropy::<f32>(
                        &team,
                        o.elements(0),
                        o.elements(1),
                        classes,
                        o.elements(2),
                        o.elements(3),
                    );
                }),
            }
        }
        Kernel::SgdUpdate(SgdUpdate { momentum, weight_decay }) => step(0, move |o| {
            let learning = o.elements::<f32>(1).first().copied().unwrap_or(0.0);
            let rates = Rates { learning, momentum, decay: weight_decay };
            machine.sgd(rates, o.elements(0), o.elements(2), o.elements(3), o.elements(4));
        }),
        Kernel::Convert(_) => match (dtype, value(1).map(|v| v.dtype)) {
            (DType::F32, Some(DType::Bf16)) => {
                step(0, move |o| machine.convert::<f32, Bf16>(o.elements(0), o.elements(1)))
            }
            (DType::Bf16, Some(DType::F32)) => {
                step(0, move |o| machine.convert::<Bf16, f32>(o.elements(0), o.elements(1)))
            }
            (DType::F32, Some(DType::F32)) => {
                step(0, move |o| machine.convert::<f32, f32>(o.elements(0), o.elements(1)))
            }
            (DType::Bf16, Some(DType::Bf16)) => {
                step(0, move |o| machine.convert::<Bf16, Bf16>(o.elements(0), o.elements(1)))
            }
            (from, to) => return Err(format!("there is no conversion from {from} to {to:?}")),
        },
        Kernel::Conv2dForward(_)
        | Kernel::Conv2dBackwardData(_)
        | Kernel::Conv2dBackwardWeights(_)
        | Kernel::LinearForward(_)
        | Kernel::LinearBackwardData(_)
        | Kernel::LinearBackwardWeights(_)
        | Kernel::Reorder(_) => return Err("it runs on oneDNN".to_owned()),
    };
    prepared.implementation = implementation;
    Ok(prepared)
}

fn batch_norm(
    machine: &Machine,
    geometry: Geometry,
    norm: &BatchNorm2d,
    relu: bool,
    window: Option<[usize; 2]>,
    dtype: DType,
) -> BatchNorm {
    BatchNorm {
        geometry,
        epsilon: norm.epsilon,
        momentum: norm.momentum,
        relu,
        pool: window.map(|window| Pool { window }),
        dtype,
        level: machine.level,
        team: machine.team.clone(),
    }
}

fn max_pool(machine: &Machine, pool: &MaxPool2d, input: Geometry, output: Geometry) -> MaxPool {
    MaxPool {
        input,
        output,
        kernel: pool.kernel,
        stride: pool.stride,
        padding: pool.padding,
        team: machine.team.clone(),
    }
}
