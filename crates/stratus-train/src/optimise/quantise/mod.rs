//! Chooses which layers of a trained network run in int8 in inference, and with which ranges.
//!
//! ```text
//! training images ──run──▶ histograms of maps ──by three methods──▶ ranges
//! each map that layers read, alone in int8 ──divergence of predictions──▶ its range, its cost
//! the network with and without int8 ──measure──▶ layers that are faster
//! validation images ──accuracy lost──▶ layers that may run in int8
//! ```
//!
//! A fine-tuning with fake quantisation has fixed layers and ranges: after it, only the accuracy is measured.

mod calibration;
mod timing;
mod tuned;

use crate::compile::uint8_scales;
use crate::evaluate::{EvaluatedForm, ImageSelection, evaluate_run_as};
use crate::infer::Predictor;
use crate::weights::CheckpointChoice;
use crate::{Observer, TrainError};
use calibration::{Calibration, Logits};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use stratus_engine::Program;
use stratus_engine::passes::quantise::{Quantisable, quantisable};
use stratus_optimise::quantise::{Histogram, Range, RangeMethod};
use stratus_run::RunDir;
use stratus_run::csv::Task;
use stratus_run::quantisation::{FakeQuantisationStart, KeptLayer, MapRange, Quantisation, QuantisedLayer};
pub(super) use tuned::layers_to_tune;

/// The number of images on which predictions are compared, of classifiers and of segmentation networks.
const COMPARED_IMAGES: [usize; 2] = [32, 4];

/// Ranges that differ by less than this share are not both tried.
const SAME_RANGE: f32 = 0.02;

/// Options of [`quantise_run`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuantiseOptions {
    /// The number of training images that the ranges follow from.
    pub images: usize,
    /// The points of the score that may be lost: hundredths of accuracy, mean IoU, mean average precision or
    /// R².
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
    /// The checksum of the weights.
    weights_sha256: String,
    options: QuantiseOptions,
    overrides: &'a [(String, String)],
    checkpoint: CheckpointChoice,
    stop: &'a AtomicBool,
    groups: Vec<Group>,
    kept: Vec<KeptLayer>,
    /// The ranges of maps that layers only add or write.
    other_ranges: BTreeMap<String, MapRange>,
    /// Milliseconds of each layer without and with int8.
    ms: BTreeMap<String, [f64; 2]>,
}

/// Chooses the layers of a run's network that run in int8, and records them in the run; returns the recorded
/// ones, if they were chosen for its weights. `overrides` are keys of the experiment, such as where its data
/// are.
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
    let warn = &mut |text: &str| observer.warn(text);
    let predictor = Predictor::from_run_as(run.path(), CheckpointChoice::Newest, overrides, None, warn)?;
    let recorded = Quantisation::read(&run.optimise_quantisation())?;
    // After further training of the run its weights are others.
    if let Some(recorded) = recorded.filter(|recorded| recorded.weights_sha256 == predictor.weights_sha256())
    {
        return Ok(recorded);
    }
    let tuned = FakeQuantisationStart::read(&run.optimise_fake_quantisation())?;
    let newest = CheckpointChoice::Newest;
    let quantisation = match tuned {
        Some(tuned) => {
            let selection = Selection::new(run.path(), newest, options, overrides, stop);
            selection.choose_tuned(&predictor, tuned, observer)?
        }
        None => choose_quantisation((run.path(), newest), &predictor, options, overrides, stop, observer)?,
    };
    quantisation.write(&run.optimise_quantisation())?;
    Ok(quantisation)
}

