//! Softmax cross-entropy, with metrics and gradient.
//!
//! ```text
//! loss = -Σ_c target_c · log softmax(z)_c                      dz = (softmax(z) - target) · weight / samples
//! target = (1 - ε) · ((1 - λ) onehot(own) + λ onehot(other)) + ε / classes
//! ```
//!
//! ε is label smoothing, λ the share of the other sample of a mixed one. With class weights `w`, `t` is `w ·
//! target`, and the gradient is `(softmax(z) · Σ t - t) · weight / divisor`. Cheap compared with the network,
//! therefore plain code, one row at a time. Threads divide samples.

use super::label_counts::divisor;
use super::simd::Element;
use super::threads::{MAX_THREADS, ThreadTeam, split, split_lengths};
use stratus_engine::backend::Tile;
use stratus_engine::ops::{FULL_SHARE, MIXED_LABEL_LEN};

/// A thread's sums.
#[derive(Clone, Copy, Default)]
struct Sums {
    loss: f64,
    top1: u64,
    top5: u64,
}

impl Sums {
    /// Updates the top-1 and top-5 counts for `label`. Lower classes win ties; NaN never outranks the label.
    fn rank(&mut self, row: &[f32], label: usize) {
        let ahead = |i: usize, logit: f32| row[label] > logit || (row[label] == logit && label < i);
        let better = row.iter().enumerate().filter(|&(i, &logit)| i != label && !ahead(i, logit)).count();
        self.top1 += u64::from(better < 1);
        self.top5 += u64::from(better < 5);
    }
}

/// Below this number of logits, waking the team costs more than it saves.
const MIN_PARALLEL_LOGITS: usize = 1 << 12;

/// A softmax cross-entropy loss.
#[derive(Clone, Copy, Debug)]
pub struct Loss<'a> {
    /// The number of classes, with one logit each.
    pub classes: usize,
    /// The factor of the loss and its gradient.
    pub factor: f32,
    /// True if the loss is added to that of the metrics, which are those of the main loss.
    pub is_auxiliary: bool,
    /// ε: the share of the target spread evenly over all classes.
    pub smoothing: f32,
    /// True if samples are mixed, with two classes.
    pub mixed: bool,
    /// The weight of each class, if there are weights.
    pub class_weights: Option<&'a [f32]>,
    /// The labels of the whole batch by class, if the samples are a part of it.
    pub label_counts: Option<&'a [f64]>,
    /// The tile or micro-batch.
    pub tile: Tile,
}

