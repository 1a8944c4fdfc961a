//! The state of a session as tensors of a checkpoint, and back.

use super::batches_tracked;
use crate::TrainError;
use crate::compile::CompiledRun;
use stratus_engine::program::OptimiserState;
use stratus_engine::session::{StateValue, View};
use stratus_engine::{Clock, Role, Session};
use stratus_graph::Graph;
use stratus_run::checkpoint::{Checkpoint, Tensor, TensorRef, Values};
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
    view: View<'a>,
}

impl ExternalValues for Persistent<'_> {
    fn count(&self) -> usize {
        self.view.len()
    }

    fn read(&self, first: usize, out: &mut [f32]) {
        self.view.read(first, out);
    }
}

impl<'a> Snapshot<'a> {
    pub fn new(compiled: &'a CompiledRun, graph: &Graph, iterations: u64) -> Result<Self, TrainError> {
        let session = &compiled.session;
        let value =
            |described: StateValue<'a>| Ok(Persistent { described, view: session.view(described.name)? });
        let values = session.state().map(value).collect::<Result<_, TrainError>>()?;
        Ok(Self { values, tracked: batches_tracked(graph, iterations).collect() })
    }

    /// Parameters and running statistics.
    pub fn weights(&self) -> Vec<TensorRef<'_>> {
        let weights = self.values.iter().filter(|value| value.described.role != Role::Momentum);
        weights.map(Persistent::tensor).chain(self.tracked.iter().map(Tensor::as_ref)).collect()
    }

    /// The optimiser's state.
    pub fn optimiser(&self) -> Vec<TensorRef<'_>> {
        let remembered = self.values.iter().filter(|value| value.described.role == Role::Momentum);
        remembered.map(Persistent::tensor).collect()
    }
}

impl Persistent<'_> {
    fn tensor(&self) -> TensorRef<'_> {
        let (name, shape) = (key(&self.described), self.described.shape);
        TensorRef { name, shape, values: ValuesRef::External(self) }
    }
}

/// The name of a value in a checkpoint. A velocity has its parameter's name: the optimiser's tensors are in a
/// file of their own.
fn key<'a>(value: &StateValue<'a>) -> &'a str {
    match value.optimiser_state {
        Some((parameter, OptimiserState::Momentum)) => parameter,
        _ => value.name,
    }
}

/// Sets everything that a checkpoint holds; the optimiser's state only with `optimiser`.
pub(crate) fn restore(
    compiled: &mut CompiledRun,
    checkpoint: &Checkpoint,
    optimiser: bool,
) -> Result<(), TrainError> {
    let problem = |problem: String| TrainError::Checkpoint {
        checkpoint: checkpoint.path.display().to_string(),
        problem,
    };
    let wanted: Vec<(String, String, Vec<usize>, Role)> = compiled
        .session
        .state()
        .map(|value| (value.name.to_owned(), key(&value).to_owned(), value.shape.to_vec(), value.role))
        .collect();
    for (name, key, shape, role) in wanted {
        let list = match role {
            Role::Momentum if optimiser => &checkpoint.optimizer,
            Role::Momentum => continue,
            _ => &checkpoint.weights,
        };
        let tensor = list
            .iter()
            .find(|tensor| tensor.name == key)
            .ok_or_else(|| problem(format!("it has no `{key}`")))?;
        let Values::F32(values) = &tensor.values else {
            return Err(problem(format!("its `{key}` is not f32")));
        };
        if tensor.shape != shape {
            return Err(problem(format!(
                "its `{key}` has shape {:?}, the network's {shape:?}",
                tensor.shape
            )));
        }
        compiled.session.write(&name, values)?;
    }
    refresh(&mut compiled.session, compiled.ids.refresh)
}

/// Runs `program`, which copies the f32 master weights to the bf16 or f16 weights that kernels read.
pub(crate) fn refresh(session: &mut Session, program: usize) -> Result<(), TrainError> {
    let mut clock = Clock::disabled(session.slots(program));
    Ok(session.run(program, &mut [], &mut [], &mut clock, 0)?)
}
