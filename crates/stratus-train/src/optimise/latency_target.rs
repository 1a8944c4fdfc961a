//! Chooses int8 layers and pruning so that one image takes at most a given time on this machine.
//!
//! ```text
//! the network in each number format ──fast enough──▶ refused: nothing to change
//! with int8 layers, within the accuracy that may be lost ──fast enough──▶ int8 alone
//! with int8 layers and as few channels removed as are needed ──▶ pruning and int8
//! ```
//!
//! Networks are measured, not estimated: a pruned network is as fast before fine-tuning as after it. Channels
//! are chosen by importance per time, since the same multiply-adds take longer in some layers than in others.

use super::quantise::choose_quantisation;
use super::{OptimiseRequest, QuantiseOptions, channel_scores, compared_precisions, remove_selection};
use crate::infer::{BatchLatency, Predictor, measure_latency};
use crate::weights::CheckpointChoice;
use crate::{Observer, TrainError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use stratus_base::text::shell_path;
use stratus_experiment::Experiment;
use stratus_optimise::Model;
use stratus_optimise::prune::{PruneError, Scores, Target, choose_by_cost, multiply_adds};
use stratus_run::quantisation::Quantisation;

/// The number of times that each network is measured.
const LATENCY_RUNS: usize = 30;

/// The number of pruned networks that are measured between the whole and the smallest one.
const BISECTION_STEPS: usize = 6;

/// The bisection aims at this share of the target, because measured times vary.
const AIMED_SHARE: f64 = 0.97;

/// A latency to reach. A part of `optimise/request.json`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyTarget {
    /// Milliseconds of one image, median.
    pub ms: f64,
    /// How int8 layers are chosen.
    pub int8: QuantiseOptions,
}

/// The changes to a network that reach a latency.
#[derive(Default)]
pub(super) struct LatencyChoice {
    /// The network without some of its channels; `None` if it keeps all.
    pub pruned: Option<Model>,
    /// The share of the multiply-adds that are removed.
    pub share: Option<f64>,
    /// The layers that run in int8, chosen for the whole network.
    pub quantisation: Option<Quantisation>,
}

/// The search of the changes to a trained network that reach a latency.
pub(super) struct LatencySearch<'a> {
    pub run: &'a Path,
    pub checkpoint: CheckpointChoice,
    pub experiment: &'a Experiment,
    pub model: &'a Model,
    pub request: &'a OptimiseRequest,
    pub stop: &'a AtomicBool,
}

/// The latency of a network in its fastest form.
struct FastestForm {
    /// Number format of the layers, such as `bf16` or `int8 and bf16`.
    form: String,
    latency: BatchLatency,
}

