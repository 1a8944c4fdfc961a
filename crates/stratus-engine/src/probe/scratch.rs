//! The memory that probed steps run on: as much as caches hold twice over, and the largest step.
//!
//! Each type of numbers has a ring of bytes. An operand that is used for the first time, or whose bytes were
//! given to others since, gets the bytes that were used longest ago, which are in no cache. One that was used
//! not long ago is found where it was. So what is in a cache in a training step is in it here too.

use crate::{AlignedBytes, DType, EngineError, Operands, Tile};
use std::collections::{BTreeMap, HashMap};
use stratus_base::ALIGNMENT;

/// Where an operand lies in the plan: the part of the memory, the offset there, and for what is not filled
/// with numbers of ordinary size the value itself.
pub(super) type Key = (u8, usize, Option<usize>);

/// Length of the pattern that fills the memory, a prime: no extent is a multiple of it.
const PATTERN: usize = 61;
/// The upper half of an f32 of 0.125, and a bf16 as large; the sign is the highest bit.
const EIGHTH: u16 = 0x3e00;
const SIGN: u16 = 0x8000;
/// Numbers of an operand that are looked at after a step.
const LOOKED_AT: usize = 128;
/// Numbers of ordinary size: products of two of them are no denormals, and sums of many do not overflow.
const ORDINARY: std::ops::Range<f32> = 1e-12..1e12;

/// Which ring an operand lies in: what one type of numbers left would be a number of any size of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    /// f32.
    Single,
    /// bf16.
    Bf16,
    /// f16.
    F16,
    /// f64: the scalars of an iteration, and sums.
    Double,
    /// Labels, and positions within a pooling window: they must be valid.
    Positions,
    /// Working memory of kernels.
    Working,
}

impl Kind {
    pub const ALL: [Self; 6] =
        [Self::Single, Self::Bf16, Self::F16, Self::Double, Self::Positions, Self::Working];

    pub fn of(dtype: DType) -> Self {
        match dtype {
            DType::F32 => Self::Single,
            DType::Bf16 => Self::Bf16,
            DType::F16 => Self::F16,
            DType::F64 => Self::Double,
            DType::U8 | DType::I32 => Self::Positions,
        }
    }

    /// Whether it is filled with numbers of ordinary size.
    fn has_numbers(self) -> bool {
        matches!(self, Self::Single | Self::Bf16 | Self::F16)
    }
}

/// One operand of a step in one tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needed {
    pub kind: Kind,
    pub key: Key,
    pub bytes: usize,
    pub operand: usize,
    /// Whether the step reads it.
    pub is_read: bool,
    /// Whether the step writes it.
    pub is_written: bool,
}

/// A ring of bytes for one type of numbers.
#[derive(Debug, Default)]
struct Ring {
    capacity: usize,
    /// Where the bytes are that were given away longest ago.
    head: usize,
    /// Start and length of what is given away.
    given: HashMap<Key, (usize, usize)>,
    /// The same by start.
    by_start: BTreeMap<usize, Key>,
}

impl Ring {
    fn start_of(&self, key: Key, bytes: usize) -> Option<usize> {
        self.given.get(&key).filter(|(_, length)| *length >= bytes).map(|(start, _)| *start)
    }

    fn forget(&mut self, key: Key) {
        if let Some((start, _)) = self.given.remove(&key) {
            self.by_start.remove(&start);
        }
    }

    /// Gives each operand its bytes; says which are new.
    fn reserve(&mut self, needed: &[(Key, usize)]) -> Vec<(usize, bool)> {
        loop {
            let missing: Vec<_> =
                needed.iter().filter(|(key, bytes)| self.start_of(*key, *bytes).is_none()).copied().collect();
            missing.iter().for_each(|(key, _)| self.forget(*key));
            let bytes: usize = missing.iter().map(|(_, bytes)| padded(*bytes)).sum();
            let begin = if self.head + bytes > self.capacity { 0 } else { self.head };
            let overlapping: Vec<Key> = self
                .by_start
                .range(..begin + bytes)
                .rev()
                .map(|(start, key)| (*start, *key))
                .take_while(|(start, key)| start + self.given.get(key).map_or(0, |given| given.1) > begin)
                .map(|(_, key)| key)
                .collect();
            overlapping.iter().for_each(|key| self.forget(*key));
            if needed.iter().any(|(key, _)| overlapping.contains(key)) {
                // It was among those that were given away longest ago: it is as good as new.
                continue;
            }
            let mut next = begin;
            for (key, bytes) in &missing {
                self.given.insert(*key, (next, *bytes));
                self.by_start.insert(next, *key);
                next += padded(*bytes);
            }
            if bytes > 0 {
                self.head = next;
            }
            return needed
                .iter()
                .map(|(key, _)| {
                    let start = self.given.get(key).map_or(0, |given| given.0);
                    (start, missing.iter().any(|(new, _)| new == key))
                })
                .collect();
        }
    }
}

fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

/// The rings, one behind the other.
#[derive(Debug)]
pub(super) struct Scratch {
    memory: AlignedBytes,
    rings: Vec<(usize, Ring)>,
}

impl Scratch {
    /// With so many bytes for each of [`Kind::ALL`].
    pub fn new(capacities: [usize; Kind::ALL.len()]) -> Result<Self, EngineError> {
        let mut rings = Vec::with_capacity(capacities.len());
        let mut begin = 0;
        for capacity in capacities.map(padded) {
            rings.push((begin, Ring { capacity, ..Ring::default() }));
            begin += capacity;
        }
        let mut memory = AlignedBytes::zeroed(begin, "timing steps")?;
        for (kind, (begin, ring)) in Kind::ALL.into_iter().zip(&rings) {
            if kind.has_numbers() {
                fill(&mut memory.as_mut_slice()[*begin..*begin + ring.capacity]);
            }
        }
        Ok(Self { memory, rings })
    }

    /// Bytes in all.
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// Runs `run` on a step's operands. Numbers that it leaves and that are of no ordinary size are replaced.
    pub fn with<T>(&mut self, needed: &[Needed], tile: Tile, run: impl FnOnce(&mut Operands<'_>) -> T) -> T {
        let mut ranges: Vec<(usize, &Needed)> = Vec::with_capacity(needed.len());
        for (kind, (begin, ring)) in Kind::ALL.into_iter().zip(&mut self.rings) {
            let of_kind: Vec<&Needed> = needed.iter().filter(|needed| needed.kind == kind).collect();
            let keys: Vec<_> = of_kind.iter().map(|needed| (needed.key, needed.bytes)).collect();
            let places = ring.reserve(&keys);
            for (needed, (start, is_new)) in of_kind.into_iter().zip(places) {
                let start = *begin + start;
                if is_new && kind == Kind::Positions && needed.is_read {
                    // The first class, and the first place in each window.
                    self.memory.as_mut_slice()[start..start + needed.bytes].fill(0);
                }
                ranges.push((start, needed));
            }
        }
        ranges.sort_by_key(|(start, _)| *start);
        let mut operands = Operands::new(tile);
        let mut rest = self.memory.as_mut_slice();
        let mut consumed = 0;
        for (start, needed) in &ranges {
            let (_, tail) = rest.split_at_mut(start - consumed);
            let (slice, tail) = tail.split_at_mut(needed.bytes);
            operands.set(needed.operand, slice);
            rest = tail;
            consumed = start + needed.bytes;
        }
        let result = run(&mut operands);
        for (start, needed) in ranges.into_iter().filter(|(_, needed)| needed.is_written) {
            let bytes = &mut self.memory.as_mut_slice()[start..start + needed.bytes];
            if needed.kind.has_numbers() && !is_ordinary(needed.kind, bytes) {
                fill(bytes);
            }
        }
        result
    }
}

/// Fills bytes with numbers of either sign and ordinary size, in f32, bf16 and f16 alike.
fn fill(bytes: &mut [u8]) {
    let numbers: [u16; PATTERN] =
        std::array::from_fn(|number| EIGHTH + number as u16 + if number % 2 == 0 { SIGN } else { 0 });
    let pattern: &[u8] = bytemuck::cast_slice(&numbers);
    for part in bytes.chunks_mut(pattern.len()) {
        part.copy_from_slice(&pattern[..part.len()]);
    }
}

/// Whether most numbers, of some that are looked at, are zero or of ordinary size, and not all are zero.
fn is_ordinary(kind: Kind, bytes: &[u8]) -> bool {
    let dtype = match kind {
        Kind::Bf16 => DType::Bf16,
        Kind::F16 => DType::F16,
        _ => DType::F32,
    };
    let count = bytes.len() / dtype.bytes();
    let looked_at = count.min(LOOKED_AT);
    let sizes = (0..looked_at).map(|number| dtype.load(bytes, number * count / looked_at).abs() as f32);
    let (mut ordinary, mut others) = (0, 0);
    for size in sizes {
        if ORDINARY.contains(&size) {
            ordinary += 1;
        } else if size != 0.0 {
            others += 1;
        }
    }
    looked_at == 0 || ordinary > 0 && others * 4 <= looked_at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        (1, number, None)
    }

