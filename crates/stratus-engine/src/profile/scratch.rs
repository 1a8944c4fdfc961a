//! The memory of profiled steps: twice the size of the caches, plus the largest step.
//!
//! A ring buffer per element class: new operands take the least recently used bytes (cold), recent ones keep
//! theirs (warm). Values that a training step finds in a cache are therefore cached here too.

use crate::{AlignedBytes, DType, EngineError, Operands, Tile};
use std::collections::{BTreeMap, HashMap};
use stratus_base::ALIGNMENT;

/// The location of an operand in the plan: the part of the memory, the offset, and the value itself unless it
/// is well scaled.
pub(super) type OperandKey = (u8, usize, Option<usize>);

/// Length of the fill pattern, a prime, so that no extent is a multiple of it.
const PATTERN: usize = 61;
/// The bits of bf16 0.125, which is also the upper half of that f32; the sign is the highest bit.
const EIGHTH_BITS: u16 = 0x3e00;
const SIGN: u16 = 0x8000;
/// Elements of an operand that are checked after a step.
const SAMPLED_ELEMENTS: usize = 128;
/// Well-scaled magnitudes: products of two are no denormals, and sums of many do not overflow.
const WELL_SCALED: std::ops::Range<f32> = 1e-12..1e12;

/// The ring of an operand. Types have separate rings, because bits of one type are arbitrary values in
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ElementClass {
    /// f32.
    Single,
    /// bf16.
    Bf16,
    /// f16.
    F16,
    /// f64: the scalars of an iteration, and sums.
    Double,
    /// Labels, targets, and positions within a pooling window, which must be valid.
    Indices,
    /// Scratch of kernels.
    Scratch,
}

impl ElementClass {
    pub const ALL: [Self; 6] =
        [Self::Single, Self::Bf16, Self::F16, Self::Double, Self::Indices, Self::Scratch];

    pub fn from_dtype(dtype: DType) -> Self {
        match dtype {
            DType::F32 => Self::Single,
            DType::Bf16 => Self::Bf16,
            DType::F16 => Self::F16,
            DType::F64 => Self::Double,
            DType::U8 | DType::I8 | DType::I32 => Self::Indices,
        }
    }

    /// Returns whether it is filled with well-scaled values.
    fn is_well_scaled(self) -> bool {
        matches!(self, Self::Single | Self::Bf16 | Self::F16)
    }
}

/// One operand of a step in one tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct OperandRequest {
    pub class: ElementClass,
    pub key: OperandKey,
    pub bytes: usize,
    pub operand: usize,
    /// True if the step reads it.
    pub is_read: bool,
    /// True if the step writes it.
    pub is_written: bool,
}

/// A ring buffer of bytes for one element class.
#[derive(Debug, Default)]
struct Ring {
    capacity: usize,
    /// The offset of the least recently assigned bytes.
    head: usize,
    /// Start and length of the assigned ranges.
    assigned: HashMap<OperandKey, (usize, usize)>,
    /// The assigned ranges by start.
    by_start: BTreeMap<usize, OperandKey>,
}

impl Ring {
    fn start_of(&self, key: OperandKey, bytes: usize) -> Option<usize> {
        self.assigned.get(&key).filter(|(_, length)| *length >= bytes).map(|(start, _)| *start)
    }

    fn forget(&mut self, key: OperandKey) {
        if let Some((start, _)) = self.assigned.remove(&key) {
            self.by_start.remove(&start);
        }
    }

    /// Assigns bytes to each operand; returns the offsets and whether they are new.
    fn reserve(&mut self, requests: &[(OperandKey, usize)]) -> Vec<(usize, bool)> {
        loop {
            let missing: Vec<_> = requests
                .iter()
                .filter(|(key, bytes)| self.start_of(*key, *bytes).is_none())
                .copied()
                .collect();
            missing.iter().for_each(|(key, _)| self.forget(*key));
            let bytes: usize = missing.iter().map(|(_, bytes)| padded(*bytes)).sum();
            let begin = if self.head + bytes > self.capacity { 0 } else { self.head };
            let overlapping: Vec<OperandKey> = self
                .by_start
                .range(..begin + bytes)
                .rev()
                .map(|(start, key)| (*start, *key))
                .take_while(|(start, key)| start + self.assigned.get(key).map_or(0, |range| range.1) > begin)
                .map(|(_, key)| key)
                .collect();
            overlapping.iter().for_each(|key| self.forget(*key));
            if requests.iter().any(|(key, _)| overlapping.contains(key)) {
                // It was among the least recently used: treat it as new.
                continue;
            }
            let mut next = begin;
            for (key, bytes) in &missing {
                self.assigned.insert(*key, (next, *bytes));
                self.by_start.insert(next, *key);
                next += padded(*bytes);
            }
            if bytes > 0 {
                self.head = next;
            }
            return requests
                .iter()
                .map(|(key, _)| {
                    let start = self.assigned.get(key).map_or(0, |range| range.0);
                    (start, missing.iter().any(|(new, _)| new == key))
                })
                .collect();
        }
    }
}

fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

/// The rings in one allocation.
#[derive(Debug)]
pub(super) struct Scratch {
    memory: AlignedBytes,
    rings: Vec<(usize, Ring)>,
}

impl Scratch {
    /// Rings of the given sizes, one for each of [`ElementClass::ALL`].
    pub fn new(capacities: [usize; ElementClass::ALL.len()]) -> Result<Self, EngineError> {
        let mut rings = Vec::with_capacity(capacities.len());
        let mut begin = 0;
        for capacity in capacities.map(padded) {
            rings.push((begin, Ring { capacity, ..Ring::default() }));
            begin += capacity;
        }
        let mut memory = AlignedBytes::zeroed(begin, "timing steps")?;
        for (class, (begin, ring)) in ElementClass::ALL.into_iter().zip(&rings) {
            if class.is_well_scaled() {
                fill(&mut memory.as_mut_slice()[*begin..*begin + ring.capacity]);
            }
        }
        Ok(Self { memory, rings })
    }

    /// Total bytes.
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// Runs `run` on a step's operands, and refills outputs that are not well scaled.
    pub fn with<T>(
        &mut self,
        requests: &[OperandRequest],
        tile: Tile,
        run: impl FnOnce(&mut Operands<'_>) -> T,
    ) -> T {
        let mut ranges: Vec<(usize, &OperandRequest)> = Vec::with_capacity(requests.len());
        for (class, (begin, ring)) in ElementClass::ALL.into_iter().zip(&mut self.rings) {
            let class_requests: Vec<&OperandRequest> =
                requests.iter().filter(|request| request.class == class).collect();
            let keys: Vec<_> = class_requests.iter().map(|request| (request.key, request.bytes)).collect();
            let offsets = ring.reserve(&keys);
            for (request, (start, is_new)) in class_requests.into_iter().zip(offsets) {
                let start = *begin + start;
                if is_new && class == ElementClass::Indices && request.is_read {
                    // Zero is a valid class, a valid target, and a valid position in every window.
                    self.memory.as_mut_slice()[start..start + request.bytes].fill(0);
                }
                ranges.push((start, request));
            }
        }
        ranges.sort_by_key(|(start, _)| *start);
        let mut operands = Operands::new(tile);
        let mut rest = self.memory.as_mut_slice();
        let mut consumed = 0;
        for (start, request) in &ranges {
            let (_, tail) = rest.split_at_mut(start - consumed);
            let (slice, tail) = tail.split_at_mut(request.bytes);
            operands.set(request.operand, slice);
            rest = tail;
            consumed = start + request.bytes;
        }
        let result = run(&mut operands);
        for (start, request) in ranges.into_iter().filter(|(_, request)| request.is_written) {
            let bytes = &mut self.memory.as_mut_slice()[start..start + request.bytes];
            if request.class.is_well_scaled() && !is_well_scaled_data(request.class, bytes) {
                fill(bytes);
            }
        }
        result
    }
}

/// Fills bytes with well-scaled values of both signs in f32, bf16 and f16.
fn fill(bytes: &mut [u8]) {
    let numbers: [u16; PATTERN] =
        std::array::from_fn(|index| EIGHTH_BITS + index as u16 + if index % 2 == 0 { SIGN } else { 0 });
    let pattern: &[u8] = bytemuck::cast_slice(&numbers);
    for part in bytes.chunks_mut(pattern.len()) {
        part.copy_from_slice(&pattern[..part.len()]);
    }
}

/// Returns whether most of the sampled elements are zero or well scaled, and not all are zero.
fn is_well_scaled_data(class: ElementClass, bytes: &[u8]) -> bool {
    let dtype = match class {
        ElementClass::Bf16 => DType::Bf16,
        ElementClass::F16 => DType::F16,
        _ => DType::F32,
    };
    let count = bytes.len() / dtype.bytes();
    let sampled = count.min(SAMPLED_ELEMENTS);
    let sizes = (0..sampled).map(|index| dtype.load(bytes, index * count / sampled).abs() as f32);
    let (mut ordinary, mut others) = (0, 0);
    for size in sizes {
        if WELL_SCALED.contains(&size) {
            ordinary += 1;
        } else if size != 0.0 {
            others += 1;
        }
    }
    sampled == 0 || ordinary > 0 && others * 4 <= sampled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(index: usize) -> OperandKey {
        (1, index, None)
    }

    #[test]
    fn recently_used_operands_keep_their_bytes() {
        let mut ring = Ring { capacity: 10 * ALIGNMENT, ..Ring::default() };
        assert_eq!(ring.reserve(&[(key(0), 64), (key(1), 1)]), [(0, true), (64, true)]);
        assert_eq!(ring.reserve(&[(key(1), 1), (key(2), 128)]), [(64, false), (128, true)]);
        assert_eq!(ring.reserve(&[(key(3), 6 * 64)]), [(256, true)]);
        // The ring wraps around: the first range is gone, later ones are not.
        assert_eq!(ring.reserve(&[(key(4), 64)]), [(0, true)]);
        assert_eq!(ring.reserve(&[(key(1), 1), (key(2), 128)]), [(64, false), (128, false)]);
        assert!(ring.start_of(key(0), 64).is_none());
    }

    /// Operands of a step never overlap, whatever was assigned before.
    #[test]
    fn operands_of_a_step_are_disjoint() {
        let mut ring = Ring { capacity: 8 * ALIGNMENT, ..Ring::default() };
        for turn in 0..200_usize {
            let requests: Vec<_> = (0..3)
                .map(|at| (key(turn * (at + 1) % 7 * 3 + at), 1 + turn * 37 * (at + 1) % 120))
                .collect();
            let offsets = ring.reserve(&requests);
            let mut ranges: Vec<_> =
                offsets.iter().zip(&requests).map(|(at, request)| (at.0, at.0 + request.1)).collect();
            ranges.sort_unstable();
            assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{turn}: {ranges:?}");
            assert!(ranges.iter().all(|range| range.1 <= ring.capacity));
            assert_eq!(ring.assigned.len(), ring.by_start.len());
        }
    }

    #[test]
    fn operands_stay_well_scaled() {
        let mut capacities = [0; ElementClass::ALL.len()];
        capacities[ElementClass::Single as usize] = 4096;
        capacities[ElementClass::Bf16 as usize] = 4096;
        let mut scratch = Scratch::new(capacities).unwrap();
        for (class, dtype) in [(ElementClass::Single, DType::F32), (ElementClass::Bf16, DType::Bf16)] {
            let requests = |is_written| OperandRequest {
                class,
                key: key(0),
                bytes: 1024,
                operand: 0,
                is_read: true,
                is_written,
            };
            let mut run = |write: Option<f64>| {
                scratch.with(&[requests(write.is_some())], Tile::WHOLE, |operands| {
                    let bytes = operands.take(0);
                    if let Some(index) = write {
                        (0..1024 / dtype.bytes()).for_each(|at| dtype.store(bytes, at, index));
                    }
                    dtype.load(bytes, 100)
                })
            };
            assert!((0.05..0.5).contains(&run(None).abs()));
            for index in [1e-39, f64::NAN, 1e30, 0.0] {
                run(Some(index));
                assert!((0.05..0.5).contains(&run(None).abs()), "{index}");
            }
            assert!((run(Some(3.0)) - 3.0).abs() < 1e-9 && (run(None) - 3.0).abs() < 1e-9);
        }
    }

    /// Outputs of ReLU contain zeros, and pooling gradients mostly zeros.
    #[test]
    fn zeros_among_values_are_well_scaled() {
        let mut bytes = vec![0; 4096];
        assert!(!is_well_scaled_data(ElementClass::Single, &bytes));
        for at in (0..1024).step_by(4) {
            DType::F32.store(&mut bytes, at, 0.5);
        }
        assert!(is_well_scaled_data(ElementClass::Single, &bytes));
        assert!(is_well_scaled_data(ElementClass::Single, &[]));
    }
}
