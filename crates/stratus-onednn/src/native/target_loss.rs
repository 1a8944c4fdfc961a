//! Losses of several targets per sample, with metrics and gradient.
//!
//! ```text
//! labels     loss = y · p w softplus(-z) + (1 - y) · w softplus(z)    dz = (1 - y) · w σ(z) - y · p w σ(-z)
//! numbers    loss = w f(z - y)                                        dz = w f'(z - y)
//! ```
//!
//! `w` is the weight of a target, `p` that of a positive label. Outputs are processed in blocks of [`BLOCK`],
//! whatever the targets of a sample, so that each step is a loop without branches. Threads divide samples.

use super::elementwise::CpuContext;
use super::label_counts::divisor;
use super::pixel_loss::exp;
use super::simd::{Element, multiversion};
use super::threads::{MAX_THREADS, split, split_lengths};
use stratus_engine::backend::Tile;
use stratus_engine::ops::TargetFunction;

/// The number of outputs of a block.
pub(super) const BLOCK: usize = 64;

/// The number of partial sums of a thread: as many as fit a vector of f64.
const LANES: usize = 8;

/// Below this number of outputs, waking the team costs more than it saves.
const MIN_PARALLEL_OUTPUTS: usize = 1 << 12;

/// One number per output of a block.
pub(super) type Block = [f32; BLOCK];

/// A loss of several targets per sample.
#[derive(Clone, Copy, Debug)]
pub struct Loss<'a> {
    /// The function of an output and its target.
    pub function: TargetFunction,
    /// The number of targets of a sample.
    pub targets: usize,
    /// The factor of the loss and its gradient.
    pub factor: f32,
    /// True if the loss is added to that of the metrics, which are those of the main loss.
    pub is_auxiliary: bool,
    /// Label smoothing.
    pub smoothing: f32,
    /// The weight of each target, then of its positive labels, if there are weights.
    pub weights: Option<&'a [f32]>,
    /// The present targets of the whole batch by column, if the samples are a part of it.
    pub label_counts: Option<&'a [f64]>,
    /// The tile or micro-batch.
    pub tile: Tile,
}

/// The targets of a thread.
#[derive(Clone, Copy, Default)]
struct Counts {
    present: u64,
    /// Samples with a present target.
    samples: u64,
    /// The first label that is not in [0, 1].
    first_invalid: Option<usize>,
}

/// Sums in lanes.
#[derive(Clone, Copy, Default)]
pub(super) struct LaneSum([f64; LANES]);

impl LaneSum {
    /// Adds the numbers of a block.
    #[inline(always)]
    pub(super) fn add<T: Copy + Into<f64>>(&mut self, block: &[T; BLOCK]) {
        for numbers in block.chunks_exact(LANES) {
            for (sum, &number) in self.0.iter_mut().zip(numbers) {
                *sum += number.into();
            }
        }
    }

    pub(super) fn total(&self) -> f64 {
        self.0.iter().sum()
    }
}

/// A thread's sums.
#[derive(Clone, Copy, Default)]
struct Sums {
    loss: LaneSum,
    score: LaneSum,
}

/// The values shared by all blocks.
struct BlockContext<'a> {
    loss: Loss<'a>,
    outputs: &'a [f32],
    targets: &'a [f32],
    /// The factor of the gradient of an output's loss.
    factor: f32,
}

