//! The state of a session as tensors of a checkpoint, and back.

use super::batches_tracked;
use crate::compile::CompiledRun;
use crate::run::pipeline::{RemoteValues, StagedState};
use crate::{Resolved, TrainError};
use std::collections::{BTreeMap, HashMap};
use std::io;
use stratus_engine::ops::CLASS_WEIGHTS;
use stratus_engine::program::OptimiserState;
use stratus_engine::session::{StateValue, View};
use stratus_engine::{Clock, Role, Session};
use stratus_exchange::Workers;
use stratus_graph::Graph;
use stratus_run::checkpoint::{Checkpoint, Tensor, TensorRef, Tensors, Values};
use stratus_weights::{ExternalValues, ValuesRef};

/// Everything that outlives an iteration, under PyTorch's names and in its shapes. The values stay in the
/// session: a copy could double the memory of a large network.
pub(crate) struct Snapshot<'a> {
    values: Vec<Persistent<'a>>,
    /// PyTorch's `num_batches_tracked` of each batch norm: the iterations it was trained for.
    tracked: Vec<Tensor>,
}

/// A value of the session.
#[derive(Debug)]
struct Persistent<'a> {
    described: StateValue<'a>,
    /// That of the network's parameter; kernels may see one with more extents of 1.
    shape: &'a [usize],
    numbers: Numbers<'a>,
}

/// Where the numbers of a value are.
#[derive(Debug)]
enum Numbers<'a> {
    Here(View<'a>),
    /// In another stage of the pipeline.
    There(RemoteValues<'a>),
}

impl ExternalValues for Persistent<'_> {
    fn count(&self) -> usize {
        match &self.numbers {
            Numbers::Here(view) => view.len(),
            Numbers::There(remote) => remote.count(),
        }
    }

    fn read(&self, first: usize, out: &mut [f32]) -> io::Result<()> {
        match &self.numbers {
            Numbers::Here(view) => {
                view.read(first, out);
                Ok(())
            }
            Numbers::There(remote) => remote.read(first, out),
        }
    }
}

impl<'a> Snapshot<'a> {
    /// Of a session, or of all stages of a pipeline, of which this one has the session.
    pub fn new(
        compiled: &'a CompiledRun,
        staged: Option<(&'a StagedState, &'a Workers)>,
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
            let numbers = match remote {
                Some(remote) => Numbers::There(remote),
                None => Numbers::Here(session.view(described.name)?),
            };
            Ok(Persistent { described, shape, numbers })
        };
        let values: Result<_, TrainError> = match staged {
            Some((staged, workers)) => staged.values(workers).map(value).collect(),
            None => session.state().map(|described| value((described, None))).collect(),
        };
        let values = values?;
        Ok(Self { values, tracked: batches_tracked(graph, iterations).collect() })
    }

    /// As the tensors of a checkpoint. What has no average, such as frozen parameters, is among the averaged
    /// weights as it is.
    pub fn tensors(&self) -> Tensors<'_> {
        let of = |is: fn(Role) -> bool| {
            self.values.iter().filter(move |value| is(value.described.role)).map(Persistent::tensor)
        };
        let tracked = || self.tracked.iter().map(Tensor::as_ref);
        let weights: Vec<_> = of(|role| !matches!(role, Role::Momentum | Role::Average)).collect();
        let averages: BTreeMap<&str, _> =
            of(|role| role == Role::Average).map(|tensor| (tensor.name, tensor)).collect();
        let averaged = (!averages.is_empty()).then(|| {
            let averaged = weights.iter().map(|tensor| *averages.get(tensor.name).unwrap_or(tensor));
            averaged.chain(tracked()).collect()
        });
        let weights = weights.into_iter().chain(tracked()).collect();
        Tensors { weights, optimizer: of(|role| role == Role::Momentum).collect(), averaged }
    }
}

impl Persistent<'_> {
    fn tensor(&self) -> TensorRef<'_> {
        let (name, shape) = (key(&self.described), self.shape);
        TensorRef { name, shape, values: ValuesRef::External(self) }
    }
}

/// The name of a value in a checkpoint. A velocity and an average have their parameter's name: the
/// optimiser's tensors and the averages are in files of their own.
fn key<'a>(value: &StateValue<'a>) -> &'a str {
    match (value.optimiser_state, value.average_of) {
        (Some((parameter, OptimiserState::Momentum)), _) => parameter,
        (_, Some(averaged)) => averaged,
        _ => value.name,
    }
}

/// What is restored from a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restored {
    /// All that training needs to go on.
    Training,
    /// The weights that are measured: averaged ones, where there are such.
    Measuring,
}

/// Sets what a checkpoint holds; `copies` is the session's program that brings copies of weights up to date.
pub(crate) fn restore(
    session: &mut Session,
    copies: usize,
    checkpoint: &Checkpoint,
    what: Restored,
) -> Result<(), TrainError> {
    let problem = |problem: String| TrainError::Checkpoint {
        checkpoint: checkpoint.path.display().to_string(),
        problem,
    };
    let wanted: Vec<(String, String, Vec<usize>, Role)> = session
        .state()
        .map(|value| (value.name.to_owned(), key(&value).to_owned(), value.shape.to_vec(), value.role))
        .collect();
    for (name, key, shape, role) in wanted {
        let list = match (role, what) {
            (Role::Momentum, Restored::Training) => &checkpoint.optimizer,
            (Role::Average, Restored::Training) => checkpoint.averaged.as_deref().unwrap_or_default(),
            (Role::Momentum | Role::Average, Restored::Measuring) => continue,
            (_, Restored::Training) => &checkpoint.weights,
            (_, Restored::Measuring) => checkpoint.measured(),
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

/// The names of the values that have an average, each with the average's.
fn averages(session: &Session) -> Vec<[String; 2]> {
    let pair = |value: StateValue<'_>| Some([value.average_of?.to_owned(), value.name.to_owned()]);
    session.state().filter_map(pair).collect()
}

/// Begins averages with the weights as they are.
pub(crate) fn begin_averages(session: &mut Session) -> Result<(), TrainError> {
    for [value, average] in averages(session) {
        let first = session.read(&value)?;
        session.write(&average, &first)?;
    }
    Ok(())
}

/// Exchanges the weights and their averages, where there are such: to measure these, and back.
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

/// Sets what the training loss weighs classes by, if it does: no checkpoint has it.
pub(crate) fn set_class_weights(session: &mut Session, resolved: &Resolved) -> Result<(), TrainError> {
    let Some(weights) = &resolved.settings().train.class_weights else { return Ok(()) };
    let weights: Vec<f32> = weights.iter().map(|&weight| weight as f32).collect();
    Ok(session.write(CLASS_WEIGHTS, &weights)?)
}

/// Runs `program`, which copies the f32 master weights to the bf16 or f16 weights that kernels read.
pub(crate) fn refresh(session: &mut Session, program: usize) -> Result<(), TrainError> {
    let mut clock = Clock::disabled(session.slots(program));
    Ok(session.run(program, &mut [], &mut [], &mut clock, 0)?)
}
