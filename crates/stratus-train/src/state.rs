//! The state of a session as tensors of a checkpoint, and back.

use crate::TrainError;
use crate::compile::Compiled;
use crate::weights::batches_tracked;
use stratus_engine::update::MOMENTUM_SUFFIX;
use stratus_engine::{Clock, Role, Session};
use stratus_graph::Graph;
use stratus_run::checkpoint::{Checkpoint, Tensor, Values};

/// Weights and optimiser state.
pub(crate) struct Tensors {
    pub weights: Vec<Tensor>,
    pub optimiser: Vec<Tensor>,
}

/// Reads everything that outlives an iteration, in PyTorch's names and shapes.
///
/// Batch norms get PyTorch's `num_batches_tracked`: the iterations that they were trained.
pub(crate) fn capture(compiled: &Compiled, graph: &Graph, iterations: u64) -> Result<Tensors, TrainError> {
    let mut tensors = Tensors { weights: Vec::new(), optimiser: Vec::new() };
    for (name, shape, role) in compiled.session.state() {
        let values = Values::F32(compiled.session.read(name)?);
        let (list, name) = match role {
            Role::Momentum => (&mut tensors.optimiser, name.trim_end_matches(MOMENTUM_SUFFIX)),
            _ => (&mut tensors.weights, name),
        };
        list.push(Tensor { name: name.to_owned(), shape: shape.to_vec(), values });
    }
    tensors.weights.extend(batches_tracked(graph, iterations));
    Ok(tensors)
}

/// Sets everything that a checkpoint holds; with `optimiser`, also velocities.
pub(crate) fn restore(
    compiled: &mut Compiled,
    checkpoint: &Checkpoint,
    optimiser: bool,
) -> Result<(), TrainError> {
    let problem = |problem: String| TrainError::Checkpoint {
        checkpoint: checkpoint.path.display().to_string(),
        problem,
    };
    let wanted: Vec<(String, Vec<usize>, Role)> =
        compiled.session.state().map(|(name, shape, role)| (name.to_owned(), shape.to_vec(), role)).collect();
    for (name, shape, role) in wanted {
        let (list, key) = match role {
            Role::Momentum if optimiser => (&checkpoint.optimizer, name.trim_end_matches(MOMENTUM_SUFFIX)),
            Role::Momentum => continue,
            _ => (&checkpoint.weights, name.as_str()),
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

/// Brings the copies that kernels read up to date with their masters; `program` is the one that does it.
pub(crate) fn refresh(session: &mut Session, program: usize) -> Result<(), TrainError> {
    let mut clock = Clock::disabled(session.plan(program).program.steps.len());
    Ok(session.run(program, &mut [], &mut [], &mut clock, 0)?)
}
