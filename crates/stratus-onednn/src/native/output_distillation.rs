//! The loss by the outputs of a teacher that are compared one by one, added to the metrics and the gradient
//! of the main loss.
//!
//! ```text
//! logits     p = σ(t / T)      q = σ(z / T)
//!            loss = T² (p log(p / q) + (1 - p) log((1 - p) / (1 - q)))          dz += factor · T (q - p)
//! numbers    loss = (z - t)²                                                    dz += factor · 2 (z - t)
//! ```
//!
//! Outputs are processed in blocks of [`BLOCK`]; threads divide outputs.

use super::elementwise::CpuContext;
use super::label_counts::divisor;
use super::simd::{Element, multiversion};
use super::target_loss::{BLOCK, Block, LaneSum, Logistic};
use super::threads::{MAX_THREADS, split, split_lengths};

/// A distillation loss of single outputs.
#[derive(Clone, Copy, Debug)]
pub struct OutputDistillation {
    /// True for logits, false for numbers.
    pub are_logits: bool,
    /// The weight of the loss.
    pub weight: f32,
    /// The temperature of both logistic functions.
    pub temperature: f32,
    /// The distance between neighbouring outputs, those of the teacher, and their slopes: more than 1 for
    /// maps in blocks of channels.
    pub strides: [usize; 3],
}

/// The labels that decide which outputs count.
#[derive(Clone, Copy, Debug)]
pub enum Labels<'a> {
    /// A target for each output; NaN is missing.
    Targets(&'a [f32]),
    /// A class for each output; negative ones are ignored.
    Classes(&'a [i32]),
}

impl Labels<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Targets(targets) => targets.len(),
            Self::Classes(classes) => classes.len(),
        }
    }

    fn counted(&self) -> usize {
        match self {
            Self::Targets(targets) => targets.iter().filter(|target| !target.is_nan()).count(),
            Self::Classes(classes) => classes.iter().filter(|&&class| class >= 0).count(),
        }
    }

    /// 1 for each output of a block that counts, 0 for all others and past the last one.
    #[inline(always)]
    fn mask(&self, [start, count]: [usize; 2]) -> Block {
        let mut mask = [0.0; BLOCK];
        match self {
            Self::Targets(targets) => {
                for (mask, target) in mask.iter_mut().zip(&targets[start..start + count]) {
                    *mask = if target.is_nan() { 0.0 } else { 1.0 };
                }
            }
            Self::Classes(classes) => {
                for (mask, &class) in mask.iter_mut().zip(&classes[start..start + count]) {
                    *mask = if class >= 0 { 1.0 } else { 0.0 };
                }
            }
        }
        mask
    }
}

/// The operands of the step.
pub struct OutputOperands<'a, A, E> {
    /// The outputs.
    pub outputs: &'a [A],
    /// The teacher's outputs.
    pub teacher: &'a [A],
    /// The labels.
    pub labels: Labels<'a>,
    /// The labels of the whole batch by class or target, if this is a part of it.
    pub label_counts: Option<&'a [f64]>,
    /// See [`stratus_engine::ops::METRICS_FIELDS`].
    pub metrics: &'a mut [f64],
    /// The gradient of the outputs.
    pub gradient: &'a mut [E],
}

/// The values shared by all blocks.
struct BlockContext<'a, A> {
    loss: OutputDistillation,
    outputs: &'a [A],
    teacher: &'a [A],
    labels: Labels<'a>,
    /// The factor of an output's slope.
    factor: f32,
}

