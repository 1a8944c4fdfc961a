//! Converts the state of a session to the tensors of a checkpoint, and back.

use super::batches_tracked;
use crate::compile::CompiledRun;
use crate::run::pipeline::{PipelineState, RemoteValues};
use crate::{ResolvedProcess, TrainError};
use std::collections::{BTreeMap, HashMap};
use std::io;
use stratus_engine::ops::CLASS_WEIGHTS;
use stratus_engine::passes::teacher::teacher_name;
use stratus_engine::program::OptimiserState;
use stratus_engine::session::{StateValue, View};
use stratus_engine::{Clock, Role, Session};
use stratus_exchange::WorkerGroup;
use stratus_graph::Graph;
use stratus_optimise::ModelError;
use stratus_run::checkpoint::{Checkpoint, Tensor, TensorRef, Tensors, Values};
use stratus_run::csv::Task;
use stratus_weights::{ExternalValues, ValuesRef};

/// The persistent values of a session, with the names and shapes of PyTorch. The values stay in the session,
/// since a copy could double the memory of a large network.
pub(crate) struct Snapshot<'a> {
    values: Vec<SnapshotValue<'a>>,
    /// PyTorch's `num_batches_tracked` of each batch norm: its training iterations.
    tracked: Vec<Tensor>,
}

/// A value of the session.
#[derive(Debug)]
struct SnapshotValue<'a> {
    described: StateValue<'a>,
    /// The shape of the network's parameter; that of the session may have additional extents of 1.
    shape: &'a [usize],
    source: ValueSource<'a>,
}

/// The source of a value's elements.
#[derive(Debug)]
enum ValueSource<'a> {
    /// In this session.
    Local(View<'a>),
    /// In another pipeline stage.
    Remote(RemoteValues<'a>),
}

impl ExternalValues for SnapshotValue<'_> {
    fn count(&self) -> usize {
        match &self.source {
            ValueSource::Local(view) => view.len(),
            ValueSource::Remote(remote) => remote.count(),
        }
    }

    fn read(&self, first: usize, out: &mut [f32]) -> io::Result<()> {
        match &self.source {
            ValueSource::Local(view) => {
                view.read(first, out);
                Ok(())
            }
            ValueSource::Remote(remote) => remote.read(first, out),
        }
    }
}

impl<'a> Snapshot<'a> {
    /// A snapshot of a session, or of all pipeline stages, one of which has this session.
    pub fn new(
        compiled: &'a CompiledRun,
        pipeline: Option<(&'a PipelineState, &'a WorkerGroup)>,
        graph: &'a Graph,
        iterations: u64,
    ) -> Result<Self, TrainError> {
        let session = &compiled.session;
        let shapes: HashMap<&str, &'a [usize]> = graph
            .parameters
            .iter()
            .map(|parameter| (parameter.name.as_str(), parameter.shape.as_slice()))
            .collect();
        let value = |(described, remote): (StateValue<'a>, Option<RemoteValues<'a>>)| {
            let shape = shapes.get(key(&described)).copied().unwrap_or(described.shape);
            let source = match remote {
                Some(remote) => ValueSource::Remote(remote),
                None => ValueSource::Local(session.view(described.name)?),
            };
            Ok(SnapshotValue { described, shape, source })
        };
        let values: Result<_, TrainError> = match pipeline {
            Some((pipeline, workers)) => pipeline.values(workers).map(value).collect(),
            None => session.state().map(|described| value((described, None))).collect(),
        };
        let values = values?;
        Ok(Self { values, tracked: batches_tracked(graph, iterations).collect() })
    }

    /// The tensors of a checkpoint. Values without an average, such as frozen parameters, are also among the
    /// averaged weights.
    pub fn tensors(&self) -> Tensors<'_> {
        let with_role = |is: fn(Role) -> bool| {
            self.values.iter().filter(move |value| is(value.described.role)).map(SnapshotValue::tensor)
        };
        let tracked = || self.tracked.iter().map(Tensor::as_ref);
        let weights: Vec<_> =
            with_role(|role| !matches!(role, Role::OptimiserState | Role::Average)).collect();
        let averages: BTreeMap<&str, _> =
            with_role(|role| role == Role::Average).map(|tensor| (tensor.name, tensor)).collect();
        let averaged = (!averages.is_empty()).then(|| {
            let averaged = weights.iter().map(|tensor| *averages.get(tensor.name).unwrap_or(tensor));
            averaged.chain(tracked()).collect()
        });
        let weights = weights.into_iter().chain(tracked()).collect();
        Tensors { weights, optimizer: with_role(|role| role == Role::OptimiserState).collect(), averaged }
    }
}

impl SnapshotValue<'_> {
    fn tensor(&self) -> TensorRef<'_> {
        let (name, shape) = (key(&self.described), self.shape);
        TensorRef { name, shape, values: ValuesRef::External(self) }
    }
}

/// The name of a value in a checkpoint. Momentum and averages have their parameter's name, since optimiser
/// state and averages are stored in separate files.
fn key<'a>(value: &StateValue<'a>) -> &'a str {
    match (value.optimiser_state, value.average_of) {
        (Some((parameter, OptimiserState::Momentum)), _) => parameter,
        (_, Some(averaged)) => averaged,
        _ => value.name,
    }
}

