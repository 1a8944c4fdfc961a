//! Collective operations over a power-of-two number of workers. Sums follow the schedule of [`Halving`]: a
//! binary tree over the workers in rank order.

use crate::{ExchangeError, Transport};
use bytemuck::Pod;
use std::ops::AddAssign;
use stratus_engine::exchange::{Halving, Round};

/// Sums `values` in place, over the workers whose ranks differ by multiples of `stride`, a power of two: 1
/// for all workers. `scratch` must hold at least half their number, rounded up.
///
/// # Errors
/// If the transport fails.
pub fn all_reduce<T: Pod + AddAssign>(
    transport: &mut dyn Transport,
    values: &mut [T],
    scratch: &mut [T],
    stride: usize,
) -> Result<(), ExchangeError> {
    let (members, rank_of) = members(transport, values.len(), stride, 1);
    for round in 0..members.rounds() {
        let Round { peer, send, receive } = members.reduce(round);
        let received = &mut scratch[..receive.len()];
        transport.send_receive(
            rank_of(peer),
            bytemuck::cast_slice(&values[send]),
            bytemuck::cast_slice_mut(&mut *received),
        )?;
        values[receive].iter_mut().zip(received).for_each(|(sum, part)| *sum += *part);
    }
    // Each worker now has the sum of one range; gather all ranges.
    for round in (0..members.rounds()).rev() {
        let Round { peer, send, receive } = members.gather(round);
        let first = send.start.min(receive.start);
        let (low, high) = values[first..].split_at_mut(send.start.max(receive.start) - first);
        let (mine, theirs) = if send.start < receive.start { (low, high) } else { (high, low) };
        transport.send_receive(
            rank_of(peer),
            bytemuck::cast_slice(&mine[..send.len()]),
            bytemuck::cast_slice_mut(&mut theirs[..receive.len()]),
        )?;
    }
    Ok(())
}

/// The schedule of this worker among those whose ranks differ from its own by multiples of `stride`, and the
/// rank of each of these. Values are split between multiples of `unit`.
pub(crate) fn members(
    transport: &dyn Transport,
    length: usize,
    stride: usize,
    unit: usize,
) -> (Halving, impl Fn(usize) -> usize + use<>) {
    let (rank, size) = (transport.rank(), transport.size());
    let members = Halving { length, rank: rank / stride, size: size / stride, unit };
    (members, move |member| member * stride + rank % stride)
}

/// Returns the bitwise OR of a value over all workers.
///
/// # Errors
/// If the transport fails.
pub fn all_reduce_or(transport: &mut dyn Transport, bits: u64) -> Result<u64, ExchangeError> {
    let (rank, size, mut bits, mut distance) = (transport.rank(), transport.size(), bits, 1);
    while distance < size {
        let mut theirs = [0; size_of::<u64>()];
        transport.send_receive(rank ^ distance, &bits.to_le_bytes(), &mut theirs)?;
        bits |= u64::from_le_bytes(theirs);
        distance *= 2;
    }
    Ok(bits)
}

/// Gathers the same number of bytes from each worker, in rank order.
///
/// # Errors
/// If the transport fails.
pub fn all_gather(transport: &mut dyn Transport, bytes: &[u8]) -> Result<Vec<u8>, ExchangeError> {
    let (rank, size, length) = (transport.rank(), transport.size(), bytes.len());
    let mut all = vec![0; size * length];
    all[rank * length..][..length].copy_from_slice(bytes);
    let mut distance = 1;
    while distance < size {
        // Each block of workers has already gathered the bytes of its members.
        let first = (rank / distance) * distance * length;
        let theirs_first = ((first / length.max(1)) ^ distance) * length;
        let gathered = all[first..][..distance * length].to_vec();
        let theirs = &mut all[theirs_first..][..distance * length];
        transport.send_receive(rank ^ distance, &gathered, theirs)?;
        distance *= 2;
    }
    Ok(all)
}

/// The maximum size of a text that is sent to all workers; the largest is a plan.
const MAX_BROADCAST_BYTES: u64 = 128 << 20;