/// See [`stratus_engine::ops::TargetLoss`]; `gradient` may be empty. An auxiliary loss is added to that of
/// `metrics`.
///
/// # Errors
/// If a label is out of range; names the sample.
pub fn target_loss<E: Element>(
    cpu: &CpuContext,
    outputs: &[f32],
    targets: &[f32],
    loss: Loss<'_>,
    metrics: &mut [f64],
    gradient: &mut [E],
) -> Result<(), String> {
    let (columns, threads) = (loss.targets.max(1), cpu.team.threads());
    let batch = targets.len() / columns;
    let is_small = targets.len() < MIN_PARALLEL_OUTPUTS;
    let elements = |thread: usize| {
        let samples = split(batch, threads, thread);
        samples.start * columns..samples.end * columns
    };
    let mut parts = [Counts::default(); MAX_THREADS];
    let task = |thread: usize, counts: &mut Counts| *counts = count(targets, elements(thread), loss);
    match is_small {
        true => cpu.team.run_serially(&mut parts[..threads], &task),
        false => cpu.team.run_parts(&mut parts[..threads], &task),
    }
    let counts = parts[..threads].iter().fold(Counts::default(), |sum, part| Counts {
        present: sum.present + part.present,
        samples: sum.samples + part.samples,
        first_invalid: sum.first_invalid.or(part.first_invalid),
    });
    if let Some(invalid) = counts.first_invalid {
        let (sample, label, value) = (invalid / columns, invalid % columns, targets[invalid]);
        return Err(format!("sample {sample}: label {label} is {value}, which is not in [0, 1]"));
    }
    let divisor = loss.label_counts.map_or(counts.present as f64, |counts| divisor(counts, None));
    let factor = if divisor == 0.0 { 0.0 } else { f64::from(loss.factor) / divisor };
    let context = BlockContext { loss, outputs, targets, factor: factor as f32 };
    let wanted = !gradient.is_empty();
    let mut gradients =
        split_lengths(gradient, (0..threads).map(|t| if wanted { elements(t).len() } else { 0 }));
    let mut parts: [(Sums, &mut [E]); MAX_THREADS] =
        std::array::from_fn(|t| (Sums::default(), std::mem::take(&mut gradients[t])));
    let task = |thread: usize, (sums, gradient): &mut (Sums, &mut [E])| {
        let mut blocks = gradient.chunks_mut(BLOCK);
        let range = elements(thread);
        for start in range.clone().step_by(BLOCK) {
            let block = start..(start + BLOCK).min(range.end);
            let gradient = blocks.next().unwrap_or_default();
            one_block(cpu.level, &context, [block.start, block.len()], gradient, sums);
        }
    };
    match is_small {
        true => cpu.team.run_serially(&mut parts[..threads], &task),
        false => cpu.team.run_parts(&mut parts[..threads], &task),
    }
    let sum_of = |sum: fn(&Sums) -> LaneSum| -> f64 {
        parts[..threads].iter().map(|(sums, _)| sum(sums).total()).sum()
    };
    let mean = if divisor == 0.0 { 0.0 } else { factor * sum_of(|sums| sums.loss) };
    match (loss.is_auxiliary, &mut *metrics) {
        (true, [loss, ..]) => *loss += mean,
        _ => {
            if loss.tile.starts_sums() {
                metrics.fill(0.0);
            }
            let numbers = [mean, counts.present as f64, sum_of(|sums| sums.score), counts.samples as f64];
            metrics.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        }
    }
    Ok(())
}

/// Counts the targets of a range of whole samples, and checks labels.
fn count(targets: &[f32], range: std::ops::Range<usize>, loss: Loss<'_>) -> Counts {
    let mut counts = Counts::default();
    for (sample, row) in targets[range.clone()].chunks_exact(loss.targets.max(1)).enumerate() {
        let present = row.iter().filter(|target| !target.is_nan()).count() as u64;
        counts.present += present;
        counts.samples += u64::from(present > 0);
        let is_invalid = |target: &f32| *target < 0.0 || *target > 1.0;
        if loss.function.uses_labels() && counts.first_invalid.is_none() {
            let invalid = row.iter().position(is_invalid);
            counts.first_invalid = invalid.map(|label| range.start + sample * row.len() + label);
        }
    }
    counts
}

multiversion! {
    fn one_block / one_block_body [E: Element] [E] (
        context: &BlockContext<'_>,
        elements: [usize; 2],
        gradient: &mut [E],
        sums: &mut Sums,
    )
}

