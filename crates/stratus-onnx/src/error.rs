//! Errors of ONNX models.

use std::fmt::{self, Write};
use std::io;
use std::path::Path;
use stratus_base::FileError;
use stratus_graph::GraphError;

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The maximum number of unsupported nodes in a message.
const MAX_LISTED_NODES: usize = 40;

/// The error of an ONNX file, with its path.
pub type Error = FileError<Problem>;

/// The problem of an ONNX file. The message contains a remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The operating system reported an error.
    #[error("cannot {action}: {source}")]
    Io {
        /// The failed action, such as "open" or "read".
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The bytes contradict the format.
    #[error("not an ONNX model, or damaged: {0}; export it again")]
    Damaged(String),
    /// The file exceeds a limit.
    #[error("more than {limit} {items}")]
    Limit {
        /// The limited items, such as "nodes".
        items: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The model as a whole is unsupported.
    #[error("{problem}; {remedy}")]
    UnsupportedModel {
        /// The unsupported property.
        problem: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// All unsupported nodes.
    #[error("{}", listed(nodes, last_supported))]
    UnsupportedNodes {
        /// The nodes.
        nodes: Vec<UnsupportedNode>,
        /// The names of the last nodes before them that a network may end with.
        last_supported: String,
    },
    /// The layers do not form a valid network.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// A node that cannot be imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedNode {
    /// The name of the node, or of its output if it has no name.
    pub node: String,
    /// The operator, with its domain unless that is `ai.onnx`.
    pub operator: String,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for UnsupportedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`: {}", self.operator, self.node, self.reason)
    }
}

fn listed(nodes: &[UnsupportedNode], last_supported: &str) -> String {
    let mut text = match nodes.len() {
        1 => "a node cannot be imported:".to_owned(),
        count => format!("{count} nodes cannot be imported:"),
    };
    for node in nodes.iter().take(MAX_LISTED_NODES) {
        // Writing into a String cannot fail.
        let _ = write!(text, "\n{node}");
    }
    if nodes.len() > MAX_LISTED_NODES {
        let _ = write!(text, "\nand {} more", nodes.len() - MAX_LISTED_NODES);
    }
    if !last_supported.is_empty() {
        let _ = write!(text, "\nimport the layers before them with --until NODE: {last_supported}");
    }
    text
}

/// A result whose error has no path yet.
pub(crate) type Parsed<T> = std::result::Result<T, Problem>;

impl Problem {
    pub(crate) fn io(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, source }
    }

    pub(crate) fn damaged(reason: impl Into<String>) -> Self {
        Self::Damaged(reason.into())
    }

    pub(crate) fn in_file(self, path: &Path) -> Error {
        FileError::new(path, self)
    }
}

/// The error of a network that cannot be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// All layers that ONNX cannot express.
    #[error("cannot be exported to ONNX: {}", .0.join(", "))]
    UnsupportedLayers(Vec<String>),
    /// The weights lack a parameter.
    #[error("missing parameter `{0}` in the weights")]
    MissingParameter(String),
    /// A parameter has another shape or type than in the network.
    #[error("parameter `{name}` is {found}, expected f32 {expected:?}")]
    Mismatch {
        /// The key of the parameter.
        name: String,
        /// The type and shape in the weights.
        found: String,
        /// The shape in the network.
        expected: Vec<usize>,
    },
    /// The model exceeds the size of a protobuf message.
    #[error("the model has {0} bytes, an ONNX file at most 2147483647")]
    TooLarge(u64),
    /// The file cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}
