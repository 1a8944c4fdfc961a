//! What can go wrong between workers.

use stratus_base::library::NotFound;

/// Why workers cannot train together, or not any longer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ExchangeError {
    /// There is no MPI here.
    #[error("{0}. `make deps` brings MPICH into .deps; STRATUS_MPI names another library's file")]
    NoLibrary(#[from] NotFound),
    /// A library that cannot be used.
    #[error("{library} cannot be used: {reason}")]
    Library {
        /// Its path.
        library: String,
        /// Why.
        reason: String,
    },
    /// A call failed.
    #[error("{call} failed: {reason}")]
    Call {
        /// The function.
        call: &'static str,
        /// What the library says.
        reason: String,
    },
    /// The launcher and the library are not of one kind.
    #[error(
        "{launcher} started {expected} processes, and {library} sees {found}: launcher and library are of \
         different MPIs. Start with the mpiexec that belongs to the library, or name its library with \
         STRATUS_MPI"
    )]
    OtherLauncher {
        /// What started the processes.
        launcher: &'static str,
        /// The library's own words.
        library: String,
        /// How many there should be.
        expected: usize,
        /// How many it knows of.
        found: usize,
    },
    /// As many workers as no tree has.
    #[error("there are {0} workers; their number is a power of two")]
    Size(usize),
    /// A worker gave another number of values than this one.
    #[error("worker {peer} exchanges {theirs} bytes where this one has {ours}: they do not train the same")]
    Sizes {
        /// The other.
        peer: usize,
        /// Its bytes.
        theirs: usize,
        /// This worker's.
        ours: usize,
    },
    /// An earlier exchange failed, or the thread is gone.
    #[error("the exchange with the other workers has ended: {0}")]
    Ended(String),
}