/// `elements` holds the first output and the number of outputs.
#[inline(always)]
fn one_block_body<E: Element>(
    context: &BlockContext<'_>,
    [start, count]: [usize; 2],
    gradient: &mut [E],
    sums: &mut Sums,
) {
    let Loss { function, targets: columns, smoothing, weights, .. } = context.loss;
    // Outputs past the last one have no target.
    let (mut outputs, mut targets): (Block, Block) = ([0.0; BLOCK], [f32::NAN; BLOCK]);
    outputs[..count].copy_from_slice(&context.outputs[start..start + count]);
    targets[..count].copy_from_slice(&context.targets[start..start + count]);
    // Of each target, and of a positive label.
    let mut weight: [Block; 2] = [[1.0; BLOCK]; 2];
    if let Some(weights) = weights {
        let (of_target, of_positive) = weights.split_at(columns);
        let mut column = start % columns;
        let [own, positive] = &mut weight;
        for (own, positive) in own.iter_mut().zip(positive).take(count) {
            (*own, *positive) = (of_target[column], of_positive[column]);
            column = if column + 1 == columns { 0 } else { column + 1 };
        }
    }
    // One loop per function, so that the match is outside it.
    let (losses, slopes, scores) = match function {
        TargetFunction::BinaryCrossEntropy => evaluate(&outputs, &targets, &weight, |z, y, [w, p]| {
            binary_cross_entropy(z, y, [w, p], smoothing)
        }),
        TargetFunction::SquaredError => evaluate(&outputs, &targets, &weight, |z, y, [w, _]| {
            let difference = z - y;
            (weighted([difference * difference, 2.0 * difference], w), score(z, y))
        }),
        TargetFunction::Huber => {
            evaluate(&outputs, &targets, &weight, |z, y, [w, _]| (weighted(huber(z - y), w), score(z, y)))
        }
    };
    sums.loss.add(&losses);
    sums.score.add(&scores);
    // The factor is 0 if the whole batch has no targets.
    let factor = context.factor;
    for (to, slope) in gradient.iter_mut().zip(slopes) {
        *to = E::store(if factor == 0.0 { 0.0 } else { factor * slope });
    }
}

/// Loss, slope and score of each output; 0 where the target is missing.
#[inline(always)]
fn evaluate(
    outputs: &Block,
    targets: &Block,
    weights: &[Block; 2],
    function: impl Fn(f32, f32, [f32; 2]) -> ([f32; 2], f64),
) -> (Block, Block, [f64; BLOCK]) {
    let (mut losses, mut slopes, mut scores) = ([0.0; BLOCK], [0.0; BLOCK], [0.0; BLOCK]);
    for output in 0..BLOCK {
        let target = targets[output];
        let ([loss, slope], score) =
            function(outputs[output], target, [weights[0][output], weights[1][output]]);
        let is_missing = target.is_nan();
        losses[output] = if is_missing { 0.0 } else { loss };
        slopes[output] = if is_missing { 0.0 } else { slope };
        scores[output] = if is_missing { 0.0 } else { score };
    }
    (losses, slopes, scores)
}

/// Loss and slope of a logit, and its score.
#[inline(always)]
fn binary_cross_entropy(z: f32, y: f32, [w, p]: [f32; 2], smoothing: f32) -> ([f32; 2], f64) {
    let target = (1.0 - smoothing) * y + 0.5 * smoothing;
    let (yes, no) = (w * p * target, w * (1.0 - target));
    let Logistic { softplus, probability } = Logistic::of(z);
    // 0 · ∞ counts as 0.
    let term = |share: f32, value: f32| if share == 0.0 { 0.0 } else { share * value };
    let is_correct = ((z > 0.0) == (y > 0.5)) & !z.is_nan();
    let loss = term(yes, softplus[1]) + term(no, softplus[0]);
    let slope = term(no, probability[0]) - term(yes, probability[1]);
    ([loss, slope], if is_correct { 1.0 } else { 0.0 })
}

