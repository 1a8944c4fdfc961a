//! `stratus bench exchange`: sums over workers, ours along the tree and the MPI library's own, in turn.

use crate::commands::train::workers;
use crate::errors::{Failure, Result};
use crate::output::{Output, pairs};
use serde::Serialize;
use std::time::Instant;
use stratus_exchange::mpi::Mpi;
use stratus_exchange::{ExchangeError, Transport, launched, tree};

/// What `stratus bench exchange` found.
#[derive(Serialize)]
struct Exchanged {
    library: String,
    workers: usize,
    bytes: usize,
    tree_ms: f64,
    all_reduce_ms: f64,
    ratio: f64,
}

/// Starts the workers, or is one of them.
///
/// # Errors
/// Where there is no MPI, or a worker is gone.
pub fn run(count: u16, mib: usize, rounds: u32, output: &Output) -> Result {
    let Some(told) = launched() else { return workers::start(usize::from(count), output) };
    let mut mpi = Mpi::join(told).map_err(failed)?;
    let found = measure(&mut mpi, mib << 20, rounds).map_err(failed)?;
    mpi.leave();
    if told.rank > 0 {
        return Ok(());
    }
    output.result(&found, || {
        pairs(&[
            ("library".to_owned(), found.library.clone()),
            ("workers".to_owned(), found.workers.to_string()),
            ("exchanged".to_owned(), format!("{mib} MiB")),
            ("along the tree".to_owned(), format!("{:.1} ms", found.tree_ms)),
            ("MPI_Allreduce".to_owned(), format!("{:.1} ms", found.all_reduce_ms)),
            ("ratio".to_owned(), format!("{:.2}", found.ratio)),
        ])
    })
}

fn failed(error: ExchangeError) -> Failure {
    Failure::failed(error)
}

fn measure(mpi: &mut Mpi, bytes: usize, rounds: u32) -> std::result::Result<Exchanged, ExchangeError> {
    let count = bytes / size_of::<f32>();
    let mut values = vec![1.0f32; count];
    let mut scratch = vec![0.0f32; count];
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    // The first round finds memory and ways.
    for round in 0..=rounds {
        values.fill(1.0);
        tree::all_gather(mpi, &[0])?;
        let begun = Instant::now();
        tree::all_reduce(mpi, &mut values, &mut scratch)?;
        let tree_ms = 1e3 * begun.elapsed().as_secs_f64();
        values.fill(1.0);
        tree::all_gather(mpi, &[0])?;
        let begun = Instant::now();
        mpi.all_reduce(&values, &mut scratch)?;
        let all_reduce_ms = 1e3 * begun.elapsed().as_secs_f64();
        if round > 0 {
            ours.push(tree_ms);
            theirs.push(all_reduce_ms);
        }
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied().unwrap_or(0.0)
    };
    let (tree_ms, all_reduce_ms) = (median(&mut ours), median(&mut theirs));
    Ok(Exchanged {
        library: mpi.describe(),
        workers: mpi.size(),
        bytes: count * size_of::<f32>(),
        tree_ms,
        all_reduce_ms,
        ratio: tree_ms / all_reduce_ms,
    })
}
