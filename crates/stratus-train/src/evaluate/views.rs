//! Averages the probabilities of several views of each image (Krizhevsky et al., "ImageNet classification
//! with deep convolutional neural networks", 2012, section 4.1, which averages over ten).

use stratus_engine::session::Metrics;
use stratus_engine::{EngineError, Kernel, Program, Session, ValueId};

/// The network's outputs for the views of a batch's images.
#[derive(Debug)]
pub(super) struct ViewAverage {
    /// The program's value with the logits.
    pub(super) logits: ValueId,
    /// The number of classes.
    pub(super) classes: usize,
    /// Log probabilities `[sample, class]` of each view so far.
    views: Vec<Vec<f64>>,
    /// The predicted class of each sample, by the averaged probabilities.
    predictions: Vec<i32>,
    /// Its probability.
    probabilities: Vec<f64>,
}

impl ViewAverage {
    /// The averages for an evaluation program; `None` if its loss is not a softmax.
    pub(super) fn for_program(program: &Program) -> Option<Self> {
        let loss = program
            .steps
            .iter()
            .find(|step| matches!(&step.kernel, Kernel::SoftmaxCrossEntropy(k) if k.auxiliary.is_none()))?;
        let logits = *loss.inputs.first()?;
        let classes = *program.value(logits).shape.last()?;
        Some(Self { logits, classes, views: Vec::new(), predictions: Vec::new(), probabilities: Vec::new() })
    }

    /// Removes all views, before the next batch.
    pub(super) fn clear(&mut self) {
        self.views.clear();
    }

    /// Adds the outputs of the program's last run as one more view.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn add(&mut self, session: &Session, program: usize) -> Result<(), EngineError> {
        self.add_logits(session.read_value(program, self.logits.0)?);
        Ok(())
    }

    fn add_logits(&mut self, mut view: Vec<f64>) {
        for logits in view.chunks_exact_mut(self.classes) {
            let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
            logits.iter_mut().for_each(|logit| *logit -= largest + sum.ln());
        }
        self.views.push(view);
    }

    /// The predicted class of each sample in the last [`metrics`](Self::metrics).
    pub(super) fn predictions(&self) -> &[i32] {
        &self.predictions
    }

    /// The averaged probability of each predicted class.
    pub(super) fn probabilities(&self) -> &[f64] {
        &self.probabilities
    }

    /// Metrics of the averaged probabilities. Hits are counted as in the engine; the loss has no label
    /// smoothing. Negative labels do not count; the engine rejects those above the number of classes.
    pub(super) fn metrics(&mut self, labels: &[i32]) -> Metrics {
        let mut metrics = Metrics::default();
        let (mut scores, mut view_scores) = (vec![0.0; self.classes], Vec::with_capacity(self.views.len()));
        self.predictions.clear();
        self.probabilities.clear();
        for (sample, &label) in labels.iter().enumerate() {
            for (class, score) in scores.iter_mut().enumerate() {
                view_scores.clear();
                view_scores.extend(self.views.iter().map(|view| view[sample * self.classes + class]));
                *score = log_of_sum(&mut view_scores);
            }
            let predicted = largest(&scores);
            self.predictions.push(predicted);
            let score = usize::try_from(predicted).ok().and_then(|class| scores.get(class)).copied();
            self.probabilities.push(score.map_or(f64::NAN, |score| score.exp() / self.views.len() as f64));
            let Ok(label) = usize::try_from(label) else { continue };
            let label_score = scores[label];
            metrics.samples += 1.0;
            metrics.loss += (self.views.len() as f64).ln() - label_score;
            // The rank is the number of classes that the label's score does not beat; NaN beats none.
            let beats =
                |class: usize| label_score > scores[class] || (label_score == scores[class] && label < class);
            let rank = (0..self.classes).filter(|&class| class != label && !beats(class)).count();
            metrics.top1 += f64::from(u8::from(rank < 1));
            metrics.top5 += f64::from(u8::from(rank < 5));
        }
        metrics.loss /= metrics.samples.max(1.0);
        metrics
    }
}

/// The class of the largest score, the first of equal ones; NaN is never the largest.
pub(super) fn largest<T: Copy + Into<f64>>(scores: &[T]) -> i32 {
    let mut best = (0, f64::NEG_INFINITY);
    for (class, &score) in scores.iter().enumerate() {
        let score = score.into();
        if score > best.1 {
            best = (class, score);
        }
    }
    i32::try_from(best.0).unwrap_or(i32::MAX)
}

