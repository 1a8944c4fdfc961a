//! When the steps of a run begin and end, by the device's own clock.
//!
//! Native kernels note it themselves (`NotedTimes` in `common.cu`), so that taking times adds hardly any
//! work. A boundary between steps is one word of memory:
//!
//! ```text
//! the step before   the step after   the word is written by
//! any               native kernel    the kernel after, when its first block begins
//! native kernel     library call     the kernel before, when its last block ends
//! library call      library call     a kernel that does nothing else (`mark.cu`)
//! ```
//!
//! Which kernels must note their end is known when the steps have been enqueued once. Until then, every
//! boundary before a library call has a kernel of its own.

use crate::processor::{Launch, Processor, Shape, Source};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use stratus_engine::DType;
use stratus_engine::Tile;
use stratus_engine::backend::Operands;

/// Bytes of a word.
const WORD: usize = size_of::<u64>();

/// Gives the kernels of a run the words that they write times to.
#[derive(Default)]
pub(crate) struct Stamps(Mutex<Option<Enqueuing>>);

/// The steps that are being enqueued.
struct Enqueuing {
    /// The first word, and how many there are.
    address: u64,
    capacity: usize,
    /// Words given out.
    used: usize,
    /// The word of each boundary; `None` until it is known who writes it.
    boundaries: Vec<Option<usize>>,
    /// The slot between each boundary and the next.
    slots: Vec<usize>,
    /// Whether a native kernel's end is needed, in their order.
    ends: Vec<bool>,
    kernels: usize,
    /// The last call, where it was a native kernel.
    last_kernel: Option<usize>,
    /// The word of the last call's end.
    ended: Option<usize>,
    /// Whether a kernel of its own is being launched, and how many were.
    is_marking: bool,
    marks: usize,
}

/// What was enqueued.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Enqueued {
    /// The word of each boundary, and the slot between it and the next.
    boundaries: Vec<usize>,
    slots: Vec<usize>,
    /// Whether a native kernel's end is needed, in their order.
    pub ends: Vec<bool>,
    /// Kernels that do nothing else.
    pub marks: usize,
}

impl Enqueued {
    /// How many steps there are.
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

impl Enqueuing {
    /// The next word, with its address.
    fn word(&mut self) -> Option<(usize, u64)> {
        let word = self.used;
        (word < self.capacity).then(|| {
            self.used += 1;
            (word, self.address + (word * WORD) as u64)
        })
    }

    /// Whether the next call must write the last boundary's word.
    fn is_waiting(&self) -> bool {
        self.boundaries.last().is_some_and(Option::is_none)
    }

    /// The words of a native kernel: the addresses of its beginning and its end, or 0.
    fn kernel(&mut self) -> [u64; 2] {
        let mut begun_at = 0;
        if self.is_waiting()
            && let Some((word, address)) = self.word()
        {
            begun_at = address;
            for boundary in self.boundaries.iter_mut().rev().take_while(|boundary| boundary.is_none()) {
                *boundary = Some(word);
            }
        }
        (self.last_kernel, self.ended) = (None, None);
        if self.is_marking {
            self.marks += 1;
            return [begun_at, 0];
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
                [begun_at, address]
            }
            None => [begun_at, 0],
        }
    }
}

impl Stamps {
    fn enqueuing(&self) -> MutexGuard<'_, Option<Enqueuing>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a native kernel that is launched now writes when it begins and ends; 0 where nobody asks.
    pub fn of_kernel(&self) -> [u64; 2] {
        self.enqueuing().as_mut().map_or([0; 2], Enqueuing::kernel)
    }

    /// Whether a boundary has no word yet, and nothing that writes one follows.
    fn needs_mark(&self) -> bool {
        let mut enqueuing = self.enqueuing();
        let Some(enqueuing) = enqueuing.as_mut().filter(|enqueuing| enqueuing.is_waiting()) else {
            return false;
        };
        if let Some(kernel) = enqueuing.last_kernel {
            enqueuing.ends[kernel] = true;
        }
        enqueuing.is_marking = true;
        true
    }
}

/// Takes the times of steps on a processor.
pub(crate) struct StepClock {
    processor: Arc<dyn Processor>,
    /// The kernel that does nothing else, once it was needed.
    mark: Mutex<Option<Launch>>,
}

impl StepClock {
    /// A clock for the kernels of a processor.
    pub fn new(processor: &Arc<dyn Processor>) -> Self {
        Self { processor: Arc::clone(processor), mark: Mutex::default() }
    }

    /// Begins to take times, of steps with this many marks, in words at an address: [`Self::words`] of them.
    /// `ends` is what an earlier enqueuing of the same steps has found.
    pub fn begin(&self, address: u64, marks: usize, ends: Vec<bool>) {
        *self.processor.stamps().enqueuing() = Some(Enqueuing {
            address,
            capacity: Self::words(marks),
            used: 0,
            boundaries: vec![None],
            slots: Vec::with_capacity(marks),
            ends,
            kernels: 0,
            last_kernel: None,
            ended: None,
            is_marking: false,
            marks: 0,
        });
    }

    /// The most words that steps with this many marks write to.
    pub fn words(marks: usize) -> usize {
        marks + 1
    }

    /// A step ends; the time since the last one is that of `slot`.
    pub fn mark(&self, slot: usize) {
        if let Some(enqueuing) = self.processor.stamps().enqueuing().as_mut() {
            enqueuing.boundaries.push(enqueuing.ended);
            enqueuing.slots.push(slot);
        }
    }

