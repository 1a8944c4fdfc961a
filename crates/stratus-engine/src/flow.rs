//! Checks that each step of a plan reads what was written for it, by following the steps tile by tile and
//! noting which value each byte belongs to.
//!
//! It is independent of how memory was placed, and finds what a mistake there would cause: a value that is
//! overwritten before it is read.

use crate::ops::{KernelSpec, Tiling};
use crate::plan::Location;
use crate::{EngineError, Plan, ValueId};
use std::collections::BTreeMap;
use std::ops::Range;

/// Checks every read of transient bytes, in the order in which the plan's steps run.
///
/// # Errors
/// The first that finds another value's bytes, or none.
pub fn verify(plan: &Plan) -> Result<(), EngineError> {
    let program = &plan.program;
    let copies = program.copies();
    let mut memory = Memory::default();
    for (steps, turn) in program.passes() {
        let section = program.pass_of(steps.start);
        for position in steps {
            let step = &program.steps[position];
            let place = |id: ValueId| -> Option<Range<usize>> {
                let Location::Transient(start) = plan.placements[id.0].location else { return None };
                let part = plan.part_bytes(id, section.tiles, copies[id.0]);
                let start = start + section.place(turn) % part.places * part.stride;
                Some(start..start + part.length)
            };
            // Sums over the batch go on where the tile before left off.
            let continues = turn > 0
                && match section.micro_batches {
                    true => step.kernel.adds_up(),
                    false => step.kernel.tiling() == Tiling::Continues,
                };
            let continued = if continues { &step.outputs[..] } else { &[] };
            for &id in step.inputs.iter().chain(&step.updates).chain(continued) {
                if let Some(other) = place(id).and_then(|bytes| memory.other_than(id, bytes)) {
                    let lies = match other {
                        Some(other) => format!("`{}` lies", program.value(other).name),
                        None => "nothing lies".to_owned(),
                    };
                    return Err(EngineError::Placement(format!(
                        "step {position} (layer `{}`) reads `{}` where {lies}",
                        program.layer_name(step),
                        program.value(id).name,
                    )));
                }
            }
            let (start, bytes) = plan.steps[position].scratch;
            memory.write(None, start..start + bytes);
            for &id in &step.outputs {
                if let Some(bytes) = place(id) {
                    memory.write(Some(id), bytes);
                }
            }
        }
    }
    Ok(())
}

/// The owner of each byte: disjoint ranges, by their start.
#[derive(Default)]
struct Memory {
    ranges: BTreeMap<usize, (usize, Option<ValueId>)>,
}

impl Memory {
    /// Gives bytes to a value, or to nobody.
    fn write(&mut self, owner: Option<ValueId>, bytes: Range<usize>) {
        if bytes.is_empty() {
            return;
        }
        // A range that starts before and reaches in keeps what is outside.
        if let Some((&start, &(end, before))) = self.ranges.range(..bytes.start).next_back()
            && end > bytes.start
        {
            self.ranges.insert(start, (bytes.start, before));
            if end > bytes.end {
                self.ranges.insert(bytes.end, (end, before));
            }
        }
        while let Some((&start, &(end, inside))) = self.ranges.range(bytes.clone()).next() {
            self.ranges.remove(&start);
            if end > bytes.end {
                self.ranges.insert(bytes.end, (end, inside));
            }
        }
        self.ranges.insert(bytes.start, (bytes.end, owner));
    }

    /// The first that has some of the bytes and is not `owner`: a value, or `Some(None)` where they are
    /// nobody's.
    fn other_than(&self, owner: ValueId, bytes: Range<usize>) -> Option<Option<ValueId>> {
        let mut reached = bytes.start;
        while reached < bytes.end {
            let Some((_, &(end, found))) = self.ranges.range(..=reached).next_back() else {
                return Some(None);
            };
            if end <= reached {
                return Some(None);
            }
            if found != Some(owner) {
                return Some(found);
            }
            reached = end;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_knows_whose_bytes_lie_where() {
        let (one, two) = (ValueId(1), ValueId(2));
        let mut memory = Memory::default();
        assert_eq!(memory.other_than(one, 0..1), Some(None));
        memory.write(Some(one), 0..100);
        assert_eq!(memory.other_than(one, 0..100), None);
        assert_eq!(memory.other_than(one, 0..101), Some(None));
        memory.write(Some(two), 40..60);
        assert_eq!(memory.other_than(one, 0..40), None);
        assert_eq!(memory.other_than(one, 39..41), Some(Some(two)));
        assert_eq!(memory.other_than(two, 40..60), None);
        assert_eq!(memory.other_than(one, 60..100), None);
        memory.write(None, 50..70);
        assert_eq!(memory.other_than(two, 40..50), None);
        assert_eq!(memory.other_than(one, 60..100), Some(None));
        assert_eq!(memory.other_than(one, 70..100), None);
        memory.write(Some(one), 0..100);
        assert_eq!(memory.other_than(one, 0..100), None);
        memory.write(Some(two), 10..10);
        assert_eq!(memory.other_than(one, 0..100), None);
    }
}
