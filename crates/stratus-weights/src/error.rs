//! What can be wrong with a weights file, and what to do about it.

use std::io;
use std::path::Path;

use stratus_base::FileError;

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error about one weights file: which, what is wrong, what to do.
pub type Error = FileError<Problem>;

/// What is wrong with a weights file. The message ends with what to do.
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
    /// Another kind of file.
    #[error("this is {what}; {remedy}")]
    Kind {
        /// What it is.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The bytes contradict the format.
    #[error("the file is damaged: {0}; download or save it again")]
    Damaged(String),
    /// The file asks for a Python object that a state dict does not need.
    #[error(
        "the file would run `{0}` when Python opens it, which no state dict needs: refused, nothing was \
         executed; save only the tensors, torch.save(model.state_dict(), path)"
    )]
    Global(String),
    /// The pickle uses an instruction, or an object, that a state dict does not need.
    #[error(
        "{0}, which no state dict needs: refused; save only the tensors, torch.save(model.state_dict(), \
         path)"
    )]
    Refused(String),
    /// Larger than any state dict.
    #[error(
        "there are more than {limit} {what}: refused; save only the tensors, torch.save(model.state_dict(), \
         path)"
    )]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How much is accepted.
        limit: usize,
    },
    /// One tensor cannot be used.
    #[error("tensor {name}: {reason}; {remedy}")]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong with it.
        reason: String,
        /// What to do.
        remedy: &'static str,
    },
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
