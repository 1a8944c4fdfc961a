//! Timing candidates while planning.
//!
//! A measurement should predict the cost of a step in the program, and take little of the user's time:
//!
//! - Kernels that do the same work on operands of the same layouts are measured once for all programs
//!   ([`TimingCache`]).
//! - The candidates of a step run in rounds, so that other load on the machine slows all of them down.
//! - A candidate is dropped after two or three runs if it is slower than [`RETRY_RATIOS`] times the best; one
//!   that is several times slower in the first run is not repeated ([`NO_RETRY_RATIO`]).
//! - The caller may skip a candidate that others have made hopeless ([`MakeCandidate`]).
//! - Operands move through memory from run to run, to be as cold as in training ([`COLD_BYTES`]). In
//!   inference of a few images a step reads what the one before has just written, so operands stay where they
//!   are ([`WARM_BYTES`]).

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use stratus_engine::backend::Tile;
use stratus_engine::program::Mode;
use stratus_engine::{AlignedBytes, Operands, Program, StepKernel, Value};

/// A kernel to measure.
pub(super) struct BenchCandidate {
    pub kernel: Box<dyn StepKernel>,
    /// The size in bytes of each of its operands.
    pub sizes: Vec<usize>,
}

/// Creates the candidate with a number, given the times measured so far; `None` skips it.
pub(super) type MakeCandidate<'a> =
    dyn FnMut(usize, &[Option<Duration>]) -> Result<Option<BenchCandidate>, String> + 'a;

/// The measured times, by [`Bench::timing_key`].
pub(crate) type TimingCache = Mutex<HashMap<u64, Duration>>;

/// Memory and state for running candidates.
pub(super) struct Bench {
    /// Memory for operands, reused for all candidates.
    memory: AlignedBytes,
    /// The start of the operands of the next run.
    next: usize,
    /// True if every run uses the same memory, for operands of up to [`WARM_BYTES`].
    is_warm: bool,
}

/// The time after which a candidate is not repeated.
const TIME_BUDGET: Duration = Duration::from_millis(7);

/// The maximum number of repetitions of a candidate.
const MAX_REPETITIONS: u32 = 10;

/// The number of repetitions of a candidate regardless of its time.
const MIN_REPETITIONS: u32 = 1;

/// A candidate whose first run takes this long is not repeated.
const SINGLE_RUN_TIME: Duration = Duration::from_millis(60);

/// A candidate slower than the best by this factor has lost.
const LOSING_RATIO: f64 = 1.6;

/// A candidate is not repeated if its first run is slower than the best by this factor: other load hardly
/// ever slows one down more.
const NO_RETRY_RATIO: f64 = 3.0;

/// A shorter run is unreliable, because the scheduler's time slices are longer.
const MIN_RELIABLE_TIME: Duration = Duration::from_millis(2);

/// A candidate is run again after two and three runs only if it is within this factor of the best. Two runs
/// can both be disturbed: a weight gradient that takes 3.1 ms once lost to one that takes 3.9 ms.
const RETRY_RATIOS: [f64; 2] = [LOSING_RATIO, 1.25];

/// The memory that operands move through, more than the last-level cache: most data that a training step
/// reads has left the caches since it was written.
const COLD_BYTES: usize = 64 << 20;

/// The maximum size of operands that stay in the caches from one step to the next in inference: half of a
/// common last-level cache.
const WARM_BYTES: usize = 8 << 20;

/// The maximum number of images of a program for inference whose maps stay in the caches.
const MAX_WARM_IMAGES: usize = 8;

/// The maximum size of the weights of such a program: larger ones drive each other out of the caches.
const MAX_WARM_WEIGHT_BYTES: usize = 32 << 20;

/// The length of the pattern that fills operands, a prime, so that no extent is a multiple of it.
const PATTERN: usize = 61;

/// Returns whether a candidate has lost.
pub(super) fn has_lost(time: Duration, best: Duration) -> bool {
    time > MIN_RELIABLE_TIME && is_slower(time, best, LOSING_RATIO)
}

/// Returns whether a time is more than `factor` times the best.
fn is_slower(time: Duration, best: Duration, factor: f64) -> bool {
    time.as_secs_f64() > factor * best.as_secs_f64()
}

impl Bench {
    /// Prepares to measure the kernels of a program.
    pub fn new(program: &Program) -> Result<Self, String> {
        let memory = AlignedBytes::zeroed(0, "measuring").map_err(|error| error.to_string())?;
        let persistent = program.values.iter().filter(|value| value.role.is_persistent());
        let weight_bytes: usize = persistent.map(Value::bytes).sum();
        let is_warm = program.mode == Mode::Evaluate
            && program.batch <= MAX_WARM_IMAGES
            && weight_bytes <= MAX_WARM_WEIGHT_BYTES;
        Ok(Self { memory, next: 0, is_warm })
    }

