//! Sums and messages among workers, whose number is a power of two.
//!
//! A sum is made by recursive vector halving with the distance doubled, then gathered the other way round
//! (Thakur, Rabenseifner, Gropp: "Optimization of collective communication operations in MPICH", 2005,
//! section 4.5): first each pair of neighbours adds, each half of the values, then pairs of pairs, and so on.
//! So the sum of every element is that of one binary tree over the workers in their order, and each worker
//! sends and receives `2 (1 - 1 / size)` times the values.

use crate::{ExchangeError, Transport};
use bytemuck::Pod;
use std::ops::{AddAssign, Range};

/// Adds up `values` over all workers, in place. `scratch` holds at least half as many, rounded up.
///
/// # Errors
/// What the transport says.
pub fn all_reduce<T: Pod + AddAssign>(
    transport: &mut dyn Transport,
    values: &mut [T],
    scratch: &mut [T],
) -> Result<(), ExchangeError> {
    let (rank, size) = (transport.rank(), transport.size());
    let mut own = 0..values.len();
    let mut distance = 1;
    while distance < size {
        let (keep, give) = halves(&own, rank & distance != 0);
        let received = &mut scratch[..keep.len()];
        transport.send_receive(
            rank ^ distance,
            bytemuck::cast_slice(&values[give]),
            bytemuck::cast_slice_mut(&mut *received),
        )?;
        values[keep.clone()].iter_mut().zip(received).for_each(|(sum, part)| *sum += *part);
        own = keep;
        distance *= 2;
    }
    // Each now has the sum of a part; the parts are put together again.
    while distance > 1 {
        distance /= 2;
        let whole = before(values.len(), rank, distance);
        let (keep, give) = halves(&whole, rank & distance != 0);
        let (low, high) = values[whole.clone()].split_at_mut(keep.start.max(give.start) - whole.start);
        let (mine, theirs) = if keep.start < give.start { (low, high) } else { (high, low) };
        transport.send_receive(
            rank ^ distance,
            bytemuck::cast_slice(mine),
            bytemuck::cast_slice_mut(theirs),
        )?;
    }
    Ok(())
}

/// The half of a range that a worker keeps, and the one that it gives away.
fn halves(range: &Range<usize>, upper: bool) -> (Range<usize>, Range<usize>) {
    let middle = range.start + range.len().div_ceil(2);
    let (low, high) = (range.start..middle, middle..range.end);
    if upper { (high, low) } else { (low, high) }
}

/// The range that a worker had before it was halved at `distance`.
fn before(length: usize, rank: usize, distance: usize) -> Range<usize> {
    let mut range = 0..length;
    let mut at = 1;
    while at < distance {
        range = halves(&range, rank & at != 0).0;
        at *= 2;
    }
    range
}

/// The bits that any worker sets.
///
/// # Errors
/// What the transport says.
pub fn any_bits(transport: &mut dyn Transport, own: u64) -> Result<u64, ExchangeError> {
    let (rank, size, mut bits, mut distance) = (transport.rank(), transport.size(), own, 1);
    while distance < size {
        let mut theirs = [0; size_of::<u64>()];
        transport.send_receive(rank ^ distance, &bits.to_le_bytes(), &mut theirs)?;
        bits |= u64::from_le_bytes(theirs);
        distance *= 2;
    }
    Ok(bits)
}

/// What each worker says, in their order; all say equally much.
///
/// # Errors
/// What the transport says.
pub fn all_gather(transport: &mut dyn Transport, own: &[u8]) -> Result<Vec<u8>, ExchangeError> {
    let (rank, size, length) = (transport.rank(), transport.size(), own.len());
    let mut all = vec![0; size * length];
    all[rank * length..][..length].copy_from_slice(own);
    let mut distance = 1;
    while distance < size {
        // Blocks of workers that know of each other.
        let first = (rank / distance) * distance * length;
        let other = ((first / length.max(1)) ^ distance) * length;
        let known = all[first..][..distance * length].to_vec();
        let theirs = &mut all[other..][..distance * length];
        transport.send_receive(rank ^ distance, &known, theirs)?;
        distance *= 2;
    }
    Ok(all)
}