/// Loss and slope of a difference by the Huber loss.
#[inline(always)]
fn huber(difference: f32) -> [f32; 2] {
    let size = difference.abs();
    let is_near = size < 1.0;
    let far = if difference.is_nan() { difference } else { 1.0_f32.copysign(difference) };
    [if is_near { 0.5 * difference * difference } else { size - 0.5 }, if is_near { difference } else { far }]
}

/// Loss and slope times a weight; 0 · ∞ counts as 0.
#[inline(always)]
fn weighted(terms: [f32; 2], w: f32) -> [f32; 2] {
    terms.map(|term| if w == 0.0 { 0.0 } else { w * term })
}

/// The score of a number. Sums of scores may cancel, so it is computed in double precision.
#[inline(always)]
fn score(z: f32, y: f32) -> f64 {
    let difference = f64::from(z) - f64::from(y);
    1.0 - difference * difference
}

/// The functions of a logit `z`, each of `z` and of `-z`. NaN is propagated.
pub(super) struct Logistic {
    /// `ln(1 + exp(z))`.
    pub(super) softplus: [f32; 2],
    /// `1 / (1 + exp(-z))`.
    pub(super) probability: [f32; 2],
}

impl Logistic {
    #[inline(always)]
    pub(super) fn of(z: f32) -> Self {
        let e = exp(-z.abs());
        let tail = ln_1p(e);
        let (large, small) = (1.0 / (1.0 + e), e / (1.0 + e));
        let is_negative = z < 0.0;
        let [above, below] = [if is_negative { 0.0 } else { z }, if is_negative { -z } else { 0.0 }];
        Self {
            softplus: [above + tail, below + tail],
            probability: if is_negative { [small, large] } else { [large, small] },
        }
    }
}

