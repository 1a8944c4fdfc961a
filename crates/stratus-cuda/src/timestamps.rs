//! The start and end times of the steps of a run, by the device's clock.
//!
//! Native kernels record their own timestamps (`KernelTimestamps` in `common.cu`), so that timing adds hardly
//! any work. A boundary between steps is one word of memory:
//!
//! ```text
//! the step before   the step after   the word is written by
//! any               native kernel    the kernel after, when its first block starts
//! native kernel     library call     the kernel before, when its last block ends
//! library call      library call     a marker kernel (`mark.cu`)
//! ```
//!
//! The kernels that must record their end are known once the steps have been enqueued. Until then, every
//! boundary before a library call has a marker kernel.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The bytes of a word.
const WORD: usize = size_of::<u64>();

/// Assigns the kernels of a run the words for their timestamps.
#[derive(Default)]
pub(crate) struct TimestampSlots(Mutex<Option<StepRecording>>);

/// The steps being enqueued.
struct StepRecording {
    /// The address of the first word.
    address: u64,
    /// The number of words.
    capacity: usize,
    /// The words assigned.
    used: usize,
    /// The word of each boundary; `None` until its writer is known.
    boundaries: Vec<Option<usize>>,
    /// The slot between each boundary and the next.
    slots: Vec<usize>,
    /// For each native kernel in order, whether its end is needed.
    ends: Vec<bool>,
    kernels: usize,
    /// The last call, if it was a native kernel.
    last_kernel: Option<usize>,
    /// The word of the last call's end.
    ended: Option<usize>,
    /// True if a marker kernel is being launched.
    is_launching_marker: bool,
    /// The number of marker kernels.
    markers: usize,
}

/// The result of enqueuing the steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordedSteps {
    /// The word of each boundary.
    boundaries: Vec<usize>,
    /// The slot between each boundary and the next.
    slots: Vec<usize>,
    /// For each native kernel in order, whether its end is needed.
    pub ends: Vec<bool>,
    /// The number of marker kernels.
    pub markers: usize,
}

impl RecordedSteps {
    /// The number of steps.
    pub fn steps(&self) -> usize {
        self.slots.len()
    }

    /// Calls `time` for every step, in order, with its slot and its nanoseconds.
    pub fn times(&self, words: &[u64], time: &mut dyn FnMut(usize, u64)) {
        let at = |boundary: usize| words.get(boundary).copied().unwrap_or_default();
        for (pair, &slot) in self.boundaries.windows(2).zip(&self.slots) {
            time(slot, at(pair[1]).saturating_sub(at(pair[0])));
        }
    }
}

impl StepRecording {
    /// The next word, with its address.
    fn word(&mut self) -> Option<(usize, u64)> {
        let word = self.used;
        (word < self.capacity).then(|| {
            self.used += 1;
            (word, self.address + (word * WORD) as u64)
        })
    }

    /// Returns whether the next call must write the last boundary's word.
    fn is_waiting(&self) -> bool {
        self.boundaries.last().is_some_and(Option::is_none)
    }

    /// The words of a native kernel: the addresses for its start and end, or 0.
    fn kernel(&mut self) -> [u64; 2] {
        let mut started_at = 0;
        if self.is_waiting()
            && let Some((word, address)) = self.word()
        {
            started_at = address;
            for boundary in self.boundaries.iter_mut().rev().take_while(|boundary| boundary.is_none()) {
                *boundary = Some(word);
            }
        }
        (self.last_kernel, self.ended) = (None, None);
        if self.is_launching_marker {
            self.markers += 1;
            return [started_at, 0];
        }
        let number = self.kernels;
        self.kernels += 1;
        if self.ends.len() < self.kernels {
            self.ends.resize(self.kernels, false);
        }
        self.last_kernel = Some(number);
        match self.ends[number].then(|| self.word()).flatten() {
            Some((word, address)) => {
                self.ended = Some(word);
                [started_at, address]
            }
            None => [started_at, 0],
        }
    }
}

impl TimestampSlots {
    fn enqueuing(&self) -> MutexGuard<'_, Option<StepRecording>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The addresses for the start and end of a native kernel launched now; 0 if not needed.
    pub fn kernel_addresses(&self) -> [u64; 2] {
        self.enqueuing().as_mut().map_or([0; 2], StepRecording::kernel)
    }

    /// Returns whether the open boundary still needs a marker kernel.
    pub fn needs_marker(&self) -> bool {
        let mut enqueuing = self.enqueuing();
        let Some(enqueuing) = enqueuing.as_mut().filter(|enqueuing| enqueuing.is_waiting()) else {
            return false;
        };
        if let Some(kernel) = enqueuing.last_kernel {
            enqueuing.ends[kernel] = true;
        }
        enqueuing.is_launching_marker = true;
        true
    }

    /// Starts recording this number of steps, with [`words`] words at an address. `ends` is the result of an
    /// earlier enqueuing of the same steps.
    pub fn begin(&self, address: u64, steps: usize, ends: Vec<bool>) {
        *self.enqueuing() = Some(StepRecording {
            address,
            capacity: words(steps),
            used: 0,
            boundaries: vec![None],
            slots: Vec::with_capacity(steps),
            ends,
            kernels: 0,
            last_kernel: None,
            ended: None,
            is_launching_marker: false,
            markers: 0,
        });
    }

    /// Ends a step; the time since the last one belongs to `slot`.
    pub fn end_step(&self, slot: usize) {
        if let Some(enqueuing) = self.enqueuing().as_mut() {
            enqueuing.boundaries.push(enqueuing.ended);
            enqueuing.slots.push(slot);
        }
    }

    /// Records that the marker kernel was launched.
    pub fn end_marker(&self) {
        if let Some(enqueuing) = self.enqueuing().as_mut() {
            enqueuing.is_launching_marker = false;
        }
    }

    /// Records a library call, which writes no words.
    pub fn begin_library(&self) {
        if let Some(enqueuing) = self.enqueuing().as_mut() {
            (enqueuing.last_kernel, enqueuing.ended) = (None, None);
        }
    }

    /// Ends the recording.
    pub fn take(&self) -> RecordedSteps {
        let Some(StepRecording { boundaries, slots, ends, markers, .. }) = self.enqueuing().take() else {
            return RecordedSteps::default();
        };
        // There are enough words for all boundaries; without one, a step would have no time.
        let boundaries = boundaries.into_iter().scan(0, |last, word| {
            *last = word.unwrap_or(*last);
            Some(*last)
        });
        RecordedSteps { boundaries: boundaries.collect(), slots, ends, markers }
    }
}

/// The maximum number of words that this number of steps writes.
pub(crate) fn words(steps: usize) -> usize {
    steps + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untimed_kernels_record_nothing() {
        let timestamps = TimestampSlots::default();
        assert_eq!(timestamps.kernel_addresses(), [0, 0]);
        assert!(!timestamps.needs_marker());
    }
}
