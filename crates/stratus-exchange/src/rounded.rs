//! Sums of f32 values that are sent as bf16, which halves the bytes.
//!
//! The scheme is that of [`tree`](crate::tree). Each worker rounds what it sends, and adds what it receives
//! to its own f32 values. The sum of each range is rounded by the worker that has it before it is gathered,
//! so that all workers end with the same bits. Every element is added by one worker, so the result is a
//! function of the values and the number of workers.
//!
//! An element is rounded `log₂(size) + 1` times at most, each time by at most `2⁻⁸` of the partial sum.

use crate::tree::members;
use crate::{ExchangeError, Transport};
use stratus_engine::exchange::{ALIGNED_UNIT, Halving, Round};

/// The number of scratch elements for a sum of `length` values: half of them are sent, half are received.
#[must_use]
pub fn scratch_length(length: usize) -> usize {
    2 * half(length)
}

/// The maximum number of values that are sent, or received, at once. Ranges are multiples of a unit, as on
/// GPUs, whose sums have the same bits.
fn half(length: usize) -> usize {
    Halving { length, rank: 0, size: 2, unit: ALIGNED_UNIT }.max_sent()
}

/// Sums `values` in place, over the workers whose ranks differ by multiples of `stride`, a power of two: 1
/// for all workers. With one worker, values are not rounded. `scratch` must have at least [`scratch_length`]
/// elements.
///
/// # Errors
/// If the transport fails.
pub fn all_reduce(
    transport: &mut dyn Transport,
    values: &mut [f32],
    scratch: &mut [u16],
    stride: usize,
) -> Result<(), ExchangeError> {
    let (members, rank_of) = members(transport, values.len(), stride, ALIGNED_UNIT);
    if members.size < 2 {
        return Ok(());
    }
    for round in 0..members.rounds() {
        let round = members.reduce(round);
        let received = exchange(transport, rank_of(round.peer), values, &round, scratch)?;
        values[round.receive].iter_mut().zip(received).for_each(|(sum, part)| *sum += widen(*part));
    }
    // Each worker now has the sum of one range, which it rounds as the others receive it.
    values[members.own_range()].iter_mut().for_each(|sum| *sum = widen(round(*sum)));
    for round in (0..members.rounds()).rev() {
        let round = members.gather(round);
        let received = exchange(transport, rank_of(round.peer), values, &round, scratch)?;
        values[round.receive].iter_mut().zip(received).for_each(|(sum, part)| *sum = widen(*part));
    }
    Ok(())
}

/// Sends the rounded values of a round, and returns those that are received.
fn exchange<'a>(
    transport: &mut dyn Transport,
    peer: usize,
    values: &[f32],
    Round { send, receive, .. }: &Round,
    scratch: &'a mut [u16],
) -> Result<&'a [u16], ExchangeError> {
    let (sent, received) = scratch.split_at_mut(half(values.len()));
    let (sent, received) = (&mut sent[..send.len()], &mut received[..receive.len()]);
    sent.iter_mut().zip(&values[send.clone()]).for_each(|(rounded, value)| *rounded = round(*value));
    transport.send_receive(peer, bytemuck::cast_slice(sent), bytemuck::cast_slice_mut(received))?;
    Ok(received)
}

/// The bits of the nearest bf16, of two equally near ones the even one. NaN stays NaN.
fn round(value: f32) -> u16 {
    let bits = value.to_bits();
    let nearest = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // A quiet NaN: the payload may be in the bits that are lost.
    let nan = (bits >> 16) | 0x40;
    (if value.is_nan() { nan } else { nearest }) as u16
}