/// See [`stratus_engine::ops::DistillationLoss`].
pub fn output_distillation<A: Element, E: Element>(
    cpu: &CpuContext,
    loss: OutputDistillation,
    operands: OutputOperands<'_, A, E>,
) {
    let OutputOperands { outputs, teacher, labels, label_counts, metrics, gradient } = operands;
    let divisor = label_counts.map_or_else(|| labels.counted() as f64, |counts| divisor(counts, None));
    if divisor == 0.0 {
        return;
    }
    let factor = f64::from(loss.weight) / divisor;
    let context = BlockContext { loss, outputs, teacher, labels, factor: factor as f32 };
    let (threads, [.., stride]) = (cpu.team.threads(), loss.strides);
    let blocks = labels.len().div_ceil(BLOCK);
    let range = |thread: usize| {
        let blocks = split(blocks, threads, thread);
        blocks.start * BLOCK..(blocks.end * BLOCK).min(labels.len())
    };
    let mut gradients = split_lengths(gradient, (0..threads).map(|thread| range(thread).len() * stride));
    let mut parts: [(LaneSum, &mut [E]); MAX_THREADS] =
        std::array::from_fn(|thread| (LaneSum::default(), std::mem::take(&mut gradients[thread])));
    cpu.team.run_parts(&mut parts[..threads], &|thread, (sum, gradient)| {
        let range = range(thread);
        for (start, gradient) in range.clone().step_by(BLOCK).zip(gradient.chunks_mut(BLOCK * stride)) {
            one_block(cpu.level, &context, [start, BLOCK.min(range.end - start)], gradient, sum);
        }
    });
    let total: f64 = parts[..threads].iter().map(|(sum, _)| sum.total()).sum();
    if let [loss, ..] = metrics {
        *loss += factor * total;
    }
}

multiversion! {
    fn one_block / one_block_body [A: Element, E: Element] [A, E] (
        context: &BlockContext<'_, A>,
        outputs: [usize; 2],
        gradient: &mut [E],
        sum: &mut LaneSum,
    )
}

/// `block` holds the first output and the number of outputs.
#[inline(always)]
fn one_block_body<A: Element, E: Element>(
    context: &BlockContext<'_, A>,
    block: [usize; 2],
    gradient: &mut [E],
    sum: &mut LaneSum,
) {
    let OutputDistillation { are_logits, temperature, strides, .. } = context.loss;
    let (outputs, teacher) =
        (load(context.outputs, strides[0], block), load(context.teacher, strides[1], block));
    let mask = context.labels.mask(block);
    let inverse = 1.0 / temperature;
    // One loop per function, so that the match is outside it.
    let [losses, slopes] = match are_logits {
        true => evaluate(&outputs, &teacher, &mask, |z, t| {
            let [loss, slope] = divergence(z * inverse, t * inverse);
            [temperature * temperature * loss, temperature * slope]
        }),
        false => evaluate(&outputs, &teacher, &mask, |z, t| [(z - t) * (z - t), 2.0 * (z - t)]),
    };
    sum.add(&losses);
    for (to, slope) in gradient.iter_mut().step_by(strides[2]).zip(&slopes[..block[1]]) {
        *to = E::store(to.load() + context.factor * slope);
    }
}

/// Loss and slope of each output; 0 where the mask is 0.
#[inline(always)]
fn evaluate(
    outputs: &Block,
    teacher: &Block,
    mask: &Block,
    function: impl Fn(f32, f32) -> [f32; 2],
) -> [Block; 2] {
    let [mut losses, mut slopes]: [Block; 2] = [[0.0; BLOCK]; 2];
    for output in 0..BLOCK {
        let [loss, slope] = function(outputs[output], teacher[output]);
        let is_counted = mask[output] != 0.0;
        losses[output] = if is_counted { loss } else { 0.0 };
        slopes[output] = if is_counted { slope } else { 0.0 };
    }
    [losses, slopes]
}

/// The divergence of two probabilities from their logits, student and teacher, and `q - p`.
#[inline(always)]
fn divergence(z: f32, t: f32) -> [f32; 2] {
    let (student, teacher) = (Logistic::of(z), Logistic::of(t));
    // `log p - log q = softplus(-z) - softplus(-t)`. 0 · ∞ counts as 0.
    let part = |side: usize| {
        let share = teacher.probability[side];
        let difference = student.softplus[1 - side] - teacher.softplus[1 - side];
        if share == 0.0 { 0.0 } else { share * difference }
    };
    // From the smaller of the two probabilities, so that small differences are exact.
    let side = usize::from(z > 0.0);
    let difference = student.probability[side] - teacher.probability[side];
    [part(0) + part(1), if side == 0 { difference } else { -difference }]
}

