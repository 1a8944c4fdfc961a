//! Fine-tuning with fake quantisation, for networks that lose too much accuracy in int8: calibration chooses
//! layers and ranges, and the network is trained with these layers rounded as in int8.
//!
//! ```text
//! run ──calibrate──▶ layers, ranges ──optimise/fake_quantisation.json, train.fake_quantisation──▶ run::start
//!     ──quantise_run──▶ the layers that are accurate with the new weights and these ranges
//! ```
//!
//! The run's `experiment.toml` has all that its training needs, so it resumes with the same bits.

use super::quantise::layers_to_tune;
use super::{
    OptimiseRequest, StartFiles, check_fine_tuning, configuration_error, fine_tuning_experiment,
    recorded_request, start_directory, trained_model,
};
use crate::run::{self, RunOptions, RunOutcome};
use crate::weights::{CheckpointChoice, TrainedNetwork};
use crate::{Observer, TrainError, device};
use std::path::Path;
use stratus_experiment::{Experiment, FakeQuantisation, FakeQuantisedLayer};
use stratus_optimise::Model;
use stratus_run::RunDir;
use stratus_run::lock::{LockState, lock_state};
use stratus_run::machine::Machine;
use stratus_run::quantisation::FakeQuantisation as FakeQuantisationRecord;

/// The run that the fine-tuning starts from.
pub(super) struct FineTuningStart<'a> {
    /// Its directory.
    pub run: &'a Path,
    /// Its experiment.
    pub experiment: Experiment,
    /// Its network.
    pub trained: TrainedNetwork,
    /// The epochs that it was trained.
    pub trained_epochs: u64,
}

impl FineTuningStart<'_> {
    /// Fine-tunes its network in the directory of `options`, or resumes that.
    pub fn fine_tune(
        &self,
        request: &OptimiseRequest,
        options: &RunOptions,
        machine: Machine,
        observer: &mut dyn Observer,
    ) -> Result<RunOutcome, TrainError> {
        let (Some(out), Some(int8)) = (&options.out, request.int8) else {
            return Err(configuration_error(
                "there is nothing to fine-tune for: --epochs needs --int8, --prune or --target-ms",
                "add one of them",
            ));
        };
        if RunDir::is_run(out) {
            return resume(out, request, options, observer);
        }
        RunDir::check_creatable(out)?;
        let mut tuned = fine_tuning_experiment(&self.experiment, self.trained_epochs, request, out)?;
        let max_weight = max_int8_weight(&tuned)?;
        let model = trained_model(&self.trained)?;
        check_fine_tuning(&tuned, &model.graph)?;
        // The same checkpoint by its iteration: `best` may change.
        let checkpoint = CheckpointChoice::AfterIteration(self.trained.checkpoint.state.iteration);
        let layers = layers_to_tune(self.run, checkpoint, int8, &request.set, &options.stop, observer)?;
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
        let mut start = layers.start;
        start.quantisation.weights_sha256.clone_from(&request.weights.sha256);
        let remains = StartFiles::before(out);
        match self.write_start(out, request, &start, &model) {
            // Another process ran the same command in the meantime.
            Err(_) if RunDir::is_run(out) && lock_state(out)? == LockState::Free => {
                return resume(out, request, options, observer);
            }
            written => written?,
        }
        let started = run::start(&tuned, options, machine, observer);
        if started.is_err() {
            remains.remove();
        }
        started
    }

    /// Writes the directory `optimise` of a new run: the request, the network, its layers and ranges.
    fn write_start(
        &self,
        out: &Path,
        request: &OptimiseRequest,
        start: &FakeQuantisationRecord,
        model: &Model,
    ) -> Result<(), TrainError> {
        let (target, _lock) = start_directory(out, request, model, &self.trained)?;
        Ok(start.write(&target.optimise_fake_quantisation())?)
    }
}

/// Resumes the run of the same request, or does nothing if it is complete.
fn resume(
    out: &Path,
    request: &OptimiseRequest,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<RunOutcome, TrainError> {
    let run = RunDir::open(out)?;
    recorded_request(&run, request)?;
    // The layers are chosen with it at the end: it must be readable before hours of training.
    let path = run.optimise_fake_quantisation();
    let problem = match FakeQuantisationRecord::read(&path)? {
        Some(known) if known.quantisation.weights_sha256 == request.weights.sha256 => {
            return run::resume(out, &RunOptions { out: None, ..options.clone() }, observer);
        }
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