/// Chooses the layers that run in int8 of the network of a run with one of its checkpoints.
///
/// # Errors
/// As [`quantise_run`], except that nothing is written.
pub(super) fn choose_quantisation(
    (run, checkpoint): (&Path, CheckpointChoice),
    predictor: &Predictor,
    options: QuantiseOptions,
    overrides: &[(String, String)],
    stop: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<Quantisation, TrainError> {
    let selection = Selection::new(run, checkpoint, options, overrides, stop);
    let (selection, precision, layers) = selection.calibrated(predictor, observer)?;
    let real = selection.accuracy(&precision, None, observer)?;
    selection.accurate_layers(&precision, layers, real, observer)
}

impl<'a> Selection<'a> {
    fn new(
        run: &'a Path,
        checkpoint: CheckpointChoice,
        options: QuantiseOptions,
        overrides: &'a [(String, String)],
        stop: &'a AtomicBool,
    ) -> Self {
        Self {
            run,
            weights_sha256: String::new(),
            options,
            overrides,
            checkpoint,
            stop,
            groups: Vec::new(),
            kept: Vec::new(),
            other_ranges: BTreeMap::new(),
            ms: BTreeMap::new(),
        }
    }

    /// Returns the selection with ranges, the number format of the layers that stay as they are, and the
    /// layers that are faster in int8, or all that can.
    fn calibrated(
        mut self,
        predictor: &Predictor,
        observer: &mut dyn Observer,
    ) -> Result<(Self, String, BTreeSet<String>), TrainError> {
        self.weights_sha256 = predictor.weights_sha256().to_owned();
        let model = predictor.folded_model()?;
        let compared = compared_images(predictor);
        let mut calibration =
            Calibration::new(predictor.experiment(), &model, self.options.images, observer)?;
        observer.info(&format!("ranges of maps on {} training images", calibration.images()));
        let histograms = calibration.histograms(|| self.check_stop())?;
        let program = calibration.program()?;
        self.find_groups(&program, &histograms)?;
        let real = calibration.logits(None, compared)?;
        observer.info(&format!("predictions with each of {} maps in int8", self.groups.len()));
        let candidates = |input: &str| {
            let histogram = histograms.get(input).into_iter();
            let ranges = histogram.flat_map(|histogram| {
                RangeMethod::ALL.map(|method| map_range(histogram.range(method), method))
            });
            ranges.collect()
        };
        self.choose_ranges(&program, &mut calibration, &candidates, &real, compared)?;
        drop(calibration);
        let (precision, layers) = if self.options.all_layers {
            // A run records `bf16` or `f32`, or `f16` if it was trained on a GPU.
            let recorded = predictor.experiment().train.precision.as_str();
            let precision = if recorded == "bf16" { "bf16" } else { "f32" };
            (precision.to_owned(), self.possible_layers())
        } else {
            observer.info("time of each layer with and without int8");
            self.faster_layers(observer)?
        };
        Ok((self, precision, layers))
    }
}

/// The number of images on which predictions are compared.
fn compared_images(predictor: &Predictor) -> usize {
    COMPARED_IMAGES[usize::from(predictor.task() == Task::Segmentation)]
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
            return Err(TrainError::NoInt8Layer {
                problem: format!(
                    "no layer of the network can run in int8: {}",
                    reasons.into_iter().collect::<Vec<_>>().join("; ")
                ),
                hint: "leave out --int8".to_owned(),
            });
        }
        Ok(())
    }

    /// Chooses the range of each map among the candidates, by the predictions with only this map in int8.
    fn choose_ranges(
        &mut self,
        program: &Program,
        calibration: &mut Calibration<'_>,
        candidates: &dyn Fn(&str) -> Vec<MapRange>,
        real: &Logits,
        compared: usize,
    ) -> Result<(), TrainError> {
        for index in 0..self.groups.len() {
            let Group { input, layers, .. } = &self.groups[index];
            let mut tried: Vec<(MapRange, f64)> = Vec::new();
            for range in candidates(input) {
                self.check_stop()?;
                if tried.iter().any(|(other, _)| is_similar(other, &range)) {
                    continue;
                }
                let ranges = BTreeMap::from([(input.clone(), range.clone())]);
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
                tried.push((range, divergence));
            }
            let best = tried.into_iter().min_by(|one, other| one.1.total_cmp(&other.1));
            let group = &mut self.groups[index];
            match best {
                Some((range, divergence)) if divergence.is_finite() => {
                    (group.range, group.divergence) = (range, divergence);
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

    /// The most layers that together lose at most the allowed points of the accuracy `real`, the least
    /// sensitive first.
    fn accurate_layers(
        mut self,
        precision: &str,
        layers: BTreeSet<String>,
        real: f64,
        observer: &mut dyn Observer,
    ) -> Result<Quantisation, TrainError> {
        let divergence = |layer: &String| {
            let group = self.groups.iter().find(|group| group.layers.contains(layer));
            group.map_or(0.0, |group| group.divergence)
        };
        let mut order: Vec<String> = layers.into_iter().collect();
        order.sort_by(|one, other| divergence(one).total_cmp(&divergence(other)).then(one.cmp(other)));
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
            let advice = self.fine_tuning_advice()?;
            observer.info(&format!(
                "with all these layers in int8, accuracy drops by {all:.2} points: some stay in \
                 {precision}{advice}"
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
            return Err(TrainError::NoInt8Layer {
                problem: format!(
                    "even with only the least sensitive layer in int8, accuracy drops by more than {allowed} \
                     points"
                ),
                hint: format!(
                    "allow a larger drop with --keep; with all layers it is {all:.2} points{}",
                    self.fine_tuning_advice()?
                ),
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
        let evaluated = evaluate_run_as(self.run, self.checkpoint, &overrides, &images, None, form, warn)?;
        evaluated.scores.metrics.score().ok_or_else(|| TrainError::Configuration {
            problem: "the validation images have no labels, so accuracy cannot be measured".to_owned(),
            hint: "set data.path to images with labels".to_owned(),
        })
    }
}

/// Returns whether two ranges are about as wide.
fn is_similar(one: &MapRange, other: &MapRange) -> bool {
    let close = |one: f32, other: f32| (one - other).abs() <= SAME_RANGE * (other.abs().max(one.abs()));
    close(one.low, other.low) && close(one.high, other.high)
}

fn map_range(range: Range, method: RangeMethod) -> MapRange {
    MapRange { low: range.low, high: range.high, method: method.name().to_owned() }
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
