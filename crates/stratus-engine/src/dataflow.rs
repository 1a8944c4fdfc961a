//! Dataflow check of a plan: follows the steps tile by tile, records which value owns each byte, and checks
//! that each step reads only bytes of its operands.
//!
//! It is independent of the placement algorithm and detects the effect of its mistakes: a value that is
//! overwritten before it is read.

use crate::ops::{KernelSpec, Tiling};
use crate::plan::Location;
use crate::{EngineError, Plan, ValueId};
use std::collections::BTreeMap;
use std::ops::Range;

impl Plan {
    /// Checks that no two operands of a step overlap, that everything is within its part of the arena, and
    /// that each step reads the values written for it.
    ///
    /// # Errors
    /// The first violation.
    pub fn verify(&self) -> Result<(), EngineError> {
        self.verify_placements()?;
        verify_dataflow(self)
    }
}

/// Checks every read of transient bytes, in the order in which the plan's steps run.
///
/// # Errors
/// The first read of bytes that belong to another value or to none.
fn verify_dataflow(plan: &Plan) -> Result<(), EngineError> {
    let program = &plan.program;
    let copies = program.live_copies();
    let mut memory = ByteOwners::default();
    for (steps, turn) in program.execution_order() {
        let section = program.section_or_single(steps.start);
        for position in steps {
            let step = &program.steps[position];
            let bytes_of = |id: ValueId| -> Option<Range<usize>> {
                let Location::Transient(start) = plan.placements[id.0].location else { return None };
                let part = plan.tile_span(id, section.tiles, copies[id.0]);
                let start = start + section.tile_at(turn) % part.slots * part.stride;
                Some(start..start + part.length)
            };
            // Sums over the batch continue from the previous tile.
            let continues = turn > 0
                && match section.micro_batches {
                    true => step.kernel.accumulates_tiles(),
                    false => step.kernel.tiling() == Tiling::Accumulates,
                };
            let continued = if continues { &step.outputs[..] } else { &[] };
            for &id in step.inputs.iter().chain(&step.updates).chain(continued) {
                if let Some(other) = bytes_of(id).and_then(|bytes| memory.first_foreign_owner(id, bytes)) {
                    let owner = match other {
                        Some(other) => {
                            format!("after its memory was reused by `{}`", program.value(other).name)
                        }
                        None => "whose memory holds no value".to_owned(),
                    };
                    return Err(EngineError::Placement(format!(
                        "step {position} (layer `{}`) reads `{}` {owner}",
                        program.layer_name(step),
                        program.value(id).name,
                    )));
                }
            }
            let (start, bytes) = plan.steps[position].scratch;
            memory.write(None, start..start + bytes);
            for &id in &step.outputs {
                if let Some(bytes) = bytes_of(id) {
                    memory.write(Some(id), bytes);
                }
            }
        }
    }
    Ok(())
}

/// The owner of each byte, as disjoint ranges by start.
#[derive(Default)]
struct ByteOwners {
    ranges: BTreeMap<usize, (usize, Option<ValueId>)>,
}

impl ByteOwners {
    /// Assigns bytes to a value or to no owner.
    fn write(&mut self, owner: Option<ValueId>, bytes: Range<usize>) {
        if bytes.is_empty() {
            return;
        }
        // Truncate an earlier range that overlaps.
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

    /// The first owner of some of the bytes other than `owner`: a value, or `Some(None)` for bytes without an
    /// owner.
    fn first_foreign_owner(&self, owner: ValueId, bytes: Range<usize>) -> Option<Option<ValueId>> {
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
    fn byte_owners_follow_overlapping_writes() {
        let (one, two) = (ValueId(1), ValueId(2));
        let mut memory = ByteOwners::default();
        assert_eq!(memory.first_foreign_owner(one, 0..1), Some(None));
        memory.write(Some(one), 0..100);
        assert_eq!(memory.first_foreign_owner(one, 0..100), None);
        assert_eq!(memory.first_foreign_owner(one, 0..101), Some(None));
        memory.write(Some(two), 40..60);
        assert_eq!(memory.first_foreign_owner(one, 0..40), None);
        assert_eq!(memory.first_foreign_owner(one, 39..41), Some(Some(two)));
        assert_eq!(memory.first_foreign_owner(two, 40..60), None);
        assert_eq!(memory.first_foreign_owner(one, 60..100), None);
        memory.write(None, 50..70);
        assert_eq!(memory.first_foreign_owner(two, 40..50), None);
        assert_eq!(memory.first_foreign_owner(one, 60..100), Some(None));
        assert_eq!(memory.first_foreign_owner(one, 70..100), None);
        memory.write(Some(one), 0..100);
        assert_eq!(memory.first_foreign_owner(one, 0..100), None);
        memory.write(Some(two), 10..10);
        assert_eq!(memory.first_foreign_owner(one, 0..100), None);
    }
}
