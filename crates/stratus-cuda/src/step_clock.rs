//! The clock of a device: takes the times of the steps of a run.

use crate::processor::{Launch, Processor, Shape, Source};
use crate::timestamps::RecordedSteps;
use std::sync::{Arc, Mutex, PoisonError};
use stratus_engine::DType;
use stratus_engine::Tile;
use stratus_engine::backend::Operands;

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

    /// Starts timing this number of steps, see [`TimestampSlots::begin`](crate::timestamps::TimestampSlots).
    pub fn begin(&self, address: u64, steps: usize, ends: Vec<bool>) {
        self.processor.timestamps().begin(address, steps, ends);
    }

    /// Ends a step; the time since the last one belongs to `slot`.
    pub fn end_step(&self, slot: usize) {
        self.processor.timestamps().end_step(slot);
    }

    /// Must be called before every library call.
    ///
    /// # Errors
    /// The driver's error message.
    pub fn before_library(&self) -> Result<(), String> {
        if self.processor.timestamps().needs_marker() {
            self.launch_marker()?;
        }
        self.processor.timestamps().begin_library();
        Ok(())
    }

    /// Ends the recording, after all steps were enqueued.
    ///
    /// # Errors
    /// The driver's error message.
    pub fn end(&self) -> Result<RecordedSteps, String> {
        let marked = if self.processor.timestamps().needs_marker() { self.launch_marker() } else { Ok(()) };
        let recorded = self.processor.timestamps().take();
        marked.map(|()| recorded)
    }

    /// Stops timing, because enqueuing has failed.
    pub fn cancel(&self) {
        self.processor.timestamps().take();
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
        self.processor.timestamps().end_marker();
        launched
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processor::{Argument, Function};
    use crate::timestamps::{TimestampSlots, words};
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
        assert!(memory.keys().all(|&address| address < 8 + 8 * words(steps.len()) as u64));
        let words: Vec<u64> = (0..words(steps.len()))
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
}
