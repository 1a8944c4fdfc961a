//! Chooses layers and ranges before a fine-tuning with fake quantisation, and after it those of these layers
//! that are accurate.

use super::{Calibration, Group, QuantiseOptions, Selection, compared_images};
use crate::compile::uint8_scales;
use crate::infer::Predictor;
use crate::weights::CheckpointChoice;
use crate::{Observer, TrainError};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use stratus_base::text::shell_path;
use stratus_engine::passes::quantise::{Obstacle, quantisable};
use stratus_run::RunDir;
use stratus_run::quantisation::{FakeQuantisationStart, KeptLayer, MapRange, Quantisation};
use stratus_run::summary::Summary;

/// The layers that run in int8 after a fine-tuning of a run, with the ranges of the maps that they read.
pub(in crate::optimise) struct TunedLayers {
    /// The layers and all ranges, and the accuracy without int8.
    pub start: FakeQuantisationStart,
    /// The range of the input of each layer.
    pub inputs: BTreeMap<String, MapRange>,
}

/// Chooses the layers and ranges for a fine-tuning of a run: those that are faster in int8, or all that can,
/// whatever accuracy they lose now.
///
/// # Errors
/// As [`quantise_run`](super::quantise_run).
pub(in crate::optimise) fn layers_to_tune(
    run: &Path,
    checkpoint: CheckpointChoice,
    options: QuantiseOptions,
    overrides: &[(String, String)],
    stop: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<TunedLayers, TrainError> {
    let warn = &mut |text: &str| observer.warn(text);
    let predictor = Predictor::from_run_as(run, checkpoint, overrides, None, warn)?;
    let selection = Selection::new(run, checkpoint, options, overrides, stop);
    let (selection, precision, layers) = selection.calibrated(&predictor, observer)?;
    let mut inputs = BTreeMap::new();
    for Group { layers: of_group, range, .. } in &selection.groups {
        let tuned = of_group.iter().filter(|layer| layers.contains(*layer));
        inputs.extend(tuned.map(|layer| (layer.clone(), range.clone())));
    }
    let mut quantisation = selection.with_layers(&precision, &layers);
    let score = selection.accuracy(&precision, None, observer)?;
    quantisation.kept = selection.kept;
    Ok(TunedLayers { start: FakeQuantisationStart { score, quantisation }, inputs })
}

impl Selection<'_> {
    /// Chooses among the layers of a fine-tuning, with its ranges, by the accuracy of the weights after it.
    /// That is compared with the accuracy of the network before the fine-tuning, without int8: the new
    /// weights are made for int8, and may be worse without it.
    pub(super) fn choose_tuned(
        mut self,
        predictor: &Predictor,
        tuned: FakeQuantisationStart,
        observer: &mut dyn Observer,
    ) -> Result<Quantisation, TrainError> {
        let FakeQuantisationStart { score, quantisation: tuned } = tuned;
        self.weights_sha256 = predictor.weights_sha256().to_owned();
        let model = predictor.folded_model()?;
        let compared = compared_images(predictor);
        let mut calibration = Calibration::new(predictor.experiment(), &model, compared, observer)?;
        let program = calibration.program()?;
        let scales = uint8_scales(&tuned);
        let is_tuned = |layer: &str| tuned.layers.iter().any(|known| known.layer == layer);
        for found in quantisable(&program, &scales).into_iter().filter(|found| is_tuned(&found.layer)) {
            let range = tuned.ranges.get(&found.input).filter(|_| found.obstacle.is_none());
            let Some(range) = range.cloned() else {
                let reason = found.obstacle.unwrap_or(Obstacle::UnknownRange).reason();
                self.kept.push(KeptLayer { layer: found.layer, reason: reason.to_owned() });
                continue;
            };
            match self.groups.iter_mut().find(|group| group.input == found.input) {
                Some(group) => group.layers.push(found.layer),
                None => self.groups.push(Group {
                    input: found.input,
                    layers: vec![found.layer],
                    range,
                    divergence: 0.0,
                }),
            }
        }
        self.ms = tuned.layers.iter().filter_map(|known| Some((known.layer.clone(), known.ms?))).collect();
        self.kept.extend(tuned.kept);
        self.other_ranges = tuned.ranges;
        observer.info(&format!("predictions with each of {} maps in int8", self.groups.len()));
        let real = calibration.logits(None, compared)?;
        let ranges = self.other_ranges.clone();
        let candidates = |input: &str| ranges.get(input).cloned().into_iter().collect();
        self.choose_ranges(&program, &mut calibration, &candidates, &real, compared)?;
        drop(calibration);
        let layers = self.possible_layers();
        if layers.is_empty() {
            return Err(TrainError::Configuration {
                problem: "after the fine-tuning no layer can run in int8: the predictions are not finite"
                    .to_owned(),
                hint: "fine-tune with a smaller learning rate, --set optimiser.learning_rate=".to_owned(),
            });
        }
        self.accurate_layers(&tuned.precision, layers, score, observer)
    }

    /// The command that fine-tunes the run with fake quantisation, as the end of a message.
    pub(super) fn fine_tuning_advice(&self) -> Result<String, TrainError> {
        let run = RunDir::open(self.run)?;
        if run.optimise_fake_quantisation().exists() {
            return Ok("; more --epochs may recover more, with another --out".to_owned());
        }
        let epochs = (Summary::read(&run.summary())?.epochs / 5).max(1);
        let (run, layers) = (shell_path(self.run), if self.options.all_layers { "=all" } else { "" });
        Ok(format!(
            "; `stratus optimise {run} --int8{layers} --epochs {epochs}` with the other options of this \
             command fine-tunes it for int8"
        ))
    }
}
