//! `stratus bench exchange`: compares the tree all-reduce, also with values that are sent as bf16,
//! with MPI_Allreduce, in alternation.

use crate::errors::{Failure, Result};
use crate::output::{Output, key_value_list};
use crate::workers;
use stratus_exchange::mpi::Mpi;
use stratus_exchange::{ExchangeError, Transport, launch_info};
use stratus_train::bench::exchange::measure;

/// Starts the workers, or runs as one of them.
///
/// # Errors
/// If MPI is not found, or a worker is lost.
pub fn run(count: u16, mib: usize, rounds: u32, output: &Output) -> Result {
    let Some(info) = launch_info() else { return workers::start(usize::from(count), None, output) };
    let mut mpi = Mpi::join(info).map_err(failed)?;
    let found = measure(&mut mpi, mib << 20, rounds).map_err(failed)?;
    mpi.leave();
    if info.rank > 0 {
        return Ok(());
    }
    output.print_wrapped(&found, || {
        key_value_list(&[
            ("library".to_owned(), found.library.clone()),
            ("workers".to_owned(), found.workers.to_string()),
            ("exchanged".to_owned(), format!("{mib} MiB")),
            ("tree all-reduce".to_owned(), format!("{:.1} ms", found.tree_ms)),
            ("as bf16".to_owned(), format!("{:.1} ms", found.bf16_ms)),
            ("MPI_Allreduce".to_owned(), format!("{:.1} ms", found.all_reduce_ms)),
            ("ratio".to_owned(), format!("{:.2}", found.ratio)),
        ])
    })
}

fn failed(error: ExchangeError) -> Failure {
    Failure::failed(error)
}