/// `ln(1 + x)` for `0 <= x <= 1`, relative error below 3e-7; NaN is propagated.
///
/// With `t = x / (2 + x)`, at most a third: `ln(1 + x) = 2 (t + t³/3 + t⁵/5 + …)`, whose eighth term is
/// 1.4e-8 of the first at most.
#[inline(always)]
fn ln_1p(x: f32) -> f32 {
    let t = x / (2.0 + x);
    let square = t * t;
    let mut series = 1.0 / 13.0;
    for coefficient in [1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0] {
        series = square.mul_add(series, coefficient);
    }
    2.0 * t * series
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::simd::IsaLevel;
    use crate::native::threads::ThreadTeam;

    const LABELS: Loss<'static> = Loss {
        function: TargetFunction::BinaryCrossEntropy,
        targets: 3,
        factor: 1.0,
        is_auxiliary: false,
        smoothing: 0.0,
        weights: None,
        label_counts: None,
        tile: Tile::WHOLE,
    };

    fn run(outputs: &[f32], targets: &[f32], loss: Loss<'_>) -> Result<([f64; 4], Vec<f32>), String> {
        let cpu = CpuContext { team: ThreadTeam::emulating(2), level: IsaLevel::detect([true, true]) };
        let (mut metrics, mut gradient) = ([f64::NAN; 4], vec![f32::NAN; outputs.len()]);
        target_loss(&cpu, outputs, targets, loss, &mut metrics, &mut gradient)?;
        Ok((metrics, gradient))
    }

    #[test]
    fn a_label_out_of_range_is_an_error_that_names_the_sample() {
        let error =
            |wrong: f32| run(&[0.0; 9], &[0.0, 1.0, f32::NAN, 0.5, 0.5, wrong, 2.0, 0.0, 0.0], LABELS);
        assert_eq!(error(1.5).unwrap_err(), "sample 1: label 2 is 1.5, which is not in [0, 1]");
        assert_eq!(error(-0.25).unwrap_err(), "sample 1: label 2 is -0.25, which is not in [0, 1]");
        assert_eq!(error(f32::INFINITY).unwrap_err(), "sample 1: label 2 is inf, which is not in [0, 1]");
        assert_eq!(error(1.0).unwrap_err(), "sample 2: label 0 is 2, which is not in [0, 1]");
        let numbers = Loss { function: TargetFunction::Huber, ..LABELS };
        assert!(run(&[0.0; 3], &[-7.0, 9.0, 0.0], numbers).is_ok());
    }

    #[test]
    fn missing_targets_change_nothing() {
        let missing = f32::NAN;
        for function in
            [TargetFunction::BinaryCrossEntropy, TargetFunction::SquaredError, TargetFunction::Huber]
        {
            let loss = Loss { function, ..LABELS };
            let (metrics, gradient) = run(
                &[3.0, f32::NAN, f32::INFINITY, 9.0, 9.0, f32::NAN],
                &[1.0, missing, missing, missing, missing, missing],
                loss,
            )
            .unwrap();
            let (alone, slope) = run(&[3.0], &[1.0], Loss { targets: 1, ..loss }).unwrap();
            assert_eq!(metrics, alone, "{function:?}");
            assert_eq!([metrics[1], metrics[3]], [1.0, 1.0]);
            assert_eq!((gradient[0], &gradient[1..]), (slope[0], &[0.0; 5][..]));
            assert_eq!(run(&[f32::NAN; 6], &[missing; 6], loss).unwrap(), ([0.0; 4], vec![0.0; 6]));
        }
    }

    #[test]
    fn nan_is_never_correct_and_propagates_to_the_loss() {
        let (metrics, gradient) = run(&[f32::NAN, f32::NAN, 2.0], &[0.0, 1.0, 1.0], LABELS).unwrap();
        assert!(metrics[0].is_nan() && gradient[0].is_nan() && gradient[1].is_nan());
        assert_eq!(metrics[1..], [3.0, 1.0, 1.0]);
        assert!(gradient[2].is_finite());
    }

    #[test]
    fn a_factor_of_zero_has_no_effect_even_with_an_infinite_logit() {
        let infinite = [f32::INFINITY, f32::NEG_INFINITY, 0.0];
        let (metrics, gradient) = run(&infinite, &[1.0, 0.0, 1.0], LABELS).unwrap();
        assert!((metrics[0] - 2.0_f64.ln() / 3.0).abs() < 1e-7, "{metrics:?}");
        assert_eq!(gradient[..2], [0.0; 2]);
        let weights = [0.0, 0.0, 1.0, 1.0, 1.0, 3.0];
        let (metrics, gradient) =
            run(&infinite, &[0.0, 1.0, 1.0], Loss { weights: Some(&weights), ..LABELS }).unwrap();
        assert!((metrics[0] - 2.0_f64.ln()).abs() < 1e-7, "{metrics:?}");
        assert_eq!(gradient, [0.0, 0.0, -0.5]);
    }

    #[test]
    fn logistic_functions_are_those_of_double_precision() {
        for step in -20_000..=20_000 {
            let z = step as f32 * 0.005;
            let Logistic { softplus, probability } = Logistic::of(z);
            for (side, sign) in [1.0, -1.0].into_iter().enumerate() {
                let z = f64::from(z) * sign;
                let expected = z.max(0.0) + (-z.abs()).exp().ln_1p();
                let close =
                    |got: f32, expected: f64| (f64::from(got) - expected).abs() <= 6e-7 * expected + 1e-37;
                assert!(close(softplus[side], expected), "softplus({z}) = {}", softplus[side]);
                assert!(close(probability[side], 1.0 / (1.0 + (-z).exp())), "σ({z}) = {}", probability[side]);
            }
        }
        let Logistic { softplus, probability } = Logistic::of(f32::NEG_INFINITY);
        assert_eq!((softplus, probability), ([0.0, f32::INFINITY], [0.0, 1.0]));
        let Logistic { softplus, probability } = Logistic::of(f32::NAN);
        assert!(softplus.iter().chain(&probability).all(|value| value.is_nan()));
    }
}
