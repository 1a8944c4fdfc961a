//! Errors of communication between workers.

use stratus_base::library::LibraryNotFound;

/// The suggested fix if no library is found.
const INSTALLATION_HINT: &str =
    "run `make deps` to install MPICH into .deps, or set STRATUS_MPI to a library file";

/// An error of communication between workers.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ExchangeError {
    /// No MPI library was found.
    #[error("{source}; {}", source.hint().unwrap_or_else(|| INSTALLATION_HINT.to_owned()))]
    NoLibrary {
        /// The error of the search.
        #[from]
        source: LibraryNotFound,
    },
    /// The library cannot be used.
    #[error("{library} cannot be used: {reason}")]
    Library {
        /// The library's path.
        library: String,
        /// The reason.
        reason: String,
    },
    /// A call to the library failed.
    #[error("{call} failed: {reason}")]
    Call {
        /// The function that was called.
        call: &'static str,
        /// The library's error message.
        reason: String,
    },
    /// The launcher and the library belong to different MPI implementations.
    #[error(
        "{launcher} started {expected} processes, but {library} sees {found}: they belong to different MPI \
         implementations; use the library's own mpiexec, or set STRATUS_MPI to the launcher's library"
    )]
    LauncherMismatch {
        /// The launcher's name.
        launcher: &'static str,
        /// The library's description of itself.
        library: String,
        /// The number of processes according to the launcher.
        expected: usize,
        /// The number of processes according to the library.
        found: usize,
    },
    /// The number of workers is not a power of two.
    #[error("{0} workers: the number of workers must be a power of two")]
    NotPowerOfTwo(usize),
    /// A worker sent a different number of bytes than expected.
    #[error("worker {peer} sent {theirs} bytes, expected {ours}: the workers run different programs")]
    LengthMismatch {
        /// The rank of the sender.
        peer: usize,
        /// The bytes that it sent.
        theirs: usize,
        /// The bytes that this worker expected.
        ours: usize,
    },
    /// A worker announced a text that is larger than any plan.
    #[error("worker {peer} announced {bytes} bytes, more than {limit}: the workers run different programs")]
    TooLarge {
        /// The rank of the worker.
        peer: usize,
        /// The announced bytes.
        bytes: u64,
        /// The maximum.
        limit: u64,
    },
    /// An earlier exchange failed, or the exchange thread has ended.
    #[error("communication with the other workers has failed: {0}")]
    Disconnected(String),
}
