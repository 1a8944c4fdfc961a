//! Initial values of parameters: a function of (seed, position of the parameter), in row-major order of its
//! PyTorch shape. Those of a whitening layer also depend on the training images.

use super::whiten;
use crate::TrainError;
use crate::resolve::ResolvedProcess;
use std::collections::HashSet;
use std::sync::Arc;
use stratus_data::Dataset;
use stratus_engine::Session;
use stratus_graph::{Graph, Initialisation, Parameter};
use stratus_random::{Purpose, Stream};

/// Sets every parameter and buffer of `graph` that the session has to its initial values. `dataset` is the
/// training set.
///
/// # Errors
/// If the session cannot be written to, or a whitening layer's images cannot be read.
pub(crate) fn initialise(
    session: &mut Session,
    graph: &Graph,
    resolved: &ResolvedProcess,
    dataset: &Arc<dyn Dataset>,
) -> Result<(), TrainError> {
    let session_names: HashSet<String> = session.state().map(|value| value.name.to_owned()).collect();
    let parameters = graph.parameters.iter().enumerate();
    for (position, parameter) in parameters.filter(|(_, parameter)| session_names.contains(&parameter.name)) {
        let values = if parameter.initialisation == Initialisation::Whitening {
            whiten::filters(parameter, resolved.input(), dataset)?
        } else {
            values(parameter, position, resolved.settings().train.seed)?
        };
        session.write(&parameter.name, &values)?;
    }
    Ok(())
}

/// The initial values of the parameter at `position` of its network.
///
/// # Errors
/// If they depend on images.
pub(crate) fn values(parameter: &Parameter, position: usize, seed: u64) -> Result<Vec<f32>, TrainError> {
    let mut stream = Stream::new(seed, Purpose::Initialise, position as u64, 0);
    let mut uniform = |bound: f32| stream.uniform_between(-bound, bound);
    let count = 0..parameter.elements();
    Ok(match parameter.initialisation {
        Initialisation::Zeros => count.map(|_| 0.0).collect(),
        Initialisation::Ones => count.map(|_| 1.0).collect(),
        Initialisation::Constant { value } => count.map(|_| value).collect(),
        Initialisation::Uniform { bound } => count.map(|_| uniform(bound)).collect(),
        Initialisation::Normal { std } => count.map(|_| stream.normal() * std).collect(),
        Initialisation::Dirac { bound } => {
            let [_, inputs, height, width] = parameter.shape[..] else {
                return Err(unsupported(parameter, "are defined for convolutions only"));
            };
            let middle = height / 2 * width + width / 2;
            let taps = height * width;
            let value = |at: usize| {
                let [output, input, tap] = [at / (inputs * taps), at / taps % inputs, at % taps];
                if output < inputs {
                    f32::from(u8::from(output == input && tap == middle))
                } else {
                    uniform(bound)
                }
            };
            count.map(value).collect()
        }
        Initialisation::Whitening => {
            return Err(unsupported(parameter, "depend on training images"));
        }
    })
}

fn unsupported(parameter: &Parameter, reason: &str) -> TrainError {
    TrainError::Configuration {
        problem: format!("the initial values of `{}` {reason}", parameter.name),
        hint: "train the network, and use the run or its weights".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_graph::ops::ParameterKind;

    fn weight(shape: [usize; 4], initialisation: Initialisation) -> Parameter {
        Parameter {
            frozen: false,
            name: "conv.weight".to_owned(),
            shape: shape.to_vec(),
            initialisation,
            kind: ParameterKind::Trained,
        }
    }

    /// Like `torch.nn.init.dirac_` for the first outputs: element (i, i, 1, 1) of a 3x3 kernel, (i, i, 1, 0)
    /// of 2x1.
    #[test]
    fn dirac_passes_inputs_through() {
        for (shape, middle) in [([5, 3, 3, 3], 4), ([2, 3, 2, 1], 1), ([3, 3, 1, 1], 0)] {
            let bound = 0.25;
            let values = values(&weight(shape, Initialisation::Dirac { bound }), 0, 1).unwrap();
            let [outputs, inputs, height, width] = shape;
            assert_eq!(values.len(), outputs * inputs * height * width);
            for (at, &value) in values.iter().enumerate() {
                let [output, input, tap] =
                    [at / (inputs * height * width), at / (height * width) % inputs, at % (height * width)];
                if output < inputs {
                    assert_eq!(
                        value,
                        f32::from(u8::from(output == input && tap == middle)),
                        "{shape:?}, {at}"
                    );
                } else {
                    assert!(value != 0.0 && value.abs() <= bound, "{shape:?}, {at}");
                }
            }
        }
    }

    #[test]
    fn constants_are_constant_and_whitening_requires_images() {
        let shape = [2, 1, 1, 1];
        assert_eq!(
            values(&weight(shape, Initialisation::Constant { value: -0.5 }), 0, 1).unwrap(),
            [-0.5; 2]
        );
        let error = values(&weight(shape, Initialisation::Whitening), 0, 1).unwrap_err().to_string();
        assert_eq!(error, "the initial values of `conv.weight` depend on training images");
    }
}
