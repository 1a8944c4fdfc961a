//! The state of a session as tensors of a checkpoint, and back.

use crate::TrainError;
use crate::compile::Compiled;
use stratus_engine::update::MOMENTUM_SUFFIX;
use stratus_engine::{Clock, Role};
use stratus_graph::{Graph, Op};
use stratus_run::checkpoint::{Checkpoint, Tensor, Values};

/// Weights and optimiser state.
pub(crate) struct Tensors {
    pub weights: Vec<Tensor>,
    pub optimiser: Vec<Tensor>,
}

/// Reads everything that outlives an iteration, in PyTorch's names and shapes.
///
/// Batch norms get PyTorch's `num_batches_tracked`: the iterations that were trained.
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
    for node in graph.nodes.iter().filter(|node| matches!(node.op, Op::BatchNorm2d(_))) {
        let name = format!("{}.num_batches_tracked", node.name);
        let count = Values::I64(vec![i64::try_from(iterations).unwrap_or(i64::MAX)]);
        tensors.weights.push(Tensor { name, shape: vec![], values: count });
    }
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
    refresh(compiled)
}

/// Brings the copies that kernels read up to date with their masters.
pub(crate) fn refresh(compiled: &mut Compiled) -> Result<(), TrainError> {
    let id = compiled.ids.refresh;
    let mut clock = Clock::disabled(compiled.session.plan(id).program.steps.len());
    Ok(compiled.session.run(id, &mut [], &mut [], &mut clock, 0)?)
}
