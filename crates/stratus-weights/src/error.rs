//! Errors of weights files.

use std::io;
use std::path::Path;

use stratus_base::FileError;

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of a weights file, with its path.
pub type Error = FileError<Problem>;

/// The problem of a weights file. The message ends with a remedy.
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
    /// The file is of another kind.
    #[error("this is {kind}; {remedy}")]
    WrongKind {
        /// The kind of the file.
        kind: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// The bytes contradict the format.
    #[error("the file is damaged: {0}; download or save it again")]
    Damaged(String),
    /// The pickle refers to a Python object that is not on the closed list.
    #[error(
        "refused pickle global `{0}` (code execution); nothing was executed; save only the tensors: \
         torch.save(model.state_dict(), path)"
    )]
    ForbiddenGlobal(String),
    /// The pickle uses an instruction or an object that is not supported.
    #[error("unsupported pickle: {0}; save only the tensors: torch.save(model.state_dict(), path)")]
    UnsupportedPickle(String),
    /// The file exceeds a limit.
    #[error("more than {limit} {items}; save only the tensors: torch.save(model.state_dict(), path)")]
    Limit {
        /// The limited items, such as "bytes in the header".
        items: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A tensor cannot be used.
    #[error("tensor {name}: {reason}; {remedy}")]
    Tensor {
        /// The name of the tensor.
        name: String,
        /// The problem.
        reason: String,
        /// The remedy.
        remedy: &'static str,
    },
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