/// The purpose of restoring a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestoreMode {
    /// Resume training: restore everything.
    Training,
    /// Evaluate: restore only the weights, averaged ones if there are any.
    Evaluation,
}

/// Restores a session from a checkpoint. `copies` is the session's program that refreshes copies of weights.
pub(crate) fn restore(
    session: &mut Session,
    copies: usize,
    checkpoint: &Checkpoint,
    mode: RestoreMode,
) -> Result<(), TrainError> {
    let problem = |problem: String| TrainError::Checkpoint {
        checkpoint: checkpoint.path.display().to_string(),
        problem,
    };
    let values: Vec<(String, String, Vec<usize>, Role)> = session
        .state()
        .map(|value| (value.name.to_owned(), key(&value).to_owned(), value.shape.to_vec(), value.role))
        .collect();
    for (name, key, shape, role) in values {
        let list = match (role, mode) {
            (Role::OptimiserState, RestoreMode::Training) => &checkpoint.optimizer,
            (Role::Average, RestoreMode::Training) => checkpoint.averaged.as_deref().unwrap_or_default(),
            (Role::OptimiserState | Role::Average, RestoreMode::Evaluation) => continue,
            (_, RestoreMode::Training) => &checkpoint.weights,
            (_, RestoreMode::Evaluation) => checkpoint.evaluation_weights(),
        };
        let tensor = list
            .iter()
            .find(|tensor| tensor.name == key)
            .ok_or_else(|| problem(format!("it has no `{key}`")))?;
        let Values::F32(values) = &tensor.values else {
            return Err(problem(format!("its `{key}` is not f32")));
        };
        let ones = |shape: &[usize]| shape.iter().rev().take_while(|&&extent| extent == 1).count();
        let without_ones = |shape: &'_ [usize]| shape[..shape.len() - ones(shape)].to_vec();
        if without_ones(&tensor.shape) != without_ones(&shape) {
            return Err(problem(format!(
                "its `{key}` has shape {:?}, the network's {shape:?}",
                tensor.shape
            )));
        }
        session.write(&name, values)?;
    }
    refresh(session, copies)
}

/// The names of the averaged values, each with the name of its average.
fn averages(session: &Session) -> Vec<[String; 2]> {
    let pair = |value: StateValue<'_>| Some([value.average_of?.to_owned(), value.name.to_owned()]);
    session.state().filter_map(pair).collect()
}

/// Initialises averages with the current weights.
pub(crate) fn initialise_averages(session: &mut Session) -> Result<(), TrainError> {
    for [value, average] in averages(session) {
        let first = session.read(&value)?;
        session.write(&average, &first)?;
    }
    Ok(())
}

/// Swaps the weights and their averages, if there are any: once to evaluate the averages, and once to restore
/// the weights.
pub(crate) fn swap_averages(compiled: &mut CompiledRun) -> Result<(), TrainError> {
    let CompiledRun { session, ids, .. } = compiled;
    let averages = averages(session);
    if averages.is_empty() {
        return Ok(());
    }
    for [value, average] in averages {
        session.swap(&value, &average)?;
    }
    refresh(session, ids.refresh)
}

/// Sets the weights of classes, labels or targets in the training loss, if there are any. Checkpoints do not
/// store them.
pub(crate) fn set_class_weights(session: &mut Session, resolved: &ResolvedProcess) -> Result<(), TrainError> {
    let train = &resolved.settings().train;
    let (weights, positive) = (&train.class_weights, &train.positive_weights);
    let Some(count) = weights.as_ref().or(positive.as_ref()).map(Vec::len) else { return Ok(()) };
    let row = |weights: &Option<Vec<f64>>| -> Vec<f32> {
        weights.as_ref().map_or_else(|| vec![1.0; count], |all| all.iter().map(|&one| one as f32).collect())
    };
    let values = match resolved.task() {
        Task::Classification | Task::Segmentation => row(weights),
        // The weights of labels or targets, then those of the images to which a label applies.
        Task::MultiLabel | Task::Regression => [row(weights), row(positive)].concat(),
    };
    Ok(session.write(CLASS_WEIGHTS, &values)?)
}

/// Sets the values of the teacher, if there is one. Checkpoints do not store them.
pub(crate) fn set_teacher(compiled: &mut CompiledRun, resolved: &ResolvedProcess) -> Result<(), TrainError> {
    let Some(teacher) = resolved.teacher() else { return Ok(()) };
    let CompiledRun { session, ids, .. } = compiled;
    let named: HashMap<String, &Vec<f32>> =
        teacher.model().values.iter().map(|(name, values)| (teacher_name(name), values)).collect();
    let values = session.plan(ids.train).program.values.iter();
    let names: Vec<String> =
        values.filter(|value| value.role == Role::Teacher).map(|value| value.name.clone()).collect();
    for name in names {
        let values = named.get(&name).ok_or_else(|| ModelError::Missing { parameter: name.clone() })?;
        session.write(&name, values)?;
    }
    Ok(())
}

/// Runs `program`, which copies the f32 master weights to the bf16 or f16 weights that kernels read.
pub(crate) fn refresh(session: &mut Session, program: usize) -> Result<(), TrainError> {
    let mut clock = Clock::disabled(session.slots(program));
    Ok(session.run(program, &mut [], &mut [], &mut clock, 0)?)
}
