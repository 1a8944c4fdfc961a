//! Thread teams shared by oneDNN and Stratus's own kernels, so that the two do not compete for the same
//! cores.
//!
//! oneDNN is compiled for OpenMP and calls a few functions of an OpenMP runtime. GNU's runtime waits by
//! spinning: if the CPU of another thread has been given to another program, the waiting thread spins for
//! milliseconds and takes CPU time from programs that could use it. The functions are therefore implemented
//! here (`gomp`), on thread teams (`team`) whose waiting (`wait`) is short as soon as other programs load the
//! CPUs (`load`), and which then measure whether it is faster to wake their threads or not (`trial`).
//!
//! A program has to export the functions, or oneDNN finds GNU's: the build scripts of the binary packages
//! pass `--export-dynamic-symbol` to the linker. [`are_exported`] checks that.

mod gomp;
mod load;
mod team;
mod trial;
mod wait;

pub use gomp::{PROVIDED_SYMBOLS, are_exported};
pub use load::{CpuUsage, UsageMeter, pin_to_share, thread_time};
pub use team::{
    Function, max_threads, parallel, prefers_single_thread, run_repeated, set_max_threads, team_size,
    thread_number, with_independent_parts,
};
pub use trial::UsualTime;