/// What the first worker says, at all workers.
///
/// # Errors
/// What the transport says.
pub fn broadcast(transport: &mut dyn Transport, own: Vec<u8>) -> Result<Vec<u8>, ExchangeError> {
    let (rank, size) = (transport.rank(), transport.size());
    let lengths = all_gather(transport, &(own.len() as u64).to_le_bytes())?;
    let mut length = [0; 8];
    length.copy_from_slice(&lengths[..8]);
    let mut text = if rank == 0 { own } else { vec![0; u64::from_le_bytes(length) as usize] };
    let mut distance = 1;
    while distance < size {
        if rank < distance {
            transport.send_receive(rank + distance, &text, &mut [])?;
        } else if rank < 2 * distance {
            transport.send_receive(rank - distance, &[], &mut text)?;
        }
        distance *= 2;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_process::{InProcess, workers};

    /// Runs a function on every worker.
    fn on_all<R: Send>(size: usize, run: impl Fn(&mut InProcess) -> R + Sync) -> Vec<R> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = workers(size)
                .into_iter()
                .map(|mut worker| {
                    let run = &run;
                    scope.spawn(move || run(&mut worker))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// Numbers whose sum depends on the order in which they are added.
    fn share(rank: usize, length: usize) -> Vec<f32> {
        (0..length).map(|i| 1.0 / (1 + 3 * rank + 7 * i) as f32 * 10f32.powi(rank as i32 - 2)).collect()
    }

    fn tree(mut shares: Vec<Vec<f32>>) -> Vec<f32> {
        while shares.len() > 1 {
            let add = |pair: &[Vec<f32>]| pair[0].iter().zip(&pair[1]).map(|(a, b)| a + b).collect();
            shares = shares.chunks(2).map(add).collect();
        }
        shares.remove(0)
    }

    #[test]
    fn sums_are_those_of_one_tree() {
        for size in [1, 2, 4, 8] {
            for length in [0, 1, 2, 3, 5, 8, 1000, 1001] {
                let sums = on_all(size, |worker| {
                    let mut values = share(worker.rank(), length);
                    let mut scratch = vec![0.0; length.div_ceil(2)];
                    all_reduce(worker, &mut values, &mut scratch).unwrap();
                    values
                });
                let expected = tree((0..size).map(|rank| share(rank, length)).collect());
                for found in sums {
                    assert_eq!(found, expected, "{size} workers, {length} values");
                }
            }
        }
    }

    #[test]
    fn everyone_hears_everyone_and_the_first() {
        for size in [1, 2, 4, 8] {
            let heard = on_all(size, |worker| {
                let rank = worker.rank() as u8;
                let own = if rank == 0 { b"the plan".to_vec() } else { vec![7; 100] };
                assert_eq!(any_bits(worker, 1 << rank).unwrap(), (1 << size) - 1);
                (all_gather(worker, &[rank, 10 * rank]).unwrap(), broadcast(worker, own).unwrap())
            });
            let all: Vec<u8> = (0..size as u8).flat_map(|rank| [rank, 10 * rank]).collect();
            for (gathered, said) in heard {
                assert_eq!((gathered, said.as_slice()), (all.clone(), &b"the plan"[..]));
            }
        }
    }

    #[test]
    fn other_sizes_are_named() {
        let errors = on_all(2, |worker| {
            let mut values = vec![0.0f32; 4 + 4 * worker.rank()];
            let mut scratch = vec![0.0; 8];
            all_reduce(worker, &mut values, &mut scratch).unwrap_err().to_string()
        });
        assert!(errors[0].contains("worker 1 exchanges 16 bytes where this one has 8"), "{errors:?}");
    }
}
