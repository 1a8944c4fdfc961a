//! Fine-tuning with fake quantisation, for networks that lose too much accuracy in int8: calibration chooses
//! layers and ranges, and the network is trained with these layers rounded as in int8.
//!
//! ```text
//! run ──calibrate──▶ layers, ranges ──optimise/fake_quantisation.json, train.fake_quantisation──▶ run::start
//!     ──quantise_run──▶ the layers that are accurate with the new weights and these ranges
//! ```
//!
//! The run's `experiment.toml` has all that its training needs, so it resumes with the same bits.

use super::fine_tuning::{FineTuning, check_fine_tuning, fine_tuning_experiment};
use super::quantise::layers_to_tune;
use super::{
    OptimiseRequest, Optimised, SourceRun, configuration_error, directory, recorded_request, resume,
    trained_model,
};
use crate::run::RunOptions;
use crate::weights::CheckpointChoice;
use crate::{Observer, TrainError, device};
use stratus_experiment::{Experiment, FakeQuantisation, FakeQuantisedLayer};
use stratus_run::RunDir;
use stratus_run::machine::Machine;
use stratus_run::quantisation::FakeQuantisationStart;

impl SourceRun<'_> {
    /// Fine-tunes the network with fake quantisation, or resumes that.
    pub(super) fn fine_tune_for_int8(
        &self,
        request: OptimiseRequest,
        options: &RunOptions,
        machine: Machine,
        observer: &mut dyn Observer,
    ) -> Result<Optimised, TrainError> {
        let out = directory(options)?;
        let Some(int8) = request.int8 else {
            return Err(configuration_error(
                "there is nothing to fine-tune for: --epochs needs --int8, --prune or --target-ms",
                "add one of them",
            ));
        };
        let weights = request.weights.sha256.clone();
        let check = |run: &RunDir| check_record(run, &weights);
        if RunDir::is_run(out) {
            return resume(request, check, options, observer);
        }
        RunDir::check_creatable(out)?;
        let mut tuned = fine_tuning_experiment(&self.experiment, self.epochs, &request, out)?;
        let max_weight = max_int8_weight(&tuned)?;
        let model = trained_model(&self.trained)?;
        check_fine_tuning(&tuned, &model.graph)?;
        // The same checkpoint by its iteration: `best` may change.
        let checkpoint = CheckpointChoice::AfterIteration(self.trained.checkpoint.state.iteration);
        let layers = layers_to_tune(self.path, checkpoint, int8, &request.set, &options.stop, observer)?;
        let names = layers.inputs.iter().map(|(layer, range)| {
            let layer = layer.clone();
            FakeQuantisedLayer { layer, low: range.low, high: range.high }.to_string()
        });
        tuned.fake_quantisation =
            FakeQuantisation { layers: names.collect(), max_weight: max_weight.unsigned_abs().into() };
        // Checked with the other keys: nothing is changed.
        let tuned = tuned.with_overrides::<&str, &str>(&[])?;
        let count = tuned.fake_quantisation.layers.len();
        observer.info(&format!("fine-tuning with fake quantisation of {count} layers"));
        let mut record = layers.start;
        record.quantisation.weights_sha256.clone_from(&request.weights.sha256);
        let start = FineTuning { request: &request, tuned: &tuned, start: &model, trained: &self.trained };
        let write = |run: &RunDir| Ok(record.write(&run.optimise_fake_quantisation())?);
        match start.begin(write, options, machine, observer)? {
            Some(outcome) => Ok(Optimised { outcome, request }),
            None => resume(recorded_request(&RunDir::open(out)?, &request)?, check, options, observer),
        }
    }
}

/// Checks that a run has the record of a fine-tuning of these weights. The layers are chosen with it at the
/// end: it must be readable before hours of training.
fn check_record(run: &RunDir, weights_sha256: &str) -> Result<(), TrainError> {
    let path = run.optimise_fake_quantisation();
    let problem = match FakeQuantisationStart::read(&path)? {
        Some(known) if known.quantisation.weights_sha256 == weights_sha256 => return Ok(()),
        Some(_) => "has the ranges of other weights than those that the run was made from",
        None => "is missing",
    };
    let problem = format!("{} {problem}", path.display());
    Err(configuration_error(&problem, "restore the file, or choose another directory with --out"))
}

/// The largest magnitude of weights in int8 on the device of an experiment.
///
/// # Errors
/// If it does not run in int8, or the experiment has pipeline stages.
fn max_int8_weight(tuned: &Experiment) -> Result<i8, TrainError> {
    if tuned.train.stages > 1 {
        return Err(configuration_error(
            &format!("train.stages = {} cannot be combined with fake quantisation", tuned.train.stages),
            "train it without stages: --set train.stages=1",
        ));
    }
    let device = device::open(&tuned.train)?;
    device.backend.max_int8_weight().filter(|_| !device.is_accelerator).ok_or_else(|| {
        let problem = format!("int8 is not supported on {}", device.backend.describe());
        configuration_error(&problem, "run it on the CPU with `--device cpu`")
    })
}
