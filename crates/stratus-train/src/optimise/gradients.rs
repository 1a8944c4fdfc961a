//! The gradients of a trained network's parameters on batches of its training images.

use crate::compile::{FittedRun, KernelSelection, fit};
use crate::input::{BatchFormat, open_datasets, with_class_weights};
use crate::resolve::ResolvedProcess;
use crate::weights::session_state;
use crate::{Observer, TrainError, device};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stratus_data::Loader;
use stratus_engine::session::IterationScalars;
use stratus_engine::{Clock, Session};
use stratus_experiment::{Experiment, FakeQuantisation};
use stratus_graph::{Graph, ParameterKind};
use stratus_optimise::{Model, ModelError};

/// The learning rate of the step. A weight's change is rounded to the precision of the changed weight: with a
/// large rate, a power of two, that is the precision of the gradient itself.
const LEARNING_RATE: f32 = (1 << 20) as f32;

/// Calls `on_batch` with the gradients of the loss by parameter, for each of the first `batches` batches of
/// training images, at most those of an epoch, in the order and with the augmentation of the first epoch.
/// Every gradient is that of the same weights, `model`. `stop` ends it before the next batch.
///
/// # Errors
/// If the data or the device cannot be opened, a value is missing, a kernel or `on_batch` fails, or it was
/// stopped.
pub(super) fn for_each_gradient(
    experiment: &Experiment,
    model: &Model,
    batches: usize,
    stop: &AtomicBool,
    observer: &mut dyn Observer,
    mut on_batch: impl FnMut(&BTreeMap<String, Vec<f32>>) -> Result<(), TrainError>,
) -> Result<(), TrainError> {
    let Model { graph, values } = model;
    let warn = &mut |text: &str| observer.warn(text);
    let experiment = with_plain_step(experiment)?;
    let datasets = open_datasets(&experiment)?;
    let device = device::open(&experiment.train)?;
    let experiment = &*with_class_weights(&experiment, datasets.train.as_ref())?;
    let resolved = ResolvedProcess::new(experiment, datasets.train.as_ref(), graph, &device)?;
    let FittedRun { resolved, planned, .. } =
        fit(&resolved, graph, &device, &KernelSelection::Cached, None, warn)?;
    let mut compiled = planned.allocate(device.backend.as_ref())?;
    session_state::set_class_weights(&mut compiled.session, &resolved)?;
    let config = resolved.input().training(BatchFormat::from_plan(compiled.session.plan(compiled.ids.train)));
    let mut loader = Loader::new(Arc::clone(&datasets.train), config)?;
    let (session, ids) = (&mut compiled.session, compiled.ids);
    let mut clock = Clock::disabled(session.slots(ids.train));
    // The last batch of an epoch may be smaller, for which this program is not made.
    let available = (datasets.train.len() / resolved.settings().train.batch_size).max(1);
    if batches > available {
        observer.warn(&format!("an epoch has {available} whole batches: their gradients are used"));
    }
    for batch_index in 0..batches.min(available) {
        if stop.load(Ordering::Relaxed) {
            return Err(TrainError::Interrupted { activity: "computing gradients of channels" });
        }
        let Some(mut batch) = loader.next()? else { break };
        write_all(session, values)?;
        session_state::refresh(session, ids.refresh)?;
        session.set_iteration_scalars(IterationScalars {
            learning_rate: LEARNING_RATE,
            iteration: batch_index as u64,
            seed: experiment.train.seed,
        })?;
        let labels = bytemuck::cast_slice_mut(&mut batch.labels);
        session.run(ids.train, &mut batch.images, labels, &mut clock, 0)?;
        loader.recycle(batch);
        on_batch(&gradients(session, graph, values)?)?;
    }
    Ok(())
}

/// An experiment whose training step subtracts the gradients of the loss from the weights: plain gradient
/// descent in single precision, in one process.
fn with_plain_step(experiment: &Experiment) -> Result<Experiment, TrainError> {
    let mut plain = experiment.clone().with_overrides(&[
        ("optimiser.name", "sgd"),
        ("optimiser.momentum", "0"),
        ("optimiser.nesterov", "false"),
        ("optimiser.weight_decay", "0"),
        ("optimiser.bias_rate", "1"),
        ("train.precision", "f32"),
        ("train.parts", "1"),
        ("train.stages", "1"),
    ])?;
    plain.fake_quantisation = FakeQuantisation::default();
    plain.train.teacher = None;
    plain.train.clip_norm = None;
    plain.train.ema_decay = None;
    plain.train.deadline = None;
    plain.train.budget = None;
    Ok(plain)
}

/// Sets the parameters and running statistics of a session; its other values are zero.
fn write_all(session: &mut Session, values: &BTreeMap<String, Vec<f32>>) -> Result<(), TrainError> {
    let state: Vec<(String, usize)> =
        session.state().map(|value| (value.name.to_owned(), value.shape.iter().product())).collect();
    for (name, elements) in state {
        match values.get(&name) {
            Some(plain) => session.write(&name, plain)?,
            None => session.write(&name, &vec![0.0; elements])?,
        }
    }
    Ok(())
}

/// The gradients of a step that has subtracted [`LEARNING_RATE`] times of them.
fn gradients(
    session: &Session,
    graph: &Graph,
    before: &BTreeMap<String, Vec<f32>>,
) -> Result<BTreeMap<String, Vec<f32>>, TrainError> {
    let trained = graph.parameters.iter().filter(|parameter| parameter.kind == ParameterKind::Trained);
    trained
        .map(|parameter| {
            let name = &parameter.name;
            let missing = || ModelError::Missing { parameter: name.clone() };
            let before = before.get(name).ok_or_else(missing)?;
            let after = session.read(name)?;
            let difference =
                before.iter().zip(&after).map(|(before, after)| (before - after) / LEARNING_RATE);
            Ok((name.clone(), difference.collect()))
        })
        .collect()
}