    /// The cache key of a time; `description` covers everything else that the time depends on.
    pub fn timing_key(&self, description: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.is_warm, description).hash(&mut hasher);
        hasher.finish()
    }

    /// The shortest time of a few runs; of a slow kernel, the first.
    pub fn time(
        &mut self,
        cache: &TimingCache,
        key: u64,
        candidate: BenchCandidate,
    ) -> Result<Duration, String> {
        let mut candidate = Some(candidate);
        let times = self.times(cache, &[key], &mut |_, _| Ok(candidate.take()))?;
        times[0].ok_or_else(|| "nothing was measured".to_owned())
    }

    /// The shortest times of the candidates of a step; `None` for those that `make` skipped.
    pub fn times(
        &mut self,
        cache: &TimingCache,
        keys: &[u64],
        make: &mut MakeCandidate<'_>,
    ) -> Result<Vec<Option<Duration>>, String> {
        let mut times: Vec<Option<Duration>> = {
            let cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
            keys.iter().map(|key| cache.get(key).copied()).collect()
        };
        let mut running = Vec::with_capacity(keys.len());
        for number in 0..keys.len() {
            if times[number].is_some() {
                continue;
            }
            let Some(mut candidate) = make(number, &times)? else { continue };
            let time = self.run(&mut candidate)?;
            times[number] = Some(time);
            if time <= SINGLE_RUN_TIME
                && !(time > MIN_RELIABLE_TIME && is_slower(time, fastest(&times), NO_RETRY_RATIO))
            {
                running.push((number, candidate, Duration::ZERO));
            }
        }
        for repetition in 0..MAX_REPETITIONS {
            let best = fastest(&times);
            running.retain(|(number, _, spent)| {
                // After the first run all are repeated, because code, scratch and pages were cold.
                let max_ratio = repetition
                    .checked_sub(1)
                    .map(|run| RETRY_RATIOS[(run as usize).min(RETRY_RATIOS.len() - 1)]);
                let is_close = |time| max_ratio.is_none_or(|max_ratio| !is_slower(time, best, max_ratio));
                let may_be_best = times[*number].is_some_and(is_close);
                may_be_best && (repetition < MIN_REPETITIONS || *spent < TIME_BUDGET)
            });
            // A single remaining candidate is the best without a further run; a long run need not be
            // repeated.
            let is_settled = |(number, ..): &(usize, BenchCandidate, Duration)| {
                times[*number].is_some_and(|time| time > TIME_BUDGET)
            };
            if running.len() < 2 && (repetition >= MIN_REPETITIONS || running.iter().all(is_settled)) {
                break;
            }
            for (number, candidate, spent) in &mut running {
                let time = self.run(candidate)?;
                *spent += time;
                times[*number] = times[*number].map(|shortest| shortest.min(time));
            }
        }
        let found = keys.iter().zip(&times).filter_map(|(&key, &time)| Some((key, time?)));
        cache.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
        Ok(times)
    }

    fn reserve(&mut self, bytes: usize) -> Result<(), String> {
        if self.memory.len() < bytes {
            // Grows by half, to be refilled rarely.
            let bytes = bytes + self.memory.len() / 2;
            self.memory = AlignedBytes::zeroed(bytes, "measuring").map_err(|error| error.to_string())?;
            // Well-scaled numbers in f32 and bf16: zeros and denormals differ in speed.
            let numbers: [u16; PATTERN] = std::array::from_fn(|number| 0x3c00 + number as u16);
            let pattern: &[u8] = bytemuck::cast_slice(&numbers);
            for part in self.memory.as_mut_slice().chunks_mut(pattern.len()) {
                part.copy_from_slice(&pattern[..part.len()]);
            }
        }
        Ok(())
    }

    fn run(&mut self, BenchCandidate { kernel, sizes }: &mut BenchCandidate) -> Result<Duration, String> {
        let bytes: usize = sizes.iter().map(|size| size.next_multiple_of(4096)).sum();
        self.reserve(bytes + COLD_BYTES)?;
        if self.next + bytes > self.memory.len() {
            self.next = 0;
        }
        let mut operands = Operands::new(Tile::WHOLE);
        let mut rest = &mut self.memory.as_mut_slice()[self.next..];
        if !self.is_warm || bytes > WARM_BYTES {
            self.next += bytes;
        }
        for (position, &size) in sizes.iter().enumerate() {
            let (slice, tail) = rest.split_at_mut(size.next_multiple_of(4096));
            operands.set(position, &mut slice[..size]);
            rest = tail;
        }
        let start = Instant::now();
        kernel.run(&mut operands)?;
        Ok(start.elapsed())
    }
}

/// The shortest known time.
fn fastest(times: &[Option<Duration>]) -> Duration {
    times.iter().flatten().min().copied().unwrap_or(Duration::MAX)
}