    #[test]
    fn what_was_used_not_long_ago_is_where_it_was() {
        let mut ring = Ring { capacity: 10 * ALIGNMENT, ..Ring::default() };
        assert_eq!(ring.reserve(&[(key(0), 64), (key(1), 1)]), [(0, true), (64, true)]);
        assert_eq!(ring.reserve(&[(key(1), 1), (key(2), 128)]), [(64, false), (128, true)]);
        assert_eq!(ring.reserve(&[(key(3), 6 * 64)]), [(256, true)]);
        // The ring begins anew: what was given away first is gone, what comes later is not.
        assert_eq!(ring.reserve(&[(key(4), 64)]), [(0, true)]);
        assert_eq!(ring.reserve(&[(key(1), 1), (key(2), 128)]), [(64, false), (128, false)]);
        assert!(ring.start_of(key(0), 64).is_none());
    }

    /// An operand never overlaps another of its step, whatever was there.
    #[test]
    fn operands_of_a_step_are_disjoint() {
        let mut ring = Ring { capacity: 8 * ALIGNMENT, ..Ring::default() };
        for turn in 0..200_usize {
            let needed: Vec<_> = (0..3)
                .map(|at| (key(turn * (at + 1) % 7 * 3 + at), 1 + turn * 37 * (at + 1) % 120))
                .collect();
            let places = ring.reserve(&needed);
            let mut ranges: Vec<_> = places.iter().zip(&needed).map(|(at, of)| (at.0, at.0 + of.1)).collect();
            ranges.sort_unstable();
            assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{turn}: {ranges:?}");
            assert!(ranges.iter().all(|range| range.1 <= ring.capacity));
            assert_eq!(ring.given.len(), ring.by_start.len());
        }
    }

    #[test]
    fn numbers_stay_of_ordinary_size() {
        let mut capacities = [0; Kind::ALL.len()];
        capacities[Kind::Single as usize] = 4096;
        capacities[Kind::Bf16 as usize] = 4096;
        let mut scratch = Scratch::new(capacities).unwrap();
        for (kind, dtype) in [(Kind::Single, DType::F32), (Kind::Bf16, DType::Bf16)] {
            let needed =
                |is_written| Needed { kind, key: key(0), bytes: 1024, operand: 0, is_read: true, is_written };
            let mut run = |write: Option<f64>| {
                scratch.with(&[needed(write.is_some())], Tile::WHOLE, |operands| {
                    let bytes = operands.take(0);
                    if let Some(number) = write {
                        (0..1024 / dtype.bytes()).for_each(|at| dtype.store(bytes, at, number));
                    }
                    dtype.load(bytes, 100)
                })
            };
            assert!((0.05..0.5).contains(&run(None).abs()));
            for number in [1e-39, f64::NAN, 1e30, 0.0] {
                run(Some(number));
                assert!((0.05..0.5).contains(&run(None).abs()), "{number}");
            }
            assert!((run(Some(3.0)) - 3.0).abs() < 1e-9 && (run(None) - 3.0).abs() < 1e-9);
        }
    }

    /// A rectifier's map has zeros, and the gradient of a pooling little else.
    #[test]
    fn zeros_among_numbers_are_no_fault() {
        let mut bytes = vec![0; 4096];
        assert!(!is_ordinary(Kind::Single, &bytes));
        for at in (0..1024).step_by(4) {
            DType::F32.store(&mut bytes, at, 0.5);
        }
        assert!(is_ordinary(Kind::Single, &bytes));
        assert!(is_ordinary(Kind::Single, &[]));
    }
}
