//! The tree all-reduce against `MPI_Allreduce`, and with values that are sent as bf16.

use serde::Serialize;
use std::time::Instant;
use stratus_exchange::mpi::Mpi;
use stratus_exchange::{ExchangeError, Transport, rounded, tree};

/// The timing of all all-reduces.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExchangeTiming {
    /// The MPI library.
    pub library: String,
    /// The number of workers.
    pub workers: usize,
    /// Bytes that are summed.
    pub bytes: usize,
    /// Median milliseconds of the tree.
    pub tree_ms: f64,
    /// Median milliseconds with values that are sent as bf16.
    pub bf16_ms: f64,
    /// Median milliseconds of `MPI_Allreduce`.
    pub all_reduce_ms: f64,
    /// The tree's time as a multiple of MPI's.
    pub ratio: f64,
}

/// Sums `bytes` of f32 values of all workers with each, in alternation.
///
/// # Errors
/// If a worker has disconnected.
pub fn measure(mpi: &mut Mpi, bytes: usize, rounds: u32) -> Result<ExchangeTiming, ExchangeError> {
    let count = bytes / size_of::<f32>();
    let mut values = vec![1.0f32; count];
    let mut scratch = vec![0.0f32; count];
    let mut rounded_scratch = vec![0; rounded::scratch_length(count)];
    let (mut tree_times, mut rounded_times, mut mpi_times) = (Vec::new(), Vec::new(), Vec::new());
    // The first round allocates memory and opens connections; it does not count.
    for round in 0..=rounds {
        values.fill(1.0);
        tree::all_gather(mpi, &[0])?;
        let started = Instant::now();
        tree::all_reduce(mpi, &mut values, &mut scratch, 1)?;
        let tree_ms = 1e3 * started.elapsed().as_secs_f64();
        values.fill(1.0);
        tree::all_gather(mpi, &[0])?;
        let started = Instant::now();
        rounded::all_reduce(mpi, &mut values, &mut rounded_scratch, 1)?;
        let rounded_ms = 1e3 * started.elapsed().as_secs_f64();
        values.fill(1.0);
        tree::all_gather(mpi, &[0])?;
        let started = Instant::now();
        mpi.all_reduce(&values, &mut scratch)?;
        let all_reduce_ms = 1e3 * started.elapsed().as_secs_f64();
        if round > 0 {
            tree_times.push(tree_ms);
            rounded_times.push(rounded_ms);
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
        bf16_ms: median(&mut rounded_times),
        all_reduce_ms,
        ratio: tree_ms / all_reduce_ms,
    })
}
