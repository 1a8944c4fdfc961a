//! Utilities that crates of every layer use: memory aligned for vector units, checksums, errors about a file,
//! text for a terminal, times in UTC, means, medians and quantiles, suggestions for misspelt names, the
//! folders of the installation, the search for C libraries, the program for SSH, exit codes, messages in
//! protobuf's wire format, the reasons for the throttling of a GPU.

mod aligned;
pub mod checksum;
pub mod exit_code;
mod file;
pub mod installation;
pub mod library;
pub mod protobuf;
pub mod secret;
pub mod ssh;
mod statistics;
mod suggest;
pub mod text;
mod throttling;
pub mod time;

pub use aligned::{ALIGNMENT, AlignedBytes, OutOfMemory};
pub use file::{FileError, printable, read_at_most, read_text_at_most, sync_folder};
pub use secret::Secret;
pub use statistics::{Mean, median, quantile};
pub use suggest::{did_you_mean, nearest};
pub use throttling::{Throttling, UnknownThrottling};