/// See [`stratus_engine::ops::SoftmaxCrossEntropy`]; `gradient` may be empty. An auxiliary loss is added
/// to that of `metrics`.
///
/// If a label is out of range, or a share; names the sample.
pub fn softmax_cross_entropy<E: Element>(
    team: &ThreadTeam,
    logits: &[f32],
    labels: &[i32],
    loss: Loss<'_>,
    metrics: &mut [f64],
    gradient: &mut [E],
) -> Result<(), String> {
    let Loss { classes, factor, is_auxiliary, smoothing, mixed, class_weights, label_counts, tile } = loss;
    let width = if mixed { MIXED_LABEL_LEN } else { 1 };
    let (threads, batch) = (team.threads(), labels.len() / width);
    labels.chunks_exact(width).enumerate().try_for_each(|(n, label)| check(n, label, classes))?;
    let counted = labels.iter().step_by(width).filter(|&&label| label >= 0).count();
    // Class weights affect the divisor only for samples with one class.
    let own_weights = class_weights.filter(|_| !mixed);
    let weights_of_labels = || match own_weights {
        Some(weights) => {
            let classes = labels.iter().filter_map(|&label| usize::try_from(label).ok());
            classes.map(|class| f64::from(weights[class])).sum()
        }
        None => counted as f64,
    };
    let divisor = label_counts.map_or_else(weights_of_labels, |counts| divisor(counts, own_weights));
    let weight = match own_weights {
        _ if divisor == 0.0 => 0.0,
        None => factor / divisor as f32,
        Some(_) => (f64::from(factor) / divisor) as f32,
    };
    let wanted = !gradient.is_empty();
    let mut gradients = split_lengths(
        gradient,
        (0..threads).map(|t| if wanted { split(batch, threads, t).len() * classes } else { 0 }),
    );
    let mut parts: [(Sums, &mut [E]); MAX_THREADS] =
        std::array::from_fn(|t| (Sums::default(), std::mem::take(&mut gradients[t])));
    let task = |thread: usize, (sums, gradient): &mut (Sums, &mut [E])| {
        let range = split(batch, threads, thread);
        let mut rows = gradient.chunks_exact_mut(classes);
        let labels = labels[range.start * width..range.end * width].chunks_exact(width);
        let logits = logits[range.start * classes..range.end * classes].chunks_exact(classes);
        for (row, label) in logits.zip(labels) {
            let (target, gradient) = (Target::from_label(label), rows.next());
            match class_weights {
                None => one_row(row, target, [weight, smoothing], sums, gradient),
                Some(class_weights) => {
                    weighted_row(row, target, class_weights, [weight, smoothing], sums, gradient);
                }
            }
        }
    };
    if logits.len() < MIN_PARALLEL_LOGITS {
        team.run_serially(&mut parts[..threads], &task);
    } else {
        team.run_parts(&mut parts[..threads], &task);
    }
    let mut total = Sums::default();
    for (sums, _) in &parts[..threads] {
        total.loss += sums.loss;
        total.top1 += sums.top1;
        total.top5 += sums.top5;
    }
    let mean = if divisor == 0.0 { 0.0 } else { total.loss / divisor };
    let scaled = f64::from(factor) * mean;
    match (is_auxiliary, &mut *metrics) {
        (true, [loss, ..]) => *loss += scaled,
        _ => {
            if tile.starts_sums() {
                metrics.fill(0.0);
            }
            let counts = [scaled, counted as f64, total.top1 as f64, total.top5 as f64];
            metrics.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }
    Ok(())
}

/// Checks the label of sample `n`. If it is ignored, its other class may be anything.
fn check(n: usize, label: &[i32], classes: usize) -> Result<(), String> {
    let is_class = |label: i32| usize::try_from(label).is_ok_and(|label| label < classes);
    let wrong = |label| Err(format!("sample {n}: label {label} is out of range for {classes} classes"));
    match *label {
        [own, ..] if own < 0 => Ok(()),
        [own, ..] if !is_class(own) => wrong(own),
        [_, other, _] if !is_class(other) => wrong(other),
        [_, _, share] if !(0..=FULL_SHARE).contains(&share) => Err(format!(
            "sample {n}: mixing share {} is not in [0, 1]",
            f64::from(share) / f64::from(FULL_SHARE)
        )),
        _ => Ok(()),
    }
}

/// The classes of a sample that is not ignored.
#[derive(Clone, Copy, Debug)]
struct Target {
    own: usize,
    other: usize,
    /// λ; 0 if there is one class.
    share: f32,
}

impl Target {
    /// The target of a checked label; `None` if it is ignored.
    fn from_label(label: &[i32]) -> Option<Self> {
        let own = usize::try_from(*label.first()?).ok()?;
        let (other, share) = match *label {
            [_, other, share] => (usize::try_from(other).ok()?, share as f32 / FULL_SHARE as f32),
            _ => (own, 0.0),
        };
        Some(Self { own, other, share })
    }
}

fn one_row<E: Element>(
    row: &[f32],
    target: Option<Target>,
    [weight, smoothing]: [f32; 2],
    sums: &mut Sums,
    gradient: Option<&mut [E]>,
) {
    let Some(Target { own, other, share }) = target else {
        if let Some(gradient) = gradient {
            gradient.fill(E::store(0.0));
        }
        return;
    };
    // The class that counts as correct.
    let label = if share > 0.5 { other } else { own };
    let maximum = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = row.iter().map(|logit| (logit - maximum).exp()).sum();
    // 0 · ∞ counts as 0.
    let part = |share: f32, class: usize| match share {
        0.0 => 0.0,
        _ => f64::from(share) * f64::from(row[class] - maximum),
    };
    let mean = part(1.0 - share, own) + part(share, other);
    sums.loss += f64::from(sum.ln()) - f64::from(1.0 - smoothing) * mean;
    if smoothing > 0.0 {
        let all: f64 = row.iter().map(|logit| f64::from(logit - maximum)).sum();
        sums.loss -= f64::from(smoothing) * all / row.len() as f64;
    }
    sums.rank(row, label);
    if let Some(gradient) = gradient {
        let factor = weight / sum;
        let base_share = weight * smoothing / row.len() as f32;
        let label_share = weight * (1.0 - smoothing);
        for (i, (to, logit)) in gradient.iter_mut().zip(row).enumerate() {
            let mut target = base_share;
            if i == own {
                target += label_share * (1.0 - share);
            }
            if i == other {
                target += label_share * share;
            }
            *to = E::store((logit - maximum).exp() * factor - target);
        }
    }
}

/// [`one_row`] with class weights.
fn weighted_row<E: Element>(
    row: &[f32],
    target: Option<Target>,
    class_weights: &[f32],
    [weight, smoothing]: [f32; 2],
    sums: &mut Sums,
    gradient: Option<&mut [E]>,
) {
    let Some(Target { own, other, share }) = target else {
        if let Some(gradient) = gradient {
            gradient.fill(E::store(0.0));
        }
        return;
    };
    let maximum = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = row.iter().map(|logit| (logit - maximum).exp()).sum();
    let log = f64::from(sum.ln());
    let (base_share, label_share) = (smoothing / row.len() as f32, 1.0 - smoothing);
    let target = |class: usize| {
        let mut target = base_share;
        if class == own {
            target += label_share * (1.0 - share);
        }
        if class == other {
            target += label_share * share;
        }
        class_weights[class] * target
    };
    let mut all = 0.0;
    for (class, logit) in row.iter().enumerate() {
        let target = f64::from(target(class));
        all += target;
        // 0 · ∞ counts as 0.
        if target != 0.0 {
            sums.loss += target * (log - f64::from(logit - maximum));
        }
    }
    sums.rank(row, if share > 0.5 { other } else { own });
    let Some(gradient) = gradient else { return };
    if weight == 0.0 {
        gradient.fill(E::store(0.0));
        return;
    }
    let factor = all as f32 / sum;
    for (class, (to, logit)) in gradient.iter_mut().zip(row).enumerate() {
        *to = E::store(weight * ((logit - maximum).exp() * factor - target(class)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(logits: &[f32], labels: &[i32]) -> Result<([f64; 4], Vec<f32>), String> {
        let (mut metrics, mut gradient) = ([f64::NAN; 4], vec![f32::NAN; logits.len()]);
        let config = Loss {
            classes: 3,
            factor: 1.0,
            is_auxiliary: false,
            smoothing: 0.0,
            mixed: false,
            class_weights: None,
            label_counts: None,
            tile: Tile::WHOLE,
        };
        softmax_cross_entropy(&ThreadTeam::single(), logits, labels, config, &mut metrics, &mut gradient)?;
        Ok((metrics, gradient))
    }

    #[test]
    fn an_out_of_range_label_is_an_error_that_names_the_sample() {
        let error = loss(&[0.0; 9], &[2, 3, 0]).unwrap_err();
        assert_eq!(error, "sample 1: label 3 is out of range for 3 classes");
    }

    #[test]
    fn an_invalid_mixed_label_is_an_error_that_names_the_sample() {
        let loss = |labels: &[i32]| {
            let config = Loss {
                classes: 3,
                factor: 1.0,
                is_auxiliary: false,
                smoothing: 0.0,
                mixed: true,
                class_weights: None,
                label_counts: None,
                tile: Tile::WHOLE,
            };
            let (mut metrics, mut gradient) = ([0.0; 4], [f32::NAN; 6]);
            softmax_cross_entropy(
                &ThreadTeam::single(),
                &[0.0; 6],
                labels,
                config,
                &mut metrics,
                &mut gradient,
            )?;
            Ok::<_, String>((metrics[1], gradient))
        };
        let error_for = |label: [i32; 3]| loss(&[&[0, 1, 5], &label[..]].concat()).unwrap_err();
        for label in [[3, 0, 0], [0, 3, 1], [0, -1, 0]] {
            let number = if label[0] == 3 { 3 } else { label[1] };
            let error = format!("sample 1: label {number} is out of range for 3 classes");
            assert_eq!(error_for(label), error);
        }
        assert_eq!(error_for([0, 1, FULL_SHARE * 2]), "sample 1: mixing share 2 is not in [0, 1]");
        assert_eq!(error_for([0, 1, -FULL_SHARE]), "sample 1: mixing share -1 is not in [0, 1]");
        // An ignored sample is not checked.
        let (counted, gradient) = loss(&[-1, 7, -7, 2, 2, 0]).unwrap();
        assert_eq!(counted, 1.0);
        assert!(gradient[..3].iter().all(|&x| x == 0.0) && gradient[5] < 0.0);
    }

    #[test]
    fn a_zero_share_of_an_infinite_logit_is_zero() {
        let config = Loss {
            classes: 3,
            factor: 1.0,
            is_auxiliary: false,
            smoothing: 0.0,
            mixed: true,
            class_weights: None,
            label_counts: None,
            tile: Tile::WHOLE,
        };
        for label in [[0, 1, FULL_SHARE], [1, 0, 0]] {
            let mut metrics = [0.0; 4];
            let logits = [f32::NEG_INFINITY, 1.0, 1.0];
            softmax_cross_entropy::<f32>(
                &ThreadTeam::single(),
                &logits,
                &label,
                config,
                &mut metrics,
                &mut [],
            )
            .unwrap();
            assert!((metrics[0] - 2f64.ln()).abs() < 1e-6, "{metrics:?}");
        }
    }

    #[test]
    fn the_loss_of_an_entirely_ignored_batch_is_zero() {
        assert_eq!(loss(&[1.0; 6], &[-1, i32::MIN]).unwrap(), ([0.0; 4], vec![0.0; 6]));
    }

    #[test]
    fn labels_of_zero_weight_have_no_effect() {
        let (mut metrics, mut gradient) = ([f64::NAN; 4], [f32::NAN; 6]);
        let logits = [1.0, f32::NEG_INFINITY, 0.0, 3.0, 2.0, 1.0];
        let mut config = Loss {
            classes: 3,
            factor: 1.0,
            is_auxiliary: false,
            smoothing: 0.0,
            mixed: false,
            class_weights: None,
            label_counts: None,
            tile: Tile::WHOLE,
        };
        config.class_weights = Some(&[1.0, 0.0, 2.0]);
        let mut loss = |labels: &[i32]| {
            softmax_cross_entropy(
                &ThreadTeam::single(),
                &logits,
                labels,
                config,
                &mut metrics,
                &mut gradient,
            )?;
            Ok::<_, String>((metrics, gradient))
        };
        assert_eq!(loss(&[1, -1]).unwrap(), ([0.0, 1.0, 0.0, 1.0], [0.0; 6]));
        assert_eq!(loss(&[0, 3]).unwrap_err(), "sample 1: label 3 is out of range for 3 classes");
    }

    #[test]
    fn nan_is_never_the_predicted_class() {
        let (metrics, _) = loss(&[f32::NAN, 1.0, 2.0], &[0]).unwrap();
        assert!(metrics[0].is_nan() && metrics[2] == 0.0, "{metrics:?}");
        let (metrics, _) = loss(&[f32::NAN; 3], &[1]).unwrap();
        assert_eq!(metrics[1..], [1.0, 0.0, 1.0]);
    }
}
