//! First values of parameters: a function of (seed, position of the parameter), in row-major order of its PyTorch shape.

use stratus_engine::{EngineError, Session};
use stratus_graph::{Graph, Initialisation, Parameter};
use stratus_random::{Purpose, Stream};

/// Sets every parameter and buffer of `graph` to its first values.
pub(crate) fn initialise(session: &mut Session, graph: &Graph, seed: u64) -> Result<(), EngineError> {
    for (position, parameter) in graph.parameters.iter().enumerate() {
        session.write(&parameter.name, &values(parameter, position, seed))?;
    }
    Ok(())
}

/// The first values of the parameter at `position` of its network.
pub(crate) fn values(parameter: &Parameter, position: usize, seed: u64) -> Vec<f32> {
    let mut stream = Stream::new(seed, Purpose::Initialise, position as u64, 0);
    let mut draw = || match parameter.initialisation {
        Initialisation::Zeros => 0.0,
        Initialisation::Ones => 1.0,
        Initialisation::Uniform { bound } => stream.uniform_between(-bound, bound),
        Initialisation::Normal { std } => stream.normal() * std,
    };
    (0..parameter.elements()).map(|_| draw()).collect()
}
