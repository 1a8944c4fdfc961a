//! Chooses which layers of a trained network run in int8 in inference, and with which ranges.
//!
//! ```text
//! training images ──run──▶ histograms of maps ──by three methods──▶ ranges
//! each map that layers read, alone in int8 ──divergence of predictions──▶ its range, its cost
//! the network with and without int8 ──measure──▶ layers that are faster
//! validation images ──accuracy lost──▶ layers that may run in int8
//! ```

mod calibration;

use crate::compile::uint8_scales;
use crate::evaluate::{EvaluatedForm, ImageSelection, TaskMetrics, evaluate_run_as};
use crate::infer::{BatchLatency, Predictor, measure_latency};
use crate::weights::CheckpointChoice;
use crate::{Observer, TrainError};
use calibration::{Calibration, Logits};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use stratus_engine::Program;
use stratus_engine::passes::quantise::{Quantisable, quantisable};
use stratus_experiment::Experiment;
use stratus_optimise::quantise::{Histogram, Range, RangeMethod};
use stratus_run::RunDir;
use stratus_run::csv::Task;
use stratus_run::quantisation::{KeptLayer, MapRange, Quantisation, QuantisedLayer};

/// The number of images on which predictions are compared, of classifiers and of segmentation networks.
const COMPARED_IMAGES: [usize; 2] = [32, 4];

/// Ranges that differ by less than this share are not both tried.
const SAME_RANGE: f32 = 0.02;

/// The number of times that a network is measured.
const LATENCY_RUNS: usize = 30;

/// Options of [`quantise_run`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuantiseOptions {
    /// The number of training images that the ranges follow from.
    pub images: usize,
    /// The points of accuracy or mean IoU that may be lost.
    pub max_loss_points: f64,
    /// True if layers run in int8 even if they are not faster on this machine; nothing is measured
    /// then.
    pub all_layers: bool,
}

/// The layers that read the same map.
struct Group {
    /// The name of the map's value.
    input: String,
    layers: Vec<String>,
    /// The range of the map and the divergence with it, once chosen.
    range: MapRange,
    divergence: f64,
}

/// The choice of layers of one run.
struct Selection<'a> {
    run: &'a Path,
    /// The checksum of its weights.
    weights_sha256: String,
    options: QuantiseOptions,
    overrides: &'a [(String, String)],
    stop: &'a AtomicBool,
    groups: Vec<Group>,
    kept: Vec<KeptLayer>,
    /// The ranges of maps that layers only add or write.
    other_ranges: BTreeMap<String, MapRange>,
    /// Milliseconds of each layer without and with int8.
    ms: BTreeMap<String, [f64; 2]>,
}

