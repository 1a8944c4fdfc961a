//! Which layers are faster in int8, by the time of every step of the network.

use super::Selection;
use crate::infer::{BatchLatency, Predictor, measure_latency};
use crate::optimise::compared_precisions;
use crate::{Observer, TrainError};
use std::collections::{BTreeMap, BTreeSet};
use stratus_run::quantisation::KeptLayer;

/// The number of times that a network is measured.
const LATENCY_RUNS: usize = 30;

/// A network: the number format of its layers, and those that run in int8.
#[derive(Clone, Debug, PartialEq)]
struct Candidate {
    precision: &'static str,
    layers: BTreeSet<String>,
}

impl Selection<'_> {
    /// The layers that are faster in int8, and the number format of the others, of the network that is
    /// fastest on this machine.
    ///
    /// # Errors
    /// If no network with int8 layers is the fastest, a network cannot be measured, or it was stopped.
    pub(super) fn faster_layers(
        &mut self,
        observer: &mut dyn Observer,
    ) -> Result<(String, BTreeSet<String>), TrainError> {
        let precisions = compared_precisions(self.run, self.overrides)?;
        let all = self.possible_layers();
        let mut candidates: Vec<Candidate> = precisions
            .iter()
            .flat_map(|&precision| {
                [BTreeSet::new(), all.clone()].map(|layers| Candidate { precision, layers })
            })
            .collect();
        let measured = self.measure(&candidates, observer)?;
        let times = measured.chunks_exact(2).map(|pair| compare_layers(&pair[0], &pair[1]));
        let times: BTreeMap<&str, _> = precisions.iter().copied().zip(times).collect();
        for (&precision, times) in &times {
            let layers = self.faster_groups(times);
            let candidate = Candidate { precision, layers };
            if !candidates.contains(&candidate) {
                candidates.push(candidate);
            }
        }
        // All again, in turn: the machine may have another speed now.
        let latencies = self.measure(&candidates, observer)?;
        let fastest = candidates
            .into_iter()
            .zip(latencies)
            .min_by(|one, other| one.1.ms_median.total_cmp(&other.1.ms_median));
        let Some((Candidate { precision, layers }, _)) = fastest.filter(|(best, _)| !best.layers.is_empty())
        else {
            return Err(TrainError::NoInt8Layer {
                problem: "no layer is faster in int8 on this machine".to_owned(),
                hint: "leave out --int8, or use --int8=all if another machine runs the network".to_owned(),
            });
        };
        self.ms = times.get(precision).cloned().unwrap_or_default();
        for layer in all.difference(&layers) {
            let [real, int8] = self.ms.get(layer).copied().unwrap_or_default();
            let reason = format!("slower in int8: {int8:.3} instead of {real:.3} ms");
            self.kept.push(KeptLayer { layer: layer.clone(), reason });
        }
        Ok((precision.to_owned(), layers))
    }

    /// The layers of the groups that are faster in int8: the layers of a group share the conversion of their
    /// input, which is a part of the time of the first.
    fn faster_groups(&self, times: &BTreeMap<String, [f64; 2]>) -> BTreeSet<String> {
        let sum = |layers: &[String], form: usize| -> f64 {
            layers.iter().filter_map(|layer| times.get(layer)).map(|ms| ms[form]).sum()
        };
        let faster = self.groups.iter().filter(|group| sum(&group.layers, 1) < sum(&group.layers, 0));
        faster.flat_map(|group| group.layers.iter().cloned()).collect()
    }

    /// Measures networks in turn.
    fn measure(
        &self,
        candidates: &[Candidate],
        observer: &mut dyn Observer,
    ) -> Result<Vec<BatchLatency>, TrainError> {
        self.check_stop()?;
        let warn = &mut |text: &str| observer.warn(text);
        let mut predictors = Vec::new();
        for Candidate { precision, layers } in candidates {
            let precision_key = ("train.precision".to_owned(), (*precision).to_owned());
            let overrides = [self.overrides, &[precision_key]].concat();
            let quantisation = (!layers.is_empty()).then(|| self.with_layers(precision, layers));
            let checkpoint = self.checkpoint;
            let predictor = Predictor::from_run_as(self.run, checkpoint, &overrides, quantisation, warn)?;
            predictors.push(predictor.with_separate_steps());
        }
        let predictors: Vec<&Predictor> = predictors.iter().collect();
        let latencies = measure_latency(&predictors, &[1], LATENCY_RUNS, self.stop, warn)?;
        Ok(latencies.into_iter().filter_map(|mut latency| latency.batches.pop()).collect())
    }
}

/// The milliseconds of each layer without and with int8. An int8 layer includes the conversion of its input,
/// if it is the first that reads it, and what was fused with it; without int8 these are steps of their own.
fn compare_layers(real: &BatchLatency, int8: &BatchLatency) -> BTreeMap<String, [f64; 2]> {
    let parts = |layer: &str| layer.split('+').map(str::to_owned).collect::<BTreeSet<String>>();
    let mut compared: BTreeMap<String, ([f64; 2], BTreeSet<String>)> = BTreeMap::new();
    for step in &int8.steps {
        let Some(main) = step.layer.split('+').next() else { continue };
        let (ms, layers) = compared.entry(main.to_owned()).or_default();
        ms[1] += step.ms;
        layers.extend(parts(&step.layer));
    }
    for step in &real.steps {
        let of_step = parts(&step.layer);
        if let Some((ms, _)) = compared.values_mut().find(|(_, layers)| of_step.is_subset(layers)) {
            ms[0] += step.ms;
        }
    }
    compared.into_iter().map(|(layer, (ms, _))| (layer, ms)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_int8_layer_replaces_what_was_fused_with_it() {
        let real = BatchLatency::of_steps(&[("a+relu", 2.0), ("b", 3.0), ("add+relu2", 1.0), ("fc", 0.5)]);
        // The conversion of the input of `a` has the layers of `a`.
        let int8 =
            BatchLatency::of_steps(&[("a+relu", 0.25), ("a+relu", 0.5), ("b+add+relu2", 1.0), ("fc", 0.5)]);
        let expected = [("a", [2.0, 0.75]), ("b", [4.0, 1.0]), ("fc", [0.5, 0.5])];
        assert_eq!(compare_layers(&real, &int8), expected.map(|(layer, ms)| (layer.to_owned(), ms)).into());
    }
}