    /// A library is called next.
    ///
    /// # Errors
    /// The driver's message.
    pub fn before_library(&self) -> Result<(), String> {
        if self.processor.stamps().needs_mark() {
            self.launch_mark()?;
        }
        if let Some(enqueuing) = self.processor.stamps().enqueuing().as_mut() {
            (enqueuing.last_kernel, enqueuing.ended) = (None, None);
        }
        Ok(())
    }

    /// All steps are enqueued.
    ///
    /// # Errors
    /// The driver's message.
    pub fn end(&self) -> Result<Enqueued, String> {
        let marked = if self.processor.stamps().needs_mark() { self.launch_mark() } else { Ok(()) };
        let enqueuing = self.processor.stamps().enqueuing().take();
        marked?;
        let Some(Enqueuing { boundaries, slots, ends, marks, .. }) = enqueuing else {
            return Ok(Enqueued::default());
        };
        // There are words enough for all; without one, a step would have no time.
        let boundaries = boundaries.into_iter().scan(0, |last, word| {
            *last = word.unwrap_or(*last);
            Some(*last)
        });
        Ok(Enqueued { boundaries: boundaries.collect(), slots, ends, marks })
    }

    /// Takes no more times: enqueuing has failed.
    pub fn cancel(&self) {
        *self.processor.stamps().enqueuing() = None;
    }

    fn launch_mark(&self) -> Result<(), String> {
        let mut mark = self.mark.lock().unwrap_or_else(PoisonError::into_inner);
        let launch = match &mut *mark {
            Some(launch) => launch,
            none => {
                let source = Source::of("mark", DType::F32, 1);
                let shape = Shape { grid: [1; 3], block: [1; 3], shared: 0 };
                none.insert(Launch::new(&self.processor, &source, "mark", shape, Vec::new())?)
            }
        };
        let launched = launch.run(&Operands::new(Tile::WHOLE), 0);
        if let Some(enqueuing) = self.processor.stamps().enqueuing().as_mut() {
            enqueuing.is_marking = false;
        }
        launched
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processor::{Argument, Function};
    use std::collections::HashMap;

    /// A processor whose kernels take the time that their first parameter says. Time passes in the process.
    #[derive(Default)]
    struct Timed {
        stamps: Stamps,
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
            let (own, &[begun_at, ended_at]) = arguments.split_last_chunk::<2>().unwrap();
            let begun = self.pass(0);
            let ended = self.pass(own.first().copied().unwrap_or(0));
            let mut memory = self.memory.lock().unwrap();
            for (address, time) in [(begun_at, begun), (ended_at, ended)] {
                if address != 0 {
                    memory.insert(address, time);
                }
            }
            Ok(())
        }

        fn stamps(&self) -> &Stamps {
            &self.stamps
        }

        fn capability(&self) -> u32 {
            90
        }

        fn multiprocessors(&self) -> u32 {
            1
        }
    }

    #[derive(Clone, Copy)]
    enum Does {
        /// A native kernel, or a library call, of so many nanoseconds.
        Native(i64),
        Library(u64),
    }
    use Does::{Library, Native};

    /// Enqueues steps as a device does, `times` times; returns the times of the last, and its marks.
    fn enqueue(steps: &[&[Does]], times: usize) -> (Vec<u64>, usize) {
        let timed = Arc::new(Timed::default());
        let processor: Arc<dyn Processor> = Arc::clone(&timed) as Arc<dyn Processor>;
        let clock = StepClock::new(&processor);
        let mut enqueued = Enqueued::default();
        for _ in 0..times {
            timed.memory.lock().unwrap().clear();
            clock.begin(8, steps.len(), enqueued.ends.clone());
            for (slot, step) in steps.iter().enumerate() {
                for call in *step {
                    match call {
                        Native(takes) => {
                            let source = Source::of("relu", DType::F32, 1);
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
                clock.mark(slot);
            }
            enqueued = clock.end().unwrap();
        }
        let memory = timed.memory.lock().unwrap();
        assert!(memory.keys().all(|&address| address < 8 + 8 * StepClock::words(steps.len()) as u64));
        let words: Vec<u64> = (0..StepClock::words(steps.len()))
            .map(|word| memory.get(&(8 + 8 * word as u64)).copied().unwrap_or(0))
            .collect();
        let mut taken = vec![u64::MAX; steps.len()];
        enqueued.times(&words, &mut |slot, time| taken[slot] = time);
        assert_eq!(enqueued.steps(), steps.len());
        (taken, enqueued.marks)
    }

    #[test]
    fn every_step_gets_its_time() {
        let steps: &[&[Does]] = &[
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
            let (taken, marks) = enqueue(steps, times);
            assert_eq!(taken, expected, "{times}");
            // Of the second time only: before the first call, between two library calls, behind the last.
            assert_eq!(marks, if times == 1 { 6 } else { 3 }, "{times}");
        }
    }

    #[test]
    fn native_kernels_and_libraries_in_turns_need_no_marks() {
        let steps: Vec<&[Does]> = (0..40)
            .map(|step| if step % 2 == 0 { &[Native(2)] as &[Does] } else { &[Library(5)] })
            .chain([&[Native(3)] as &[Does]])
            .collect();
        let (taken, marks) = enqueue(&steps, 2);
        assert_eq!(marks, 0);
        assert_eq!(taken.iter().sum::<u64>(), 20 * 7 + 3);
    }

    #[test]
    fn what_is_not_timed_notes_nothing() {
        let stamps = Stamps::default();
        assert_eq!(stamps.of_kernel(), [0, 0]);
        assert!(!stamps.needs_mark());
    }
}
