//! A network with the values of its parameters.

use std::collections::BTreeMap;
use stratus_graph::{Graph, GraphError};

/// A network with the values of its parameters and running statistics.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The network.
    pub graph: Graph,
    /// The values of each parameter by its name, row-major, with its number of elements.
    pub values: BTreeMap<String, Vec<f32>>,
}

/// An error of a model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A parameter has no values.
    #[error("the weights have no `{parameter}`")]
    Missing {
        /// Its name.
        parameter: String,
    },
    /// A parameter has another number of values than its shape.
    #[error("`{parameter}` has {values} values, but its shape is {shape:?}")]
    Size {
        /// Its name.
        parameter: String,
        /// The number of values.
        values: usize,
        /// The shape in the network.
        shape: Vec<usize>,
    },
    /// The network is not valid.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

impl Model {
    /// A network in inference form ([`Graph::for_inference`]) with those of `values` that are its parameters.
    ///
    /// # Errors
    /// If a parameter has no values or the wrong number of values.
    pub fn for_inference(graph: &Graph, mut values: BTreeMap<String, Vec<f32>>) -> Result<Self, ModelError> {
        let graph = graph.for_inference();
        let mut kept = BTreeMap::new();
        for parameter in &graph.parameters {
            let name = parameter.name.clone();
            let found =
                values.remove(&name).ok_or_else(|| ModelError::Missing { parameter: name.clone() })?;
            if found.len() != parameter.elements() {
                return Err(ModelError::Size {
                    parameter: name,
                    values: found.len(),
                    shape: parameter.shape.clone(),
                });
            }
            kept.insert(name, found);
        }
        Ok(Self { graph, values: kept })
    }
}