/// The f32 of a bf16.
fn widen(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_process::transports;

    /// The sums of all workers, whose values are a function of rank and position.
    fn sums(
        size: usize,
        stride: usize,
        length: usize,
        value: impl Fn(usize, usize) -> f32 + Sync,
    ) -> Vec<Vec<f32>> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = transports(size)
                .into_iter()
                .map(|mut worker| {
                    let value = &value;
                    scope.spawn(move || {
                        let rank = worker.rank();
                        let mut values: Vec<f32> = (0..length).map(|at| value(rank, at)).collect();
                        let mut scratch = vec![0; scratch_length(length)];
                        all_reduce(&mut worker, &mut values, &mut scratch, stride).unwrap();
                        values
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    /// Values of both signs and of magnitudes over six decades.
    fn value(rank: usize, at: usize) -> f32 {
        let sign = if (rank + at).is_multiple_of(3) { -1.0 } else { 1.0 };
        sign * 10f32.powi((at % 7) as i32 - 3) / (1 + 3 * rank + 7 * (at % 11)) as f32
    }

    #[test]
    fn all_workers_end_with_the_same_rounded_sums() {
        for size in [2, 4, 8] {
            for length in [0, 1, 2, 3, 5, 7, 8, 64, 1000, 1001] {
                let found = sums(size, 1, length, value);
                for (rank, worker) in found.iter().enumerate() {
                    assert_eq!(bits(worker), bits(&found[0]), "worker {rank} of {size}, {length} values");
                }
                let levels = f64::from(size.ilog2()) + 1.0;
                for (at, &sum) in found[0].iter().enumerate() {
                    assert_eq!(sum.to_bits() & 0xffff, 0, "a sum is not a bf16");
                    let terms = (0..size).map(|rank| f64::from(value(rank, at)));
                    let (exact, magnitude) =
                        terms.fold((0.0, 0.0), |(sum, magnitude), term| (sum + term, magnitude + term.abs()));
                    let error = (f64::from(sum) - exact).abs();
                    // Each of the roundings has half a unit in the last of 8 binary places.
                    assert!(error <= 1.01 * levels * magnitude / 256.0, "{sum} for {exact}");
                }
            }
        }
    }

    #[test]
    fn workers_of_the_same_stage_are_summed() {
        for (size, stride, length) in [(4, 2, 5), (8, 2, 1001), (8, 4, 3)] {
            let found = sums(size, stride, length, value);
            for (rank, worker) in found.iter().enumerate() {
                let group = size / stride;
                let alone = sums(group, 1, length, |member, at| value(rank % stride + stride * member, at));
                assert_eq!(bits(worker), bits(&alone[0]), "worker {rank} of {size}, {stride} stages");
            }
        }
    }

    #[test]
    fn sums_of_one_worker_are_not_rounded() {
        for (size, stride) in [(1, 1), (4, 4)] {
            for (rank, worker) in sums(size, stride, 33, value).iter().enumerate() {
                let own: Vec<f32> = (0..33).map(|at| value(rank, at)).collect();
                assert_eq!(bits(worker), bits(&own));
            }
        }
    }

    #[test]
    fn nan_and_infinities_reach_all_workers() {
        // A NaN whose payload has only bits that bf16 lacks.
        let nan = f32::from_bits(0x7f80_0001);
        let special = [nan, f32::INFINITY, f32::NEG_INFINITY, -nan, f32::MAX];
        let found = sums(4, 1, 20, |rank, at| if rank == at % 4 { special[at % special.len()] } else { 1.0 });
        for worker in &found {
            assert_eq!(bits(worker), bits(&found[0]));
            for (at, sum) in worker.iter().enumerate() {
                match special[at % special.len()] {
                    value if value.is_nan() => assert!(sum.is_nan(), "{sum} at {at}"),
                    // The largest f32 is nearer to 2¹²⁸ than to the largest bf16.
                    value if value == f32::MAX => assert_eq!(*sum, f32::INFINITY),
                    value => assert_eq!(*sum, value),
                }
            }
        }
    }

    #[test]
    fn rounds_to_nearest_even() {
        for (from, to) in [
            (0x3f80_0000, 0x3f80), // 1
            (0x3f80_8000, 0x3f80), // between two: the even one
            (0x3f81_8000, 0x3f82),
            (0x3f80_8001, 0x3f81),
            (0x8000_0000, 0x8000), // -0
            (0x0000_8001, 0x0001), // the smallest denormal bf16
            (0xff80_0000, 0xff80), // -∞
        ] {
            assert_eq!(round(f32::from_bits(from)), to, "{from:#x}");
        }
        // Every bf16 is its own nearest one, except for NaN, which becomes quiet.
        for bits in 0..=u16::MAX {
            let again = round(widen(bits));
            assert!(again == bits || widen(bits).is_nan() && again == bits | 0x40, "{bits:#x}");
        }
    }
}