/// Chooses the layers of a run's network that run in int8, and records them in the run; returns the
/// recorded ones, if there are any. `overrides` are keys of the experiment, such as where its data are.
///
/// # Errors
/// If the run or its data cannot be read, no layer can run in int8, the run cannot be written, or it
/// was stopped.
pub fn quantise_run(
    run: &RunDir,
    options: QuantiseOptions,
    overrides: &[(String, String)],
    stop: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<Quantisation, TrainError> {
    let _lock = run.lock()?;
    if let Some(recorded) = Quantisation::read(&run.optimise_quantisation())? {
        return Ok(recorded);
    }
    let quantisation = choose_quantisation(run.path(), options, overrides, stop, observer)?;
    quantisation.write(&run.optimise_quantisation())?;
    Ok(quantisation)
}

/// Chooses the layers of a run's network that run in int8.
fn choose_quantisation(
    run: &Path,
    options: QuantiseOptions,
    overrides: &[(String, String)],
    stop: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<Quantisation, TrainError> {
    let warn = &mut |text: &str| observer.warn(text);
    let predictor =
        Predictor::from_run(run, CheckpointChoice::Newest, overrides, warn)?.with_quantisation(None);
    let model = predictor.folded_model()?;
    let compared = COMPARED_IMAGES[usize::from(predictor.task() == Task::Segmentation)];
    let mut selection = Selection {
        run,
        weights_sha256: predictor.checkpoint().map(|c| c.state.weights_sha256.clone()).unwrap_or_default(),
        options,
        overrides,
        stop,
        groups: Vec::new(),
        kept: Vec::new(),
        other_ranges: BTreeMap::new(),
        ms: BTreeMap::new(),
    };
    let mut calibration = Calibration::new(predictor.experiment(), &model, options.images, observer)?;
    observer.info(&format!("ranges of maps on {} training images", options.images));
    let histograms = calibration.histograms(|| selection.check_stop())?;
    let program = calibration.program()?;
    selection.find_groups(&program, &histograms)?;
    let real = calibration.logits(None, compared)?;
    observer.info(&format!("predictions with each of {} maps in int8", selection.groups.len()));
    selection.choose_ranges(&program, &mut calibration, &histograms, &real, compared)?;
    drop(calibration);
    let (precision, layers) = if options.all_layers {
        // A run records `bf16` or `f32`, or `f16` if it was trained on a GPU.
        let recorded = predictor.experiment().train.precision.as_str();
        let precision = if recorded == "bf16" { "bf16" } else { "f32" };
        (precision.to_owned(), selection.possible_layers())
    } else {
        observer.info("time of each layer with and without int8");
        selection.faster_layers(observer)?
    };
    selection.accurate_layers(&precision, layers, observer)
}

impl Selection<'_> {
    fn check_stop(&self) -> Result<(), TrainError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(TrainError::Interrupted { activity: "choosing int8 layers" });
        }
        Ok(())
    }

    /// Finds the maps that layers can read in int8.
    fn find_groups(
        &mut self,
        program: &Program,
        histograms: &BTreeMap<String, Histogram>,
    ) -> Result<(), TrainError> {
        let whole = histograms.iter().map(|(name, histogram)| {
            (
                name.clone(),
                map_range(histogram.range(RangeMethod::MinimumMaximum), RangeMethod::MinimumMaximum),
            )
        });
        let everything = quantisation("", "f32", Vec::new(), whole.collect());
        for Quantisable { layer, input, obstacle, .. } in quantisable(program, &uint8_scales(&everything)) {
            if let Some(obstacle) = obstacle {
                self.kept.push(KeptLayer { layer, reason: obstacle.reason().to_owned() });
                continue;
            }
            match self.groups.iter_mut().find(|group| group.input == input) {
                Some(group) => group.layers.push(layer),
                None => {
                    let range = everything.ranges[&input].clone();
                    self.groups.push(Group { input, layers: vec![layer], range, divergence: 0.0 });
                }
            }
        }
        let read: BTreeSet<&String> = self.groups.iter().map(|group| &group.input).collect();
        let others = histograms.iter().filter(|(name, _)| !read.contains(name));
        self.other_ranges = others
            .map(|(name, histogram)| {
                let method = RangeMethod::LeastSquares;
                (name.clone(), map_range(histogram.range(method), method))
            })
            .collect();
        if self.groups.is_empty() {
            let reasons: BTreeSet<&str> = self.kept.iter().map(|kept| kept.reason.as_str()).collect();
            return Err(TrainError::Configuration {
                problem: format!(
                    "no layer of the network can run in int8: {}",
                    reasons.into_iter().collect::<Vec<_>>().join("; ")
                ),
                hint: "leave out --int8".to_owned(),
            });
        }
        Ok(())
    }

    /// Chooses the range of each map by the predictions with only this map in int8.
    fn choose_ranges(
        &mut self,
        program: &Program,
        calibration: &mut Calibration<'_>,
        histograms: &BTreeMap<String, Histogram>,
        real: &Logits,
        compared: usize,
    ) -> Result<(), TrainError> {
        for index in 0..self.groups.len() {
            let Group { input, layers, .. } = &self.groups[index];
            let Some(histogram) = histograms.get(input) else { continue };
            let mut tried: Vec<(Range, RangeMethod, f64)> = Vec::new();
            for method in RangeMethod::ALL {
                self.check_stop()?;
                let range = histogram.range(method);
                if tried.iter().any(|(other, ..)| is_similar(*other, range)) {
                    continue;
                }
                let ranges = BTreeMap::from([(input.clone(), map_range(range, method))]);
                let names = layers.iter().map(|layer| plain_layer(layer));
                let alone = quantisation("", "f32", names.collect(), ranges);
                // A range with another zero point may be out of the question.
                let scales = uint8_scales(&alone);
                let is_possible =
                    |found: &Quantisable| found.obstacle.is_none() || !layers.contains(&found.layer);
                if !quantisable(program, &scales).iter().all(is_possible) {
                    continue;
                }
                let divergence = real.divergence(&calibration.logits(Some(&alone), compared)?);
                tried.push((range, method, divergence));
            }
            let best = tried.into_iter().min_by(|one, other| one.2.total_cmp(&other.2));
            let group = &mut self.groups[index];
            match best {
                Some((range, method, divergence)) if divergence.is_finite() => {
                    (group.range, group.divergence) = (map_range(range, method), divergence);
                }
                _ => {
                    let reason = "its predictions are not finite in int8";
                    let kept = group.layers.drain(..);
                    self.kept.extend(kept.map(|layer| KeptLayer { layer, reason: reason.to_owned() }));
                }
            }
        }
        self.groups.retain(|group| !group.layers.is_empty());
        Ok(())
    }

    /// The quantisation in which these layers run in int8.
    fn with_layers(&self, precision: &str, layers: &BTreeSet<String>) -> Quantisation {
        let mut ranges = self.other_ranges.clone();
        ranges.extend(self.groups.iter().map(|group| (group.input.clone(), group.range.clone())));
        let mut chosen = Vec::new();
        for group in &self.groups {
            for layer in group.layers.iter().filter(|layer| layers.contains(*layer)) {
                let ms = self.ms.get(layer).copied();
                chosen.push(QuantisedLayer { layer: layer.clone(), divergence: group.divergence, ms });
            }
        }
        quantisation(&self.weights_sha256, precision, chosen, ranges)
    }

    fn possible_layers(&self) -> BTreeSet<String> {
        self.groups.iter().flat_map(|group| group.layers.iter().cloned()).collect()
    }

    /// The layers that are faster in int8, and the number format of the others with which the network is
    /// fastest.
    fn faster_layers(
        &mut self,
        observer: &mut dyn Observer,
    ) -> Result<(String, BTreeSet<String>), TrainError> {
        let experiment =
            Experiment::load(&RunDir::open(self.run)?.experiment())?.with_overrides(self.overrides)?;
        let has_bf16 = crate::device::open(&experiment.train)?.has_native_bf16;
        let precisions: &[&str] = if has_bf16 { &["f32", "bf16"] } else { &["f32"] };
        let all = self.possible_layers();
        let mut best: Option<Measured> = None;
        for precision in precisions {
            let [real, bytes] = self
                .measure(precision, [None, Some(&all)], observer)?
                .try_into()
                .map_err(|_| no_latency())?;
            let ms = compare_layers(&real, &bytes);
            let faster = |layer: &&String| ms.get(*layer).is_none_or(|[real, bytes]| bytes < real);
            let fewer: BTreeSet<String> = all.iter().filter(faster).cloned().collect();
            let [again] =
                self.measure(precision, [Some(&fewer)], observer)?.try_into().map_err(|_| no_latency())?;
            let candidates =
                [(BTreeSet::new(), real.ms_median), (all.clone(), bytes.ms_median), (fewer, again.ms_median)];
            for (layers, ms_median) in candidates {
                if best.as_ref().is_none_or(|best| ms_median < best.ms_median) {
                    let precision = (*precision).to_owned();
                    best = Some(Measured { precision, layers, ms_median, ms: ms.clone() });
                }
            }
        }
        let best = best.ok_or_else(no_latency)?;
        if best.layers.is_empty() {
            return Err(TrainError::Configuration {
                problem: "no layer is faster in int8 on this machine".to_owned(),
                hint: "leave out --int8, or use --int8=all if another machine runs the network".to_owned(),
            });
        }
        for layer in all.difference(&best.layers) {
            let [real, bytes] = best.ms.get(layer).copied().unwrap_or_default();
            let reason = format!("slower in int8: {bytes:.3} instead of {real:.3} ms");
            self.kept.push(KeptLayer { layer: layer.clone(), reason });
        }
        self.ms = best.ms;
        Ok((best.precision, best.layers))
    }

    /// Measures the network with each of these sets of layers in int8, in turn.
    fn measure<const N: usize>(
        &self,
        precision: &str,
        sets: [Option<&BTreeSet<String>>; N],
        observer: &mut dyn Observer,
    ) -> Result<Vec<BatchLatency>, TrainError> {
        self.check_stop()?;
        let warn = &mut |text: &str| observer.warn(text);
        let precision_key = ("train.precision".to_owned(), precision.to_owned());
        let overrides = [self.overrides, &[precision_key]].concat();
        let mut predictors = Vec::new();
        for layers in sets {
            let predictor = Predictor::from_run(self.run, CheckpointChoice::Newest, &overrides, warn)?;
            let quantisation = layers.map(|layers| self.with_layers(precision, layers));
            predictors.push(predictor.with_quantisation(quantisation));
        }
        let predictors: Vec<&Predictor> = predictors.iter().collect();
        let latencies = measure_latency(&predictors, &[1], LATENCY_RUNS, self.stop, warn)?;
        Ok(latencies.into_iter().filter_map(|mut latency| latency.batches.pop()).collect())
    }

    /// As many of the layers as lose at most the allowed points, those with the least divergence first.
    fn accurate_layers(
        mut self,
        precision: &str,
        layers: BTreeSet<String>,
        observer: &mut dyn Observer,
    ) -> Result<Quantisation, TrainError> {
        let divergence = |layer: &String| {
            let group = self.groups.iter().find(|group| group.layers.contains(layer));
            group.map_or(0.0, |group| group.divergence)
        };
        let mut order: Vec<String> = layers.into_iter().collect();
        order.sort_by(|one, other| divergence(one).total_cmp(&divergence(other)).then(one.cmp(other)));
        let real = self.accuracy(precision, None, observer)?;
        let lost = |selection: &Self, count: usize, observer: &mut dyn Observer| {
            let set: BTreeSet<String> = order[..count].iter().cloned().collect();
            let quantisation = selection.with_layers(precision, &set);
            Ok::<_, TrainError>(
                100.0 * (real - selection.accuracy(precision, Some(&quantisation), observer)?),
            )
        };
        let allowed = self.options.max_loss_points;
        let mut count = order.len();
        let all = lost(&self, count, observer)?;
        if all > allowed {
            observer.info(&format!(
                "with all these layers in int8, accuracy drops by {all:.2} points: some stay in {precision}"
            ));
            // The most layers, assuming that more layers lose more.
            let (mut fits, mut exceeds) = (0, count);
            while fits + 1 < exceeds {
                let middle = fits.midpoint(exceeds);
                if lost(&self, middle, observer)? > allowed { exceeds = middle } else { fits = middle }
            }
            count = fits;
        }
        for layer in &order[count..] {
            let reason = format!("left in {precision} to keep the drop of accuracy within {allowed} points");
            self.kept.push(KeptLayer { layer: layer.clone(), reason });
        }
        if count == 0 {
            return Err(TrainError::Configuration {
                problem: format!(
                    "even with only the least sensitive layer in int8, accuracy drops by more than {allowed} \
                     points"
                ),
                hint: format!("allow a larger drop with --keep; with all layers it is {all:.2} points"),
            });
        }
        let chosen = order[..count].iter().cloned().collect();
        let mut quantisation = self.with_layers(precision, &chosen);
        quantisation.kept = self.kept;
        Ok(quantisation)
    }

    /// Top-1 accuracy or mean IoU on the validation images.
    fn accuracy(
        &self,
        precision: &str,
        quantisation: Option<&Quantisation>,
        observer: &mut dyn Observer,
    ) -> Result<f64, TrainError> {
        self.check_stop()?;
        let warn = &mut |text: &str| observer.warn(text);
        let images = ImageSelection::default();
        let form = EvaluatedForm::Chosen(quantisation);
        let precision = ("train.precision".to_owned(), precision.to_owned());
        let overrides = [self.overrides, &[precision]].concat();
        let evaluated =
            evaluate_run_as(self.run, CheckpointChoice::Newest, &overrides, &images, None, form, warn)?;
        let measure = match &evaluated.scores.metrics {
            TaskMetrics::Classification(metrics) => metrics.top1,
            TaskMetrics::Segmentation(metrics) => metrics.miou,
        };
        Ok(measure.unwrap_or(0.0))
    }
}

