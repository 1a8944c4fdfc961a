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

use crate::processor::{Launch, Processor, Shape, Source};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use stratus_engine::DType;
use stratus_engine::Tile;
use stratus_engine::backend::Operands;

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
    fn needs_marker(&self) -> bool {
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
}

/// Takes the times of steps on a processor.
pub(crate) struct StepClock {
    processor: Arc<dyn Processor>,
    /// The marker kernel, once it was needed.
    marker: Mutex<Option<Launch>>,
}

impl StepClock {
    /// Creates a clock for the kernels of a processor.
    pub fn new(processor: &Arc<dyn Processor>) -> Self {
        Self { processor: Arc::clone(processor), marker: Mutex::default() }
    }

    /// Starts timing this number of steps, with [`Self::words`] words at an address. `ends` is the result of
    /// an earlier enqueuing of the same steps.
    pub fn begin(&self, address: u64, steps: usize, ends: Vec<bool>) {
        *self.processor.timestamps().enqueuing() = Some(StepRecording {
            address,
            capacity: Self::words(steps),
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

    /// The maximum number of words that this number of steps writes.
    pub fn words(steps: usize) -> usize {
        steps + 1
    }

    /// Ends a step; the time since the last one belongs to `slot`.
    pub fn end_step(&self, slot: usize) {
        if let Some(enqueuing) = self.processor.timestamps().enqueuing().as_mut() {
            enqueuing.boundaries.push(enqueuing.ended);
            enqueuing.slots.push(slot);
        }
    }

    /// Must be called before every library call.
    ///
    /// # Errors
    /// The driver's error message.
    pub fn before_library(&self) -> Result<(), String> {
        if self.processor.timestamps().needs_marker() {
            self.launch_marker()?;
        }
        if let Some(enqueuing) = self.processor.timestamps().enqueuing().as_mut() {
            (enqueuing.last_kernel, enqueuing.ended) = (None, None);
        }
        Ok(())
    }

    /// Ends the recording, after all steps were enqueued.
    ///
    /// # Errors
    /// The driver's error message.
    pub fn end(&self) -> Result<RecordedSteps, String> {
        let marked = if self.processor.timestamps().needs_marker() { self.launch_marker() } else { Ok(()) };
        let enqueuing = self.processor.timestamps().enqueuing().take();
        marked?;
        let Some(StepRecording { boundaries, slots, ends, markers, .. }) = enqueuing else {
            return Ok(RecordedSteps::default());
        };
        // There are enough words for all boundaries; without one, a step would have no time.
        let boundaries = boundaries.into_iter().scan(0, |last, word| {
            *last = word.unwrap_or(*last);
            Some(*last)
        });
        Ok(RecordedSteps { boundaries: boundaries.collect(), slots, ends, markers })
    }

    /// Stops timing, because enqueuing has failed.
    pub fn cancel(&self) {
        *self.processor.timestamps().enqueuing() = None;
    }

    fn launch_marker(&self) -> Result<(), String> {
        let mut marker = self.marker.lock().unwrap_or_else(PoisonError::into_inner);
        let launch = match &mut *marker {
            Some(launch) => launch,
            none => {
                let source = Source::new("mark", DType::F32, 1);
                let shape = Shape { grid: [1; 3], block: [1; 3], shared: 0 };
                none.insert(Launch::new(&self.processor, &source, "mark", shape, Vec::new())?)
            }
        };
        let launched = launch.run(&Operands::new(Tile::WHOLE), 0);
        if let Some(enqueuing) = self.processor.timestamps().enqueuing().as_mut() {
            enqueuing.is_launching_marker = false;
        }
        launched
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processor::{Argument, Function};
    use std::collections::HashMap;

    /// A processor whose kernels take the time given by their first parameter. Time passes in the process.
    #[derive(Default)]
    struct Timed {
        timestamps: TimestampSlots,
        now: Mutex<u64>,
        /// Memory by address.
        memory: Mutex<HashMap<u64, u64>>,
    }

    impl Timed {
        fn pass(&self, nanoseconds: u64) -> u64 {
            let mut now = self.now.lock().unwrap();
            *now += nanoseconds;
            *now
        }
    }

    impl Processor for Timed {
        fn function(&self, _: &Source, _: &str) -> Result<Function, String> {
            Ok(Function(0))
        }

        fn launch(&self, _: Function, _: Shape, arguments: &mut [u64]) -> Result<(), String> {
            let (parameters, &[started_at, ended_at]) = arguments.split_last_chunk::<2>().unwrap();
            let begun = self.pass(0);
            let ended = self.pass(parameters.first().copied().unwrap_or(0));
            let mut memory = self.memory.lock().unwrap();
            for (address, time) in [(started_at, begun), (ended_at, ended)] {
                if address != 0 {
                    memory.insert(address, time);
                }
            }
            Ok(())
        }

        fn timestamps(&self) -> &TimestampSlots {
            &self.timestamps
        }

        fn capability(&self) -> u32 {
            90
        }

        fn multiprocessors(&self) -> u32 {
            1
        }
    }

    #[derive(Clone, Copy)]
    enum Work {
        /// A native kernel, or a library call, with its time in nanoseconds.
        Native(i64),
        Library(u64),
    }
    use Work::{Library, Native};

    /// Enqueues steps as a device does, `times` times; returns the times of the last run, and its marker
    /// kernels.
    fn enqueue(steps: &[&[Work]], times: usize) -> (Vec<u64>, usize) {
        let timed = Arc::new(Timed::default());
        let processor: Arc<dyn Processor> = Arc::clone(&timed) as Arc<dyn Processor>;
        let clock = StepClock::new(&processor);
        let mut enqueued = RecordedSteps::default();
        for _ in 0..times {
            timed.memory.lock().unwrap().clear();
            clock.begin(8, steps.len(), enqueued.ends.clone());
            for (slot, step) in steps.iter().enumerate() {
                for call in *step {
                    match call {
                        Native(takes) => {
                            let source = Source::new("relu", DType::F32, 1);
                            let shape = Shape { grid: [1; 3], block: [1; 3], shared: 0 };
                            let arguments = vec![Argument::Long(*takes)];
                            let mut launch =
                                Launch::new(&processor, &source, "relu", shape, arguments).unwrap();
                            launch.run(&Operands::new(Tile::WHOLE), 0).unwrap();
                        }
                        Library(takes) => {
                            clock.before_library().unwrap();
                            timed.pass(*takes);
                        }
                    }
                }
                clock.end_step(slot);
            }
            enqueued = clock.end().unwrap();
        }
        let memory = timed.memory.lock().unwrap();
        assert!(memory.keys().all(|&address| address < 8 + 8 * StepClock::words(steps.len()) as u64));
        let words: Vec<u64> = (0..StepClock::words(steps.len()))
            .map(|word| memory.get(&(8 + 8 * word as u64)).copied().unwrap_or(0))
            .collect();
        let mut step_times = vec![u64::MAX; steps.len()];
        enqueued.times(&words, &mut |slot, time| step_times[slot] = time);
        assert_eq!(enqueued.steps(), steps.len());
        (step_times, enqueued.markers)
    }

    #[test]
    fn every_step_is_timed() {
        let steps: &[&[Work]] = &[
            &[Library(5)],
            &[Native(7), Native(1)],
            &[Library(11), Native(2)],
            &[Library(3)],
            &[],
            &[Library(13)],
            &[Native(17)],
            &[],
            &[Native(19)],
            &[Library(2), Native(4), Library(6)],
            &[Native(8), Library(1)],
        ];
        let expected = [5, 8, 13, 3, 0, 13, 17, 0, 19, 12, 9];
        for times in 1..4 {
            let (step_times, markers) = enqueue(steps, times);
            assert_eq!(step_times, expected, "{times}");
            // In the second run only: before the first call, between two library calls, after the last.
            assert_eq!(markers, if times == 1 { 6 } else { 3 }, "{times}");
        }
    }

    #[test]
    fn alternating_native_kernels_and_libraries_need_no_markers() {
        let steps: Vec<&[Work]> = (0..40)
            .map(|step| if step % 2 == 0 { &[Native(2)] as &[Work] } else { &[Library(5)] })
            .chain([&[Native(3)] as &[Work]])
            .collect();
        let (step_times, markers) = enqueue(&steps, 2);
        assert_eq!(markers, 0);
        assert_eq!(step_times.iter().sum::<u64>(), 20 * 7 + 3);
    }

    #[test]
    fn untimed_kernels_record_nothing() {
        let timestamps = TimestampSlots::default();
        assert_eq!(timestamps.kernel_addresses(), [0, 0]);
        assert!(!timestamps.needs_marker());
    }
}