impl LatencySearch<'_> {
    /// Chooses the changes that reach the target.
    ///
    /// # Errors
    /// If the network is fast enough, cannot become as fast, or cannot be measured; or if it was stopped.
    pub fn choose(
        &self,
        target: LatencyTarget,
        observer: &mut dyn Observer,
    ) -> Result<LatencyChoice, TrainError> {
        let run = shell_path(self.run);
        let whole = self.fastest(self.model, None, observer)?;
        let ms = whole.latency.ms_median;
        observer
            .info(&format!("an image takes {ms:.3} ms in {}; the target is {} ms", whole.form, target.ms));
        if ms <= target.ms {
            return Err(TrainError::Configuration {
                problem: format!("the network of {run} takes {ms:.3} ms in {} already", whole.form),
                hint: format!("no change is needed: run it with `--set train.precision={}`", whole.form),
            });
        }
        let quantisation = self.quantisation(target, observer)?;
        let mut fastest = whole;
        if quantisation.is_some() {
            fastest = self.fastest(self.model, quantisation.as_ref(), observer)?;
            observer.info(&format!("in {} it takes {:.3} ms", fastest.form, fastest.latency.ms_median));
            if fastest.latency.ms_median <= target.ms {
                return Ok(LatencyChoice { pruned: None, share: None, quantisation });
            }
        }
        let scores = channel_scores(self.model, self.experiment, self.request, self.stop, observer)?;
        let costs = layer_costs(self.model, &fastest.latency);
        let mut smallest = None;
        let found = smallest_share(target.ms, |share| {
            let pruned = self.without_channels(&scores, &costs, share)?;
            let fastest = self.fastest(&pruned, quantisation.as_ref(), observer)?;
            let ms = fastest.latency.ms_median;
            let left = 100.0 * (1.0 - removed_share(self.model, &pruned));
            observer.info(&format!("tried {left:.1} % of the multiply-adds: {ms:.3} ms in {}", fastest.form));
            smallest.get_or_insert((ms, left));
            Ok(ms)
        })?;
        let Some(share) = found else {
            let (ms, left) = smallest.unwrap_or_default();
            return Err(TrainError::Configuration {
                problem: format!(
                    "the network of {run} cannot take {} ms: with as few channels as possible, {left:.1} % \
                     of the multiply-adds, it takes {ms:.3} ms",
                    target.ms
                ),
                hint: "raise --target-ms, lower --granularity, or train a smaller network".to_owned(),
            });
        };
        let pruned = self.without_channels(&scores, &costs, share)?;
        let share = Some(removed_share(self.model, &pruned));
        Ok(LatencyChoice { pruned: Some(pruned), share, quantisation })
    }

    /// The int8 layers of the whole network; `None` if there are none that are faster and accurate enough.
    fn quantisation(
        &self,
        target: LatencyTarget,
        observer: &mut dyn Observer,
    ) -> Result<Option<Quantisation>, TrainError> {
        let overrides = &self.request.set;
        let warn = &mut |text: &str| observer.warn(text);
        let predictor = Predictor::from_run_as(self.run, self.checkpoint, overrides, None, warn)?;
        let chosen = choose_quantisation(
            (self.run, self.checkpoint),
            &predictor,
            target.int8,
            overrides,
            self.stop,
            observer,
        );
        match chosen {
            Ok(quantisation) => Ok(Some(quantisation)),
            Err(TrainError::NoInt8Layer { problem, .. }) => {
                observer.warn(&format!("not in int8: {problem}"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The network without its least important channels, which take this share of its time.
    fn without_channels(
        &self,
        scores: &Scores,
        costs: &BTreeMap<String, f64>,
        share: f64,
    ) -> Result<Model, TrainError> {
        let target = Target { granularity: self.request.granularity, ..Target::new(share) };
        let graph = &self.model.graph;
        let selection = match choose_by_cost(graph, scores, &target, costs) {
            // Rounding: the share itself may be just out of reach.
            Err(PruneError::Unreachable { largest, .. }) => {
                let target = Target { share: largest * (1.0 - 1e-9), ..target };
                choose_by_cost(graph, scores, &target, costs)
            }
            chosen => chosen,
        };
        remove_selection(self.model, &selection?, &mut |_| ())
    }

    /// Measures a network in each number format, and with int8 layers; returns the fastest.
    fn fastest(
        &self,
        model: &Model,
        quantisation: Option<&Quantisation>,
        observer: &mut dyn Observer,
    ) -> Result<FastestForm, TrainError> {
        let (mut forms, mut predictors) = (Vec::new(), Vec::new());
        let real =
            compared_precisions(self.run, &self.request.set)?.iter().map(|&precision| (precision, None));
        let int8 = quantisation.map(|quantisation| (quantisation.precision.as_str(), Some(quantisation)));
        for (precision, quantisation) in real.chain(int8) {
            let overrides = [&self.request.set[..], &[("train.precision".to_owned(), precision.to_owned())]];
            let experiment = self.experiment.clone().with_overrides(&overrides.concat())?;
            predictors.push(Predictor::from_model(experiment, model.clone(), quantisation.cloned()));
            forms.push(if quantisation.is_some() {
                format!("int8 and {precision}")
            } else {
                precision.to_owned()
            });
        }
        let predictors: Vec<&Predictor> = predictors.iter().collect();
        let warn = &mut |text: &str| observer.warn(text);
        let measured = measure_latency(&predictors, &[1], LATENCY_RUNS, self.stop, warn)?;
        let latencies = measured.into_iter().filter_map(|mut network| network.batches.pop());
        let fastest = forms.into_iter().zip(latencies).map(|(form, latency)| FastestForm { form, latency });
        fastest
            .min_by(|one, other| one.latency.ms_median.total_cmp(&other.latency.ms_median))
            .ok_or_else(|| super::configuration_error("no network was measured", "repeat the command"))
    }
}

/// The share of the multiply-adds that a pruned network lacks.
fn removed_share(model: &Model, pruned: &Model) -> f64 {
    let [all, left] = [model, pruned].map(|model| multiply_adds(&model.graph) as f64);
    1.0 - left / all.max(1.0)
}

/// The milliseconds per multiply-add of each layer, steps that are fused with it included. Layers that no
/// step names have the mean of the others.
fn layer_costs(model: &Model, latency: &BatchLatency) -> BTreeMap<String, f64> {
    let graph = &model.graph;
    let counts: BTreeMap<&str, u64> = stratus_optimise::prune::layer_multiply_adds(graph).collect();
    let mut times: BTreeMap<&str, f64> = BTreeMap::new();
    for step in &latency.steps {
        if let Some((&layer, _)) = step.layer.split('+').find_map(|part| counts.get_key_value(part)) {
            *times.entry(layer).or_default() += step.ms;
        }
    }
    let counted: u64 = times.keys().filter_map(|layer| counts.get(layer)).sum();
    let mean = times.values().sum::<f64>() / counted.max(1) as f64;
    let costs = counts.into_iter().map(|(layer, count)| {
        let measured = times.get(layer).map(|ms| ms / count.max(1) as f64);
        (layer.to_owned(), measured.unwrap_or(mean))
    });
    costs.collect()
}

/// The smallest tried share whose removal reaches `target_ms`; `None` if even the smallest network takes
/// longer. `measure` returns the milliseconds without a share. It is called with 1 first, which removes as
/// much as possible, and then with shares that halve the interval.
fn smallest_share(
    target_ms: f64,
    mut measure: impl FnMut(f64) -> Result<f64, TrainError>,
) -> Result<Option<f64>, TrainError> {
    if measure(1.0)? > target_ms {
        return Ok(None);
    }
    let (mut slow, mut fast) = (0.0, 1.0);
    for _ in 0..BISECTION_STEPS {
        let share = f64::midpoint(slow, fast);
        if measure(share)? > AIMED_SHARE * target_ms { slow = share } else { fast = share }
    }
    Ok(Some(fast))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_graph::zoo::find;
    use stratus_optimise::prune::Importance;

    fn model() -> Model {
        let network = find("digits").unwrap();
        let graph = (network.build)(&(network.defaults)()).unwrap();
        let values = graph.parameters.iter().map(|p| (p.name.clone(), vec![0.5; p.elements()]));
        Model { values: values.collect(), graph }
    }

    #[test]
    fn the_smallest_share_that_is_fast_enough_is_found() {
        let mut tried = Vec::new();
        let found = smallest_share(3.0 / AIMED_SHARE, |share| {
            tried.push(share);
            Ok(10.0 * (1.0 - share) + 1.0)
        });
        let found = found.unwrap().unwrap();
        assert!((0.8..0.8 + 1.0 / 64.0 + 1e-9).contains(&found), "{found}");
        assert_eq!((tried[0], tried.len()), (1.0, 1 + BISECTION_STEPS));
        assert_eq!(smallest_share(0.5, |share| Ok(2.0 - share)).unwrap(), None);
        // The smallest network is enough if it takes the whole time that is allowed.
        assert_eq!(smallest_share(1.0, |share| Ok(2.0 - share)).unwrap(), Some(1.0));
        let stopped = || TrainError::Interrupted { activity: "measuring" };
        assert!(smallest_share(1.0, |_| Err(stopped())).is_err());
    }

    #[test]
    fn slow_layers_lose_their_channels_first() {
        let model = model();
        let scores = Importance::L1.scores(&model).unwrap();
        let names: Vec<(String, u64)> = stratus_optimise::prune::layer_multiply_adds(&model.graph)
            .map(|(name, count)| (name.to_owned(), count))
            .collect();
        // The output channels of the second layer that remain, if its time is this one.
        let remaining = |ms: f64| {
            let steps = names.iter().enumerate().map(|(at, (name, count))| {
                (format!("{name}+relu"), if at == 1 { ms } else { *count as f64 * 1e-6 })
            });
            let steps: Vec<(String, f64)> = steps.collect();
            let steps: Vec<(&str, f64)> = steps.iter().map(|(layer, ms)| (&layer[..], *ms)).collect();
            let costs = layer_costs(&model, &BatchLatency::of_steps(&steps));
            assert!((costs[&names[1].0] * names[1].1 as f64 - ms).abs() < 1e-9 * ms);
            let target = Target { granularity: 4, ..Target::new(0.3) };
            let selection = choose_by_cost(&model.graph, &scores, &target, &costs).unwrap();
            let pruned = remove_selection(&model, &selection, &mut |_| ()).unwrap();
            let node = pruned.graph.nodes.iter().find(|node| node.name == names[1].0).unwrap();
            pruned.graph.shape(node.output).0[0]
        };
        let usual = names[1].1 as f64 * 1e-6;
        assert!(remaining(10.0 * usual) < remaining(usual / 10.0));
    }

    #[test]
    fn layers_without_a_step_have_the_mean_cost() {
        let model = model();
        let (first, count) = stratus_optimise::prune::layer_multiply_adds(&model.graph).next().unwrap();
        let latency = BatchLatency::of_steps(&[("pool", 9.0), (first, 2.0), (first, 1.0)]);
        let costs = layer_costs(&model, &latency);
        assert!((costs[first] - 3.0 / count as f64).abs() < 1e-12);
        assert!(
            costs.len() > 1 && costs.values().all(|cost| (cost - costs[first]).abs() < 1e-15),
            "{costs:?}"
        );
    }
}