/// A measured set of layers.
struct Measured {
    precision: String,
    layers: BTreeSet<String>,
    ms_median: f64,
    ms: BTreeMap<String, [f64; 2]>,
}

fn no_latency() -> TrainError {
    let problem = "the latency of the network was not measured".to_owned();
    TrainError::Configuration { problem, hint: "repeat the command".to_owned() }
}

/// Returns whether two ranges are about as wide.
fn is_similar(one: Range, other: Range) -> bool {
    let close = |one: f32, other: f32| (one - other).abs() <= SAME_RANGE * (other.abs().max(one.abs()));
    close(one.low, other.low) && close(one.high, other.high)
}

fn map_range(range: Range, method: RangeMethod) -> MapRange {
    let method = match method {
        RangeMethod::MinimumMaximum => "minimum and maximum",
        RangeMethod::Percentile => "percentile",
        RangeMethod::LeastSquares => "least squares",
    };
    MapRange { low: range.low, high: range.high, method: method.to_owned() }
}

fn plain_layer(layer: &str) -> QuantisedLayer {
    QuantisedLayer { layer: layer.to_owned(), divergence: 0.0, ms: None }
}

fn quantisation(
    weights_sha256: &str,
    precision: &str,
    layers: Vec<QuantisedLayer>,
    ranges: BTreeMap<String, MapRange>,
) -> Quantisation {
    Quantisation {
        weights_sha256: weights_sha256.to_owned(),
        precision: precision.to_owned(),
        layers,
        kept: Vec::new(),
        ranges,
    }
}

/// The milliseconds of each layer without and with int8. An int8 layer includes the conversion of its
/// input and what was fused with it; without int8 these are steps of their own.
fn compare_layers(real: &BatchLatency, bytes: &BatchLatency) -> BTreeMap<String, [f64; 2]> {
    let parts = |layer: &str| layer.split('+').map(str::to_owned).collect::<BTreeSet<String>>();
    let mut compared: BTreeMap<String, ([f64; 2], BTreeSet<String>)> = BTreeMap::new();
    for step in &bytes.steps {
        let Some(main) = step.layer.split('+').next() else { continue };
        let entry = compared.entry(main.to_owned()).or_default();
        entry.0[1] += step.ms;
        entry.1.extend(parts(&step.layer));
    }
    for step in &real.steps {
        let of_step = parts(&step.layer);
        let whole = compared.values_mut().find(|(_, layers)| of_step.is_subset(layers));
        if let Some((ms, _)) = whole {
            ms[0] += step.ms;
        }
    }
    compared.into_iter().map(|(layer, (ms, _))| (layer, ms)).collect()
}
