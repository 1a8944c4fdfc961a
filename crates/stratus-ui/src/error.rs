//! Errors of the server.

use std::io;

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error that ends the server, or keeps it from starting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host has no address.
    #[error("cannot find the address of the host {host}: {source}")]
    Host {
        /// The host.
        host: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// No port can be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address and the port.
        address: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The system provides no random bytes for the token.
    #[error("cannot read random bytes from {path}: {source}")]
    Random {
        /// The file.
        path: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The server cannot run.
    #[error("cannot start the server: {0}")]
    Start(#[source] io::Error),
}