/// The probability of the largest of the logits; NaN if one is.
pub(super) fn largest_probability(logits: &[f32]) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    1.0 / logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum::<f64>()
}

/// `log(sum(exp(x)))`. Sorts first, so that the result is bit-identical for any order of views.
fn log_of_sum(logarithms: &mut [f64]) -> f64 {
    logarithms.sort_unstable_by(f64::total_cmp);
    match logarithms.last() {
        Some(&largest) if largest > f64::NEG_INFINITY => {
            largest + logarithms.iter().map(|logarithm| (logarithm - largest).exp()).sum::<f64>().ln()
        }
        // Zero probability in every view, or NaN.
        Some(&largest) => largest,
        None => f64::NEG_INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_data::buffer::IGNORED_LABEL;

    fn views(classes: usize, all: &[&[f64]]) -> ViewAverage {
        let mut views = ViewAverage {
            logits: ValueId(0),
            classes,
            views: Vec::new(),
            predictions: Vec::new(),
            probabilities: Vec::new(),
        };
        all.iter().for_each(|logits| views.add_logits(logits.to_vec()));
        views
    }

    #[test]
    fn averages_probabilities() {
        // Softmax of these: 0.8, 0.1, 0.1 and 0.2, 0.6, 0.2; then twice 0.5, 0.25, 0.25. Adding a constant to
        // all logits changes nothing.
        let first = [
            0.8_f64.ln(),
            0.1_f64.ln(),
            0.1_f64.ln(),
            7.0 + 0.5_f64.ln(),
            7.0 + 0.25_f64.ln(),
            7.0 + 0.25_f64.ln(),
        ];
        let second = [0.2_f64.ln(), 0.6_f64.ln(), 0.2_f64.ln(), 0.5_f64.ln(), 0.25_f64.ln(), 0.25_f64.ln()];
        let mut views = views(3, &[&first, &second]);
        let Metrics { loss, samples, top1, top5 } = views.metrics(&[1, 0]);
        assert!((loss - (-(0.35_f64.ln()) - 0.5_f64.ln()) / 2.0).abs() < 1e-12, "{loss}");
        assert_eq!([samples, top1, top5], [2.0, 1.0, 2.0]);
        // Of equal scores the first class is predicted.
        assert_eq!(views.metrics(&[IGNORED_LABEL, 1]).top1, 0.0);
        assert_eq!(views.metrics(&[IGNORED_LABEL, 1]).samples, 1.0);
    }

    #[test]
    fn extreme_logits_neither_overflow_nor_vanish() {
        let loss = views(2, &[&[2000.0, -2000.0], &[1000.0, 1000.0]]).metrics(&[1]).loss;
        // (0 + 0.5) / 2.
        assert!((loss - 4_f64.ln()).abs() < 1e-12, "{loss}");
        let certain = views(2, &[&[2000.0, -2000.0], &[2000.0, -2000.0]]).metrics(&[1]);
        assert!((certain.loss - 4000.0).abs() < 1e-9 && certain.top1 == 0.0, "{certain:?}");
    }

    #[test]
    fn the_order_of_views_does_not_change_results() {
        let all: Vec<[f64; 3]> =
            (0..10).map(|view| [0.0, 1.3, 2.9].map(|at| (at * f64::from(view)).sin())).collect();
        let forth: Vec<&[f64]> = all.iter().map(|view| &view[..]).collect();
        let bits = |order: &[&[f64]]| views(3, order).metrics(&[1]).loss.to_bits();
        for turned in 0..10 {
            let mut order = forth.clone();
            order.rotate_left(turned);
            assert_eq!(bits(&order), bits(&forth));
            order.reverse();
            assert_eq!(bits(&order), bits(&forth));
        }
    }

    #[test]
    fn a_class_of_zero_probability_is_not_predicted() {
        let never = [f64::NEG_INFINITY, 0.0];
        let metrics = views(2, &[&never, &never]).metrics(&[1]);
        assert_eq!([metrics.loss, metrics.top1], [0.0, 1.0]);
    }

    #[test]
    fn nan_logit_is_not_a_hit() {
        let metrics = views(2, &[&[f64::NAN, 1.0]]).metrics(&[0]);
        assert!(metrics.loss.is_nan() && metrics.top1 == 0.0);
    }
}
