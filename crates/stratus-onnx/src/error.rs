//! What can be wrong with an ONNX model, and what to do about it.

use std::fmt::{self, Write};
use std::io;
use std::path::Path;
use stratus_base::FileError;
use stratus_graph::GraphError;

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Refused nodes that are listed one by one.
const LISTED: usize = 40;

/// An error about one ONNX file: which, what is wrong, what to do.
pub type Error = FileError<Problem>;

/// What is wrong with an ONNX file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The operating system refused.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was attempted: "open", "read", ….
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The bytes contradict the format.
    #[error("this is no ONNX model, or it is damaged: {0}; export it again")]
    Damaged(String),
    /// Larger than any model that is read.
    #[error("there are more than {limit} {what}: refused")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How much is accepted.
        limit: u64,
    },
    /// The model as a whole is of a kind that cannot be taken.
    #[error("{what}; {remedy}")]
    Kind {
        /// What it is.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Nodes that no layer stands for: all of them.
    #[error("{}", listed(.0))]
    Nodes(Vec<RefusedNode>),
    /// The layers do not fit together.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// A node that cannot be imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedNode {
    /// Its name, or where it has none that of its output.
    pub node: String,
    /// Its operator, with its domain where that is not ONNX's own.
    pub operator: String,
    /// Why.
    pub reason: String,
}

impl fmt::Display for RefusedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`: {}", self.operator, self.node, self.reason)
    }
}

fn listed(refused: &[RefusedNode]) -> String {
    let mut text = match refused.len() {
        1 => "a node cannot be imported:".to_owned(),
        count => format!("{count} nodes cannot be imported:"),
    };
    for node in refused.iter().take(LISTED) {
        // Writing into a String cannot fail.
        let _ = write!(text, "\n{node}");
    }
    if refused.len() > LISTED {
        let _ = write!(text, "\nand {} more", refused.len() - LISTED);
    }
    text
}

/// A result without the file's path yet.
pub(crate) type Parsed<T> = std::result::Result<T, Problem>;

impl Problem {
    pub(crate) fn io(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, source }
    }

    pub(crate) fn damaged(reason: impl Into<String>) -> Self {
        Self::Damaged(reason.into())
    }

    pub(crate) fn at(self, path: &Path) -> Error {
        FileError::new(path, self)
    }
}

/// Why a network cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// Layers that ONNX has no operator for: all of them.
    #[error("layers that have no form in ONNX: {}", .0.join(", "))]
    Layers(Vec<String>),
    /// A parameter that was not given.
    #[error("the parameter `{0}` is missing among the weights")]
    Missing(String),
    /// A parameter of another shape or type than the network's.
    #[error("the parameter `{name}` is {found}, the network's is f32 {wanted:?}")]
    Mismatch {
        /// Its key.
        name: String,
        /// What was given.
        found: String,
        /// The network's shape.
        wanted: Vec<usize>,
    },
    /// Longer than a protobuf message can be.
    #[error("the model would have {0} bytes; an ONNX file has at most 2147483647")]
    TooLarge(u64),
    /// The file cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}
