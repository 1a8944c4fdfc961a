//! The threads that kernels run on: oneDNN's and our own, which have to be the same threads, or they would
//! fight for the same cores.
//!
//! oneDNN is compiled for OpenMP and calls a few functions of a run time. GNU's run time waits by spinning: a
//! thread that waits for one whose processor was given to another program spins for as long as that lasts,
//! which is milliseconds, and takes the processor from whoever could use it. The functions are therefore here
//! (`gomp`), on a team of threads (`team`) whose waiting (`wait`) is short as soon as other programs want the
//! processors (`load`).
//!
//! A program has to export the functions, or the library finds GNU's: the build scripts of the packages that
//! make programs pass `--export-dynamic-symbol` to the linker. [`are_exported`] says whether one did.

mod gomp;
mod load;
mod team;
mod wait;

pub use gomp::{PROVIDED, are_exported};
pub use load::{Usage, UsageMeter, keep_to_share, thread_time};
pub use team::{Function, is_better_alone, max_threads, parallel, set_max_threads, team_size, thread_number};
