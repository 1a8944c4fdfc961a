//! The schedule of an all-reduce by recursive vector halving and distance doubling.
//!
//! A sum is reduced in rounds, then gathered in the reverse order (Thakur, Rabenseifner, Gropp: "Optimization
//! of collective communication operations in MPICH", 2005, section 4.5): first, neighbours exchange halves:
//! each of the pair adds one half; then pairs of pairs, and so on. Every element is thus summed along the
//! same binary tree over the workers in rank order, and each worker sends and receives `2 (1 - 1 / size)`
//! times the number of values.

use std::ops::Range;

/// The part of one worker in an all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halving {
    /// The number of values.
    pub length: usize,
    /// The rank of this worker among those that sum.
    pub rank: usize,
    /// The number of workers that sum, a power of two.
    pub size: usize,
    /// Values are only split between multiples of this number.
    pub unit: usize,
}

/// A number of values that is a multiple of 16 bytes in every type, also as bf16.
pub const ALIGNED_UNIT: usize = 8;

/// One exchange with another worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// The rank of the other worker.
    pub peer: usize,
    /// The values that this worker sends.
    pub send: Range<usize>,
    /// The values that it receives: in a reduction to add them to its own, else to replace its own.
    pub receive: Range<usize>,
}

impl Halving {
    /// The number of rounds of the reduction, and of the gathering.
    #[must_use]
    pub fn rounds(&self) -> u32 {
        self.size.max(1).ilog2()
    }

    /// A round of the reduction, from 0.
    #[must_use]
    pub fn reduce(&self, round: u32) -> Round {
        let (receive, send) = halves(self.units_before(round), self.is_upper(round));
        Round { peer: self.rank ^ (1 << round), send: self.values(send), receive: self.values(receive) }
    }

    /// The round of the gathering that mirrors a round of the reduction. They follow in descending order.
    #[must_use]
    pub fn gather(&self, round: u32) -> Round {
        let Round { peer, send, receive } = self.reduce(round);
        Round { peer, send: receive, receive: send }
    }

    /// The values whose sum this worker has after the reduction.
    #[must_use]
    pub fn own_range(&self) -> Range<usize> {
        self.values(self.units_before(self.rounds()))
    }

    /// The maximum number of values that are sent or received in a round.
    #[must_use]
    pub fn max_sent(&self) -> usize {
        self.length.div_ceil(self.unit).div_ceil(2) * self.unit
    }

    /// The units that this worker adds up before a round.
    fn units_before(&self, round: u32) -> Range<usize> {
        let all = 0..self.length.div_ceil(self.unit);
        (0..round).fold(all, |range, earlier| halves(range, self.is_upper(earlier)).0)
    }

    /// The values of units.
    fn values(&self, units: Range<usize>) -> Range<usize> {
        let value = |unit: usize| (unit * self.unit).min(self.length);
        value(units.start)..value(units.end)
    }

    /// Returns whether this worker keeps the upper half in a round.
    fn is_upper(&self, round: u32) -> bool {
        self.rank >> round & 1 == 1
    }
}

/// The half of a range that a worker keeps, and the half that it gives away.
fn halves(range: Range<usize>, upper: bool) -> (Range<usize>, Range<usize>) {
    let middle = range.start + range.len().div_ceil(2);
    let (low, high) = (range.start..middle, middle..range.end);
    if upper { (high, low) } else { (low, high) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every worker receives what its peer sends, and the own ranges are a partition.
    #[test]
    fn rounds_of_all_workers_fit_together() {
        for (size, unit) in [1, 2, 4, 8, 16].into_iter().flat_map(|size| [(size, 1), (size, ALIGNED_UNIT)]) {
            for length in [0, 1, 2, 3, 7, 8, 9, 100, 1000, 1001] {
                let worker = |rank| Halving { length, rank, size, unit };
                for rank in 0..size {
                    for round in 0..worker(rank).rounds() {
                        let own = worker(rank).reduce(round);
                        let other = worker(own.peer).reduce(round);
                        assert_eq!(
                            (other.peer, &other.send, &other.receive),
                            (rank, &own.receive, &own.send)
                        );
                        assert!(own.send.len().max(own.receive.len()) <= worker(rank).max_sent());
                        assert!(own.send.start.is_multiple_of(unit) || own.send.is_empty());
                        let gathered = worker(rank).gather(round);
                        assert_eq!((gathered.send, gathered.receive), (own.receive, own.send));
                    }
                }
                let mut ranges: Vec<_> = (0..size).map(|rank| worker(rank).own_range()).collect();
                ranges.sort_by_key(|range| (range.start, range.end));
                assert_eq!(ranges.iter().map(ExactSizeIterator::len).sum::<usize>(), length);
                assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "{ranges:?}");
            }
        }
    }
}