/// Sends the first worker's bytes to all workers.
///
/// # Errors
/// If the transport fails, or the first worker announces more than 128 MiB.
pub fn broadcast(transport: &mut dyn Transport, bytes: Vec<u8>) -> Result<Vec<u8>, ExchangeError> {
    let (rank, size) = (transport.rank(), transport.size());
    let lengths = all_gather(transport, &(bytes.len() as u64).to_le_bytes())?;
    let mut length = [0; 8];
    length.copy_from_slice(&lengths[..8]);
    let announced = u64::from_le_bytes(length);
    if announced > MAX_BROADCAST_BYTES {
        return Err(ExchangeError::TooLarge { peer: 0, bytes: announced, limit: MAX_BROADCAST_BYTES });
    }
    let mut content = if rank == 0 { bytes } else { vec![0; announced as usize] };
    let mut distance = 1;
    while distance < size {
        if rank < distance {
            transport.send_receive(rank + distance, &content, &mut [])?;
        } else if rank < 2 * distance {
            transport.send_receive(rank - distance, &[], &mut content)?;
        }
        distance *= 2;
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_process::{InProcess, transports};

    /// Runs a function on every worker.
    fn on_all<R: Send>(size: usize, run: impl Fn(&mut InProcess) -> R + Sync) -> Vec<R> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = transports(size)
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
    fn values_of(rank: usize, length: usize) -> Vec<f32> {
        (0..length).map(|i| 1.0 / (1 + 3 * rank + 7 * i) as f32 * 10f32.powi(rank as i32 - 2)).collect()
    }

    fn tree(mut values: Vec<Vec<f32>>) -> Vec<f32> {
        while values.len() > 1 {
            let add = |pair: &[Vec<f32>]| pair[0].iter().zip(&pair[1]).map(|(a, b)| a + b).collect();
            values = values.chunks(2).map(add).collect();
        }
        values.remove(0)
    }

    #[test]
    fn every_element_is_summed_along_one_tree() {
        for size in [1, 2, 4, 8] {
            for length in [0, 1, 2, 3, 5, 8, 1000, 1001] {
                let sums = on_all(size, |worker| {
                    let mut values = values_of(worker.rank(), length);
                    let mut scratch = vec![0.0; length.div_ceil(2)];
                    all_reduce(worker, &mut values, &mut scratch, 1).unwrap();
                    values
                });
                let expected = tree((0..size).map(|rank| values_of(rank, length)).collect());
                for found in sums {
                    assert_eq!(found, expected, "{size} workers, {length} values");
                }
            }
        }
    }

    #[test]
    fn workers_of_the_same_stage_are_summed() {
        for (size, stride, length) in [(4, 2, 5), (8, 2, 1001), (8, 4, 3), (4, 4, 2)] {
            let sums = on_all(size, |worker| {
                let mut values = values_of(worker.rank(), length);
                let mut scratch = vec![0.0; length.div_ceil(2)];
                all_reduce(worker, &mut values, &mut scratch, stride).unwrap();
                values
            });
            for (rank, found) in sums.into_iter().enumerate() {
                let stage = (rank % stride..size).step_by(stride).map(|rank| values_of(rank, length));
                assert_eq!(found, tree(stage.collect()), "worker {rank} of {size}, {stride} stages");
            }
        }
    }

    #[test]
    fn gathers_from_all_and_broadcasts_from_the_first() {
        for size in [1, 2, 4, 8] {
            let received = on_all(size, |worker| {
                let rank = worker.rank() as u8;
                let own = if rank == 0 { b"the plan".to_vec() } else { vec![7; 100] };
                assert_eq!(all_reduce_or(worker, 1 << rank).unwrap(), (1 << size) - 1);
                (all_gather(worker, &[rank, 10 * rank]).unwrap(), broadcast(worker, own).unwrap())
            });
            let all: Vec<u8> = (0..size as u8).flat_map(|rank| [rank, 10 * rank]).collect();
            for (gathered, broadcast) in received {
                assert_eq!((gathered, broadcast.as_slice()), (all.clone(), &b"the plan"[..]));
            }
        }
    }

    #[test]
    fn an_impossible_length_of_a_broadcast_is_an_error_before_memory_is_allocated() {
        let errors = on_all(2, |worker| match worker.rank() {
            // A damaged first worker, which announces the largest number.
            0 => all_gather(worker, &[0xff; 8]).map(|_| String::new()).unwrap(),
            _ => broadcast(worker, Vec::new()).unwrap_err().to_string(),
        });
        assert!(errors[1].starts_with("worker 0 announced 18446744073709551615 bytes"), "{errors:?}");
    }

    #[test]
    fn rejects_a_different_number_of_bytes() {
        let errors = on_all(2, |worker| {
            let mut values = vec![0.0f32; 4 + 4 * worker.rank()];
            let mut scratch = vec![0.0; 8];
            all_reduce(worker, &mut values, &mut scratch, 1).unwrap_err().to_string()
        });
        assert!(errors[0].contains("worker 1 sent 16 bytes, expected 8"), "{errors:?}");
    }
}
