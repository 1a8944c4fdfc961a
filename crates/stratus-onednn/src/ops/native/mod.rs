//! Steps on our own kernels.

mod around;

use crate::native::concat::{Concat, Piece};
use crate::native::dropout::{DropoutMask, dropout};
use crate::native::elementwise::{CpuContext, Rates};
use crate::native::loss::{Loss, softmax_cross_entropy};
use crate::native::norm::local_response::Lrn;
use crate::native::pool::average::AvgPool;
use crate::native::rows::Geometry;
use crate::native::simd::Bf16;
use crate::ops::OWN;
use around::{Around, batch_norm, max_pool};
use stratus_engine::ops::{Averages, FusedPool, Kernel, Parts, SoftmaxCrossEntropy};
use stratus_engine::{DType, Layout, Operands, PreparedStep, Step, StepKernel, Value};

/// A kernel from a closure.
struct Native<F>(F);

impl<F: FnMut(&mut Operands<'_>) -> Result<(), String> + Send> StepKernel for Native<F> {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        (self.0)(operands)
    }
}

/// A step whose kernel may fail.
fn fallible(run: impl FnMut(&mut Operands<'_>) -> Result<(), String> + Send + 'static) -> PreparedStep {
    PreparedStep { implementation: String::new(), scratch_bytes: 0, kernel: Box::new(Native(run)) }
}

/// A step whose kernel cannot fail.
fn step(scratch_bytes: usize, mut run: impl FnMut(&mut Operands<'_>) + Send + 'static) -> PreparedStep {
    let run = move |operands: &mut Operands<'_>| {
        run(operands);
        Ok(())
    };
    PreparedStep { scratch_bytes, ..fallible(run) }
}

/// Makes a step for one of the two floating-point types.
macro_rules! typed {
    ($dtype:expr, $element:ident => $step:expr) => {
        match $dtype {
            DType::F32 => {
                type $element = f32;
                $step
            }
            DType::Bf16 => {
                type $element = Bf16;
                $step
            }
            other => return Err(format!("there is no kernel for {other}")),
        }
    };
}

/// The kernel of a step that oneDNN does not run; `operands` are as the step sees them.
pub(crate) fn prepare(
    cpu: &CpuContext,
    of: &Step,
    operands: Vec<(Value, Layout)>,
) -> Result<PreparedStep, String> {
    let (values, layouts) = operands.into_iter().unzip();
    let around = Around { values, layouts };
    let implementation = format!("{OWN}{}", cpu.level.name());
    let cpu = cpu.clone();
    let prepared = match of.kernel.clone() {
        Kernel::BatchNormStatistics(k) => {
            let dtype = around.norm_types(&[])?;
            let norm = batch_norm(
                &cpu,
                around.places(0, &k.norm, Parts { x: k.part, y: k.part })?,
                &k.norm,
                false,
                None,
                dtype,
            )?;
            step(norm.scratch_bytes(), move |o| {
                let x = o.take(0);
                let running = [o.elements(1), o.elements(2)];
                let saved = [o.elements(3), o.elements(4)];
                norm.statistics(x, running, saved, o.elements(5), o.tile(), o.take(6));
            })
        }
        Kernel::BatchNormApply(k) => {
            let dtype = around.norm_types(&[5])?;
            let norm = around.norm_before(&cpu, 5, (&k.norm, k.relu), (k.pool, k.parts), dtype)?;
            step(norm.scratch_bytes(), move |o| {
                let x = o.take(0);
                let parameters = [o.elements(1), o.elements(2), o.elements(3), o.elements(4)].map(|s| &*s);
                let y = o.take(5);
                let (index, scratch) =
                    if k.pool.is_some() { (o.take(6), o.take(7)) } else { (o.take(7), o.take(6)) };
                norm.apply([x, &[]], parameters, y, index, scratch);
            })
        }
        Kernel::BatchNormAddApply(k) => {
            around.expect_same_layout(&[0, 5, 6])?;
            let dtype = around.norm_types(&[5, 6])?;
            let norm =
                batch_norm(&cpu, around.places(0, &k.norm, Parts::default())?, &k.norm, k.relu, None, dtype)?;
            step(norm.scratch_bytes(), move |o| {
                let maps = [&*o.take(0), o.take(5)];
                let parameters = [o.elements(1), o.elements(2), o.elements(3), o.elements(4)].map(|s| &*s);
                norm.apply(maps, parameters, o.take(6), &mut [], o.take(7));
            })
        }
        Kernel::BatchNormAddReluGradients(k) => {
            // The map, the result and what is added, if anything; then their gradient.
            let dy = of.inputs.len();
            let maps: Vec<usize> = [0, 1].into_iter().chain(4..=dy).collect();
            around.expect_same_layout(&maps)?;
            let dtype = around.one_type(&maps)?;
            let norm = batch_norm(
                &cpu,
                around.places(0, &k.norm, Parts::default())?,
                &k.norm,
                true,
                None,
                [dtype; 2],
            )?;
            typed!(dtype, E => step(norm.scratch_bytes(), move |o| {
                let part: &[E] = if dy > 4 { o.elements(4) } else { &[] };
                let maps = [&*o.elements::<E>(0), o.elements(1), part];
                let statistics = [o.elements(2), o.elements(3)].map(|s| &*s);
                let gradients = [o.elements(dy + 1), o.elements(dy + 2)];
                let (sums, tile, scratch) = (o.elements(dy + 3), o.tile(), o.take(dy + 4));
                norm.gradients_behind_sum(maps, statistics, o.elements(dy), gradients, sums, tile, scratch);
            }))
        }
        Kernel::BatchNormInference(k) => {
            let dtype = around.norm_types(&[5])?;
            let indexed = of.outputs.len() > 1;
            let norm = around.norm_before(&cpu, 5, (&k.norm, k.relu), (k.pool, k.parts), dtype)?;
            step(norm.scratch_bytes(), move |o| {
                let x = o.take(0);
                let parameters = [o.elements(1), o.elements(2), o.elements(3), o.elements(4)].map(|s| &*s);
                let y = o.take(5);
                let (index, scratch) = if indexed { (o.take(6), o.take(7)) } else { (o.take(7), o.take(6)) };
                norm.inference(x, parameters, y, index, scratch);
            })
        }
        Kernel::BatchNormInferenceBackward(k) => {
            let result = if k.pool.is_some() { 7 } else { 6 };
            let dtype = around.norm_types(&[1, result])?;
            let norm = around.norm_before(&cpu, 1, (&k.norm, k.relu), (k.pool, k.parts), dtype)?;
            step(norm.scratch_bytes(), move |o| {
                let (x, dy) = (o.take(0), o.take(1));
                let parameters = [o.elements(2), o.elements(3), o.elements(4), o.elements(5)].map(|s| &*s);
                let index = index_at(6, k.pool, o);
                norm.inference_backward(x, dy, parameters, index, o.take(result), o.take(result + 1));
            })
        }
        Kernel::BatchNormGradients(k) => {
            let first = if k.pool.is_some() { 7 } else { 6 };
            let dtype = around.norm_types(&[1])?;
            let norm = around.norm_before(&cpu, 1, (&k.norm, k.relu), (k.pool, k.parts), dtype)?;
            step(norm.scratch_bytes(), move |o| {
                let (x, dy) = (o.take(0), o.take(1));
                let parameters = [o.elements(2), o.elements(3), o.elements(4), o.elements(5)].map(|s| &*s);
                let index = index_at(6, k.pool, o);
                let (gradients, sums) = ([o.elements(first), o.elements(first + 1)], o.elements(first + 2));
                norm.gradients(x, dy, parameters, index, gradients, sums, o.tile(), o.take(first + 3));
            })
        }
        Kernel::BatchNormBackwardData(k) => {
            let result = if k.pool.is_some() { 9 } else { 8 };
            let dtype = around.norm_types(&[1, result])?;
            let norm = around.norm_before(&cpu, 1, (&k.norm, k.relu), (k.pool, k.parts), dtype)?;
            step(norm.scratch_bytes(), move |o| {
                let (x, dy) = (o.take(0), o.take(1));
                let parameters = [o.elements(2), o.elements(3), o.elements(4), o.elements(5)].map(|s| &*s);
                let gradients = [o.elements(6), o.elements(7)].map(|s| &*s);
                let index = index_at(8, k.pool, o);
                let (dx, tile) = (o.take(result), o.tile());
                norm.backward_data(x, dy, parameters, gradients, index, dx, tile, o.take(result + 1));
            })
        }
        Kernel::ReluForward(k) => {
            around.expect_same_layout(&[0, 1])?;
            match (around.dtype(0), around.dtype(1)) {
                // Behind a linear layer, whose results have the master precision.
                (Some(DType::F32), Some(DType::Bf16)) => {
                    step(0, move |o| cpu.relu::<f32, Bf16>(k.ceiling, o.elements(0), o.elements(1)))
                }
                _ => typed!(around.one_type(&[0, 1])?, E => {
                    step(0, move |o| cpu.relu::<E, E>(k.ceiling, o.elements(0), o.elements(1)))
                }),
            }
        }
        Kernel::ReluBackward(k) => {
            around.expect_same_layout(&[0, 1, 2])?;
            typed!(around.one_type(&[0, 1, 2])?, E => {
                step(0, move |o| cpu.relu_backward::<E>(k.ceiling, o.elements(0), o.elements(1), o.elements(2)))
            })
        }
        Kernel::NormalisePixels(k) => {
            around.expect_same_layout(&[0, 1])?;
            let lines = around.lines(k.lines)?;
            typed!(around.one_type(&[1])?, E => {
                step(0, move |o| cpu.normalise_pixels::<E>(lines, o.take(0), o.elements(1)))
            })
        }
        Kernel::Scale(k) => {
            around.expect_same_layout(&[0, 1])?;
            typed!(around.one_type(&[0, 1])?, E => {
                step(0, move |o| cpu.scale::<E>(k.factor, o.elements(0), o.elements(1)))
            })
        }
        Kernel::GeluForward(_) => {
            around.expect_same_layout(&[0, 1])?;
            match (around.dtype(0), around.dtype(1)) {
                // Behind a linear layer, whose results have the master precision.
                (Some(DType::F32), Some(DType::Bf16)) => {
                    step(0, move |o| cpu.gelu::<f32, Bf16>(o.elements(0), o.elements(1)))
                }
                _ => typed!(around.one_type(&[0, 1])?, E => {
                    step(0, move |o| cpu.gelu::<E, E>(o.elements(0), o.elements(1)))
                }),
            }
        }
        Kernel::GeluBackward(_) => {
            around.expect_same_layout(&[0, 1, 2])?;
            match (around.dtype(0), around.one_type(&[1, 2])?) {
                (Some(DType::F32), DType::Bf16) => step(0, move |o| {
                    cpu.gelu_backward::<f32, Bf16>(o.elements(0), o.elements(1), o.elements(2));
                }),
                _ => typed!(around.one_type(&[0, 1, 2])?, E => {
                    step(0, move |o| cpu.gelu_backward::<E, E>(o.elements(0), o.elements(1), o.elements(2)))
                }),
            }
        }
        Kernel::AddTiles(_) => {
            around.expect_same_layout(&[0, 1])?;
            typed!(around.one_type(&[0, 1])?, E => {
                step(0, move |o| cpu.add_tile::<E>(o.tile().is_first_of_all(), o.elements(0), o.elements(1)))
            })
        }
        Kernel::Accumulate(_) => {
            around.expect_same_layout(&[0, 1])?;
            typed!(around.one_type(&[0, 1])?, E => {
                step(0, move |o| cpu.accumulate::<E>(o.elements(0), o.elements(1)))
            })
        }
        Kernel::MaxPoolForward(k) => {
            let pool = max_pool(&cpu, &k.pool, around.geometry(0)?, around.geometry(1)?).cutting(k.cut);
            typed!(around.one_type(&[0, 1])?, E => {
                step(0, move |o| pool.forward::<E>(o.elements(0), o.elements(1), o.take(2)))
            })
        }
        Kernel::MaxPoolBackward(k) => {
            let pool = max_pool(&cpu, &k.pool, around.geometry(2)?, around.geometry(0)?);
            typed!(around.one_type(&[0, 2])?, E => {
                step(0, move |o| pool.backward::<E>(o.elements(0), o.take(1), o.elements(2)))
            })
        }
        Kernel::AvgPoolForward(k) => {
            let pool = avg_pool(&cpu, &k.averages, around.geometry(0)?, around.geometry(1)?);
            typed!(around.one_type(&[0, 1])?, E => {
                step(0, move |o| pool.forward::<E>(o.elements(0), o.elements(1)))
            })
        }
        Kernel::AvgPoolBackward(k) => {
            let pool = avg_pool(&cpu, &k.averages, around.geometry(1)?, around.geometry(0)?);
            typed!(around.one_type(&[0, 1])?, E => {
                step(0, move |o| pool.backward::<E>(o.elements(0), o.elements(1)))
            })
        }
        Kernel::LrnForward(k) => {
            let norm = Lrn::new(&k.norm, around.geometry(0)?, cpu.level, cpu.team.clone());
            typed!(around.one_type(&[0, 1])?, E => {
                step(norm.scratch_bytes(), move |o| {
                    norm.forward::<E>(o.elements(0), o.elements(1), o.elements(2));
                })
            })
        }
        Kernel::LrnBackward(k) => {
            let norm = Lrn::new(&k.norm, around.geometry(0)?, cpu.level, cpu.team.clone());
            typed!(around.one_type(&[0, 1, 2])?, E => {
                step(norm.scratch_bytes(), move |o| {
                    norm.backward::<E>(o.elements(0), o.elements(1), o.elements(2), o.elements(3));
                })
            })
        }
        Kernel::SoftmaxCrossEntropy(k) => {
            let classes = around.values.first().and_then(|v| v.shape.get(1).copied()).unwrap_or(1);
            if around.dtype(0) != Some(DType::F32) {
                return Err("its logits are not f32".to_owned());
            }
            let team = cpu.team.clone();
            typed!(around.dtype(3).unwrap_or(DType::F32), E => fallible(move |o| {
                let (logits, labels, metrics) = (o.elements(0), o.elements(1), o.elements(2));
                let SoftmaxCrossEntropy { auxiliary, smoothing, mixed, scaled: _ } = k;
                let loss = Loss { classes, auxiliary, smoothing, mixed, tile: o.tile() };
                softmax_cross_entropy::<E>(&team, logits, labels, loss, metrics, o.elements(3))
            }))
        }
        Kernel::SgdUpdate(sgd) => {
            around.expect_same_layout(&[0, 2, 3, 4])?;
            if around.one_type(&[0, 2, 3])? != DType::F32 || around.dtype(4).is_some_and(|t| t != DType::Bf16)
            {
                return Err("it has a kernel for f32 with a copy in bf16 alone".to_owned());
            }
            step(0, move |o| {
                let rates = Rates::of(sgd, o.elements(1));
                cpu.sgd(rates, o.elements(0), o.elements(2), o.elements(3), o.elements(4));
            })
        }
        Kernel::AdaptiveUpdate(update) => {
            let states = update.rule.states().len();
            let (first, copy) = (3, 3 + states);
            let masters: Vec<usize> = [0, 2].into_iter().chain(first..copy).collect();
            around.expect_same_layout(&[masters.as_slice(), &[copy]].concat())?;
            if around.one_type(&masters)? != DType::F32
                || around.dtype(copy).is_some_and(|dtype| dtype != DType::Bf16)
            {
                return Err("it has a kernel for f32 with a copy in bf16 alone".to_owned());
            }
            step(0, move |o| {
                let second = if states > 1 { o.elements(first + 1) } else { &mut [] };
                let states = [o.elements(first), second];
                let (hyper, gradient, parameter) = (o.elements(1), o.elements(0), o.elements(2));
                cpu.adaptive(update, hyper, gradient, parameter, states, o.elements(copy));
            })
        }
        Kernel::Convert(_) => {
            around.expect_same_layout(&[0, 1])?;
            match (around.dtype(0), around.dtype(1)) {
                (Some(DType::F32), Some(DType::Bf16)) => {
                    step(0, move |o| cpu.convert::<f32, Bf16>(o.elements(0), o.elements(1)))
                }
                (Some(DType::Bf16), Some(DType::F32)) => {
                    step(0, move |o| cpu.convert::<Bf16, f32>(o.elements(0), o.elements(1)))
                }
                _ => typed!(around.one_type(&[0, 1])?, E => {
                    step(0, move |o| cpu.convert::<E, E>(o.elements(0), o.elements(1)))
                }),
            }
        }
        Kernel::AddForward(k) => {
            let result = around.values.len() - 1;
            let both = result > 1;
            around.expect_same_layout(&(0..=result).collect::<Vec<_>>())?;
            let from = around.one_type(&(0..result).collect::<Vec<_>>())?;
            match (from, around.dtype(result)) {
                // Behind linear layers, whose results have the master precision.
                (DType::F32, Some(DType::Bf16)) => step(0, move |o| {
                    let a = &*o.elements::<f32>(0);
                    let b = if both { &*o.elements(1) } else { a };
                    cpu.add::<f32, Bf16>(k.relu, a, b, o.elements(result));
                }),
                _ => typed!(around.one_type(&[0, result])?, E => step(0, move |o| {
                    let a = &*o.elements::<E>(0);
                    let b = if both { &*o.elements(1) } else { a };
                    cpu.add::<E, E>(k.relu, a, b, o.elements(result));
                })),
            }
        }
        Kernel::ConcatForward(_) => {
            let inputs = around.values.len() - 1;
            let mut at = 0;
            let mut pieces = Vec::new();
            for position in 0..inputs {
                let from = around.own_geometry(position)?;
                pieces.push(Piece { from, first: 0, at, channels: from.channels });
                at += from.channels;
            }
            let concat = Concat { pieces, to: around.own_geometry(inputs)?, team: cpu.team.clone() };
            typed!(around.one_type(&(0..=inputs).collect::<Vec<_>>())?, E => step(0, move |o| {
                let y = o.elements::<E>(inputs);
                let sources = std::array::from_fn(|position| &*o.elements::<E>(position));
                concat.run(&sources, y);
            }))
        }
        Kernel::ConcatBackward(k) => {
            let (from, to) = (around.own_geometry(0)?, around.own_geometry(1)?);
            let pieces = vec![Piece { from, first: k.first, at: 0, channels: to.channels }];
            let concat = Concat { pieces, to, team: cpu.team.clone() };
            typed!(around.one_type(&[0, 1])?, E => step(0, move |o| {
                let y = o.elements::<E>(1);
                let sources = std::array::from_fn(|position| &*o.elements::<E>(position));
                concat.run(&sources, y);
            }))
        }
        Kernel::Dropout(k) => {
            around.expect_same_layout(&[0, 2])?;
            let (elements, scale) = (around.values.first().map_or(0, Value::elements), k.scale() as f32);
            let row_major = around.layouts.first().is_some_and(Layout::is_row_major);
            let geometry = if row_major { None } else { Some(around.own_geometry(0)?) };
            let drop = move |o: &mut Operands<'_>| {
                let (mask, first) = (k.mask(o.elements(1)), (o.tile().in_batch() * elements) as u64);
                DropoutMask { mask, scale, first }
            };
            match (around.dtype(0), around.dtype(2)) {
                // Behind a linear layer, whose results have the master precision.
                (Some(DType::F32), Some(DType::Bf16)) => step(0, move |o| {
                    let drop = drop(o);
                    dropout::<f32, Bf16>(&cpu, &drop, geometry.as_ref(), o.elements(0), o.elements(2));
                }),
                _ => typed!(around.one_type(&[0, 2])?, E => step(0, move |o| {
                    let drop = drop(o);
                    dropout::<E, E>(&cpu, &drop, geometry.as_ref(), o.elements(0), o.elements(2));
                })),
            }
        }
        Kernel::StemStatistics(k) => {
            let stem = around.stem(&cpu, k.stem, None)?;
            typed!(around.one_type(&[0, 1])?, E => step(stem.statistics_scratch_bytes(), move |o| {
                let images = [&*o.elements::<E>(0), o.elements(1)];
                let running = [o.elements(2), o.elements(3)];
                let saved = [o.elements(4), o.elements(5)];
                stem.statistics(images, running, saved, o.elements(6), o.tile(), o.take(7));
            }))
        }
        Kernel::StemApply(k) => {
            let stem = around.stem(&cpu, k.stem, Some(6))?;
            typed!(around.one_type(&[0, 1, 6])?, E => step(stem.apply_scratch_bytes(), move |o| {
                let images = [&*o.elements::<E>(0), o.elements(1)];
                let parameters = [o.elements(2), o.elements(3), o.elements(4)].map(|s| &*s);
                stem.apply(images, parameters, o.elements(5), o.elements(6), o.take(7), o.elements(8));
            }))
        }
        Kernel::StemInference(k) => {
            let stem = around.stem(&cpu, k.stem, Some(6))?;
            typed!(around.one_type(&[0, 1, 6])?, E => step(stem.apply_scratch_bytes(), move |o| {
                let images = [&*o.elements::<E>(0), o.elements(1)];
                let parameters = [o.elements(2), o.elements(3), o.elements(4)].map(|s| &*s);
                stem.inference(images, parameters, o.elements(5), o.elements(6), o.elements(7));
            }))
        }
        Kernel::StemGradients(k) => {
            let stem = around.stem(&cpu, k.stem, Some(2))?;
            typed!(around.one_type(&[0, 1, 2])?, E => step(stem.gradients_scratch_bytes(), move |o| {
                let maps = [&*o.elements::<E>(0), o.elements(1), o.elements(2)];
                let parameters = [o.elements(3), o.elements(4), o.elements(5)].map(|s| &*s);
                let (correlation, index, tile) = (o.elements(6), o.take(7), o.tile());
                let (dweight, dnorm) = (o.elements(8), [o.elements(9), o.elements(10)]);
                stem.gradients(
                    maps, parameters, correlation, index, dweight, dnorm, o.elements(11), tile, o.take(12),
                );
            }))
        }
        Kernel::JoinWeights(_) => {
            // Row-major, as the preparation sees to: one behind the other is how they lie.
            let weights = of.inputs.len();
            typed!(around.one_type(&(0..=weights).collect::<Vec<_>>())?, E => step(0, move |o| {
                let joined = o.elements::<E>(weights);
                let mut first = 0;
                for position in 0..weights {
                    let weight = o.elements::<E>(position);
                    cpu.copy(weight, &mut joined[first..first + weight.len()]);
                    first += weight.len();
                }
            }))
        }
        Kernel::SplitGradient(k) => {
            let own = &around.values[1];
            let first = own.elements() / own.shape[0].max(1) * k.first;
            typed!(around.one_type(&[0, 1])?, E => step(0, move |o| {
                let (joined, own) = (o.elements::<E>(0), o.elements::<E>(1));
                cpu.copy(&joined[first..first + own.len()], own);
            }))
        }
        Kernel::Conv2dForward(_)
        | Kernel::Conv2dBackwardData(_)
        | Kernel::Conv2dBackwardWeights(_)
        | Kernel::LinearForward(_)
        | Kernel::LinearBackwardData(_)
        | Kernel::LinearBackwardWeights(_)
        | Kernel::LinearUpdate(_)
        | Kernel::Reorder(_) => return Err("it runs on oneDNN".to_owned()),
        Kernel::AdjustLossScale(_) | Kernel::FindOverflow(_) => {
            return Err("only losses of f16 are scaled, which is for GPUs".to_owned());
        }
    };
    Ok(PreparedStep { implementation, ..prepared })
}

/// The operand that is a pooling's winners; empty where there is no pooling.
fn index_at<'a>(position: usize, pool: Option<FusedPool>, operands: &mut Operands<'a>) -> &'a mut [u8] {
    if pool.is_some() { operands.take(position) } else { <&mut [u8]>::default() }
}

fn avg_pool(cpu: &CpuContext, averages: &Averages, input: Geometry, output: Geometry) -> AvgPool {
    AvgPool::new(averages, input, output, cpu.level, cpu.team.clone())
}
