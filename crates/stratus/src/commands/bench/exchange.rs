//! `stratus bench exchange`: compares the tree all-reduce with MPI_Allreduce, in alternation.

use crate::errors::{Failure, Result};
use crate::output::{Output, key_value_list};
use crate::workers;
use serde::Serialize;
use std::time::Instant;
use stratus_exchange::mpi::Mpi;
use stratus_exchange::{ExchangeError, Transport, launch_info, tree};

/// The timing of both all-reduces.
#[derive(Serialize)]
struct ExchangeTiming {
    library: String,
    workers: usize,
    bytes: usize,
    tree_ms: f64,
    all_reduce_ms: f64,
    ratio: f64,
}

/// Starts the workers, or runs as one of them.
///
/// # Errors
/// If MPI is not found, or a worker is lost.
pub fn run(count: u16, mib: usize, rounds: u32, output: &Output) -> Result {
    let Some(info) = launch_info() else { return workers::start(usize::from(count), output) };
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
            ("MPI_Allreduce".to_owned(), format!("{:.1} ms", found.all_reduce_ms)),
            ("ratio".to_owned(), format!("{:.2}", found.ratio)),
        ])
    })
}

fn failed(error: ExchangeError) -> Failure {
    Failure::failed(error)
}

fn measure(mpi: &mut Mpi, bytes: usize, rounds: u32) -> std::result::Result<ExchangeTiming, ExchangeError> {
    let count = bytes / size_of::<f32>();
    let mut values = vec![1.0f32; count];
    let mut scratch = vec![0.0f32; count];
    let (mut tree_times, mut mpi_times) = (Vec::new(), Vec::new());
    // The first round allocates memory and opens connections; it does not count.
    for round in 0..=rounds {
        values.fill(1.0);
        tree::all_gather(mpi, &[0])?;
        let started = Instant::now();
        tree::all_reduce(mpi, &mut values, &mut scratch)?;
        let tree_ms = 1e3 * started.elapsed().as_secs_f64();
        values.fill(1.0);
        tree::all_gather(mpi, &[0])?;
        let started = Instant::now();
        mpi.all_reduce(&values, &mut scratch)?;
        let all_reduce_ms = 1e3 * started.elapsed().as_secs_f64();
        if round > 0 {
            tree_times.push(tree_ms);
            mpi_times.push(all_reduce_ms);
        }
    }
    let median = |times: &mut Vec<f64>| stratus_base::median(times).unwrap_or(0.0);
    let (tree_ms, all_reduce_ms) = (median(&mut tree_times), median(&mut mpi_times));
    Ok(ExchangeTiming {
        library: mpi.describe(),
        workers: mpi.size(),
        bytes: count * size_of::<f32>(),
        tree_ms,
        all_reduce_ms,
        ratio: tree_ms / all_reduce_ms,
    })
}
