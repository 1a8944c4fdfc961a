//! The networks by name: a file per family, a line in `NETWORKS`.

mod digits;

use crate::{Graph, GraphError, Shape};

/// What a network can be asked to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hyperparameters {
    /// One sample: `[channels, height, width]`.
    pub input: [usize; 3],
    /// Classes to tell apart.
    pub classes: usize,
    /// The width of the network: the filters of its first convolution. `None` is the published width.
    pub width: Option<usize>,
}

/// A network of the zoo.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is and where it is published.
    pub about: &'static str,
    /// The published input and class count.
    pub defaults: fn() -> Hyperparameters,
    /// Builds it.
    pub build: fn(&Hyperparameters) -> Result<Graph, GraphError>,
}

/// Every network.
pub const NETWORKS: &[Network] = &[digits::NETWORK];

/// Finds a network by name.
///
/// # Errors
/// Where there is none; the message suggests the nearest name.
pub fn find(name: &str) -> Result<&'static Network, GraphError> {
    NETWORKS.iter().find(|network| network.name == name).ok_or_else(|| GraphError::Unknown {
        name: name.to_owned(),
        suggestion: NETWORKS
            .iter()
            .map(|network| (edit_distance(name, network.name), network.name))
            .min()
            .filter(|&(distance, candidate)| distance <= candidate.len().div_ceil(3))
            .map(|(_, candidate)| candidate.to_owned()),
        known: NETWORKS.iter().map(|network| network.name).collect::<Vec<_>>().join(", "),
    })
}

/// Checks what all networks need of their hyper-parameters.
fn positive(network: &str, key: &'static str, value: usize) -> Result<usize, GraphError> {
    if value == 0 || value > 1 << 20 {
        return Err(GraphError::Hyperparameter {
            network: network.to_owned(),
            key,
            value: value.to_string(),
            need: "it is a count from 1 to 1048576".to_owned(),
        });
    }
    Ok(value)
}

fn image(input: [usize; 3]) -> Shape {
    Shape::image(input[0], input[1], input[2])
}

/// Levenshtein's distance: the fewest insertions, deletions and replacements that turn `a` into `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_names_are_answered_with_the_nearest() {
        let message = find("digts").unwrap_err().to_string();
        assert_eq!(message, "there is no network `digts`, did you mean `digits`?; known are digits");
        let message = find("transformer").unwrap_err().to_string();
        assert_eq!(message, "there is no network `transformer`; known are digits");
    }

    #[test]
    fn every_network_builds_with_its_defaults() {
        for network in NETWORKS {
            let graph = (network.build)(&(network.defaults)()).unwrap();
            graph.verify().unwrap();
            assert_eq!(graph.name, network.name);
        }
    }
}