/// Copies a block of outputs, with zeros after the last one.
#[inline(always)]
fn load<A: Element>(outputs: &[A], stride: usize, [start, count]: [usize; 2]) -> Block {
    let mut block = [0.0; BLOCK];
    let outputs = outputs[start * stride..].iter().step_by(stride).take(count);
    for (to, output) in block.iter_mut().zip(outputs) {
        *to = output.load();
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::simd::IsaLevel;
    use crate::native::threads::ThreadTeam;

    /// A temperature of 2, a weight of 0.5, and a gradient of 1 before; every second slope is padding.
    fn run(are_logits: bool, z: &[f32], t: &[f32], labels: Labels<'_>) -> (f64, Vec<f32>) {
        let cpu = CpuContext { team: ThreadTeam::emulating(2), level: IsaLevel::detect([true, true]) };
        let loss = OutputDistillation { are_logits, weight: 0.5, temperature: 2.0, strides: [1, 1, 2] };
        let (mut metrics, mut gradient) = ([3.0, 0.0, 0.0, 0.0], vec![1.0; 2 * z.len()]);
        let operands = OutputOperands {
            outputs: z,
            teacher: t,
            labels,
            label_counts: None,
            metrics: &mut metrics,
            gradient: &mut gradient,
        };
        output_distillation(&cpu, loss, operands);
        assert!(gradient.iter().skip(1).step_by(2).all(|&padding| padding == 1.0));
        (metrics[0], gradient.into_iter().step_by(2).collect())
    }

    #[test]
    fn the_loss_and_its_gradient_are_those_of_the_formula() {
        let z: Vec<f32> = (0..150).map(|i| (i * 37 % 101) as f32 / 10.0 - 5.0).collect();
        let t: Vec<f32> = (0..150).map(|i| (i * 53 % 97) as f32 / 10.0 - 5.0).collect();
        let targets: Vec<f32> = (0..150).map(|i| if i % 3 == 0 { f32::NAN } else { 0.5 }).collect();
        let classes: Vec<i32> = (0..150).map(|i| if i % 3 == 0 { -1 } else { i % 2 }).collect();
        let sigmoid = |x: f32| 1.0 / (1.0 + (-f64::from(x) / 2.0).exp());
        for are_logits in [true, false] {
            let terms = |i: usize| {
                let (p, q) = (sigmoid(t[i]), sigmoid(z[i]));
                let divergence = p * (p / q).ln() + (1.0 - p) * ((1.0 - p) / (1.0 - q)).ln();
                let difference = f64::from(z[i] - t[i]);
                match are_logits {
                    true => (4.0 * divergence, 2.0 * (q - p)),
                    false => (difference * difference, 2.0 * difference),
                }
            };
            let expected: f64 = (0..150).filter(|i| i % 3 != 0).map(|i| 0.5 * terms(i).0 / 100.0).sum();
            for labels in [Labels::Targets(&targets), Labels::Classes(&classes)] {
                let (loss, gradient) = run(are_logits, &z, &t, labels);
                assert!((loss - 3.0 - expected).abs() < 1e-6, "{loss} {expected}");
                for (i, slope) in gradient.iter().enumerate() {
                    let expected = if i % 3 == 0 { 1.0 } else { 1.0 + 0.5 * terms(i).1 / 100.0 };
                    assert!((f64::from(*slope) - expected).abs() < 1e-6, "{slope} is not {expected}");
                }
            }
        }
    }

    #[test]
    fn missing_targets_and_equal_outputs_change_nothing() {
        let targets = [1.0, f32::NAN, 0.0];
        for are_logits in [true, false] {
            let outputs = [0.5, f32::NAN, -30.0];
            let (loss, gradient) = run(are_logits, &outputs, &[0.5, 7.0, -30.0], Labels::Targets(&targets));
            assert_eq!((loss, &gradient[..]), (3.0, &[1.0; 3][..]));
            let missing = Labels::Targets(&[f32::NAN; 3]);
            assert_eq!(run(are_logits, &[9.0; 3], &[1.0; 3], missing), (3.0, vec![1.0; 3]));
        }
    }

    #[test]
    fn an_infinite_logit_of_the_teacher_is_a_probability_of_zero_or_one() {
        let teacher = [f32::NEG_INFINITY, f32::INFINITY];
        let (loss, gradient) = run(true, &[0.0; 2], &teacher, Labels::Classes(&[0, 1]));
        assert!((loss - 3.0 - 2.0 * std::f64::consts::LN_2).abs() < 1e-6, "{loss}");
        assert!((gradient[0] - 1.25).abs() < 1e-6 && (gradient[1] - 0.75).abs() < 1e-6, "{gradient:?}");
    }
}
