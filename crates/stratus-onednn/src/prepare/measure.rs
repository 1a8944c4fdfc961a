//! Timing candidates while planning.
//!
//! A measurement should say what a step costs in training, and be over before the user wonders:
//!
//! - Kernels that do the same work on operands of the same layouts are measured once for all programs
//!   ([`TimingCache`]).
//! - The candidates of a step run in turn, so that whatever else slows the machine down slows all of them
//!   down.
//! - Those far behind the best after two runs, or behind after three, are run no more ([`NEAR`]); those
//!   several times slower in the first run are not run again ([`DISTURBED`]).
//! - The caller need not even make a candidate that others make hopeless ([`MakeCandidate`]).
//! - Operands move through memory from run to run: in training, too, they are in no cache ([`COLD_BYTES`]).

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use stratus_engine::backend::Tile;
use stratus_engine::{AlignedBytes, Operands, StepKernel};

/// A kernel to measure.
pub(super) struct BenchCandidate {
    pub kernel: Box<dyn StepKernel>,
    /// Bytes of each of its operands.
    pub sizes: Vec<usize>,
}

/// Makes the candidate of a number, given the times so far; none where these make it not worth a try.
pub(super) type MakeCandidate<'a> =
    dyn FnMut(usize, &[Option<Duration>]) -> Result<Option<BenchCandidate>, String> + 'a;

/// The times that were measured, by [`key`].
pub(crate) type TimingCache = Mutex<HashMap<u64, Duration>>;

/// The key of a time; `what` describes everything that the time depends on.
pub(super) fn key(what: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// Runs candidates.
pub(super) struct Bench {
    /// Memory for operands, reused from candidate to candidate.
    memory: AlignedBytes,
    /// Where the operands of the next run begin.
    next: usize,
}

/// A candidate's repetitions end when they have taken this long,
const BUDGET: Duration = Duration::from_millis(7);

/// or when there were this many.
const MOST_REPETITIONS: u32 = 10;

/// Repetitions that a candidate gets whatever they take.
const FEWEST_REPETITIONS: u32 = 1;

/// A first run this long is the measurement.
const SLOW: Duration = Duration::from_millis(60);

/// Times the best at which a candidate has lost.
const FAR_BEHIND: f64 = 1.6;

/// Times the best at which a first run is not repeated: other work on the machine hardly ever slows one down
/// more.
const DISTURBED: f64 = 3.0;

/// A shorter run says little by itself: the scheduler's time slices are longer.
const SHORT: Duration = Duration::from_millis(2);

/// Times the best up to which a candidate runs on, after two runs and after three. Two runs can both be
/// disturbed: a gradient of weights that takes 3.1 ms once lost to one that takes 3.9 ms.
const NEAR: [f64; 2] = [FAR_BEHIND, 1.25];

/// Bytes that the operands move through, more than the last-level cache holds: most of what a training step
/// reads was written so long ago that it is in no cache any more.
const COLD_BYTES: usize = 64 << 20;

/// Length of the pattern that fills operands, a prime: no extent is a multiple of it.
const PATTERN: usize = 61;

/// Whether a candidate need not be looked at further.
pub(super) fn is_far_behind(time: Duration, best: Duration) -> bool {
    time > SHORT && is_behind(time, best, FAR_BEHIND)
}

/// Whether a time is more than `factor` times the best.
fn is_behind(time: Duration, best: Duration, factor: f64) -> bool {
    time.as_secs_f64() > factor * best.as_secs_f64()
}

impl Bench {
    pub fn new() -> Result<Self, String> {
        let memory = AlignedBytes::zeroed(0, "measuring").map_err(|error| error.to_string())?;
        Ok(Self { memory, next: 0 })
    }

    /// The shortest time of a few runs; of a slow kernel that of the first.
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

    /// The same for the candidates of a step, by their keys; none for those that `make` left out.
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
            if time <= SLOW && !(time > SHORT && is_behind(time, fastest(&times), DISTURBED)) {
                running.push((number, candidate, Duration::ZERO));
            }
        }
        for repetition in 0..MOST_REPETITIONS {
            let best = fastest(&times);
            running.retain(|(number, _, spent)| {
                // After one run all are repeated: code, scratch and pages were cold.
                let near = repetition.checked_sub(1).map(|run| NEAR[(run as usize).min(NEAR.len() - 1)]);
                let is_near = |time| near.is_none_or(|near| !is_behind(time, best, near));
                let may_be_best = times[*number].is_some_and(is_near);
                may_be_best && (repetition < FEWEST_REPETITIONS || *spent < BUDGET)
            });
            // The only one that is near is the best without a further run; of a long run one is enough.
            let is_sure = |(number, ..): &(usize, BenchCandidate, Duration)| {
                times[*number].is_some_and(|time| time > BUDGET)
            };
            if running.len() < 2 && (repetition >= FEWEST_REPETITIONS || running.iter().all(is_sure)) {
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
            // Half as much again, so that it is seldom filled anew.
            let bytes = bytes + self.memory.len() / 2;
            self.memory = AlignedBytes::zeroed(bytes, "measuring").map_err(|error| error.to_string())?;
            // Numbers of ordinary size in f32 and bf16: zeros and denormals have other speeds.
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
        self.next += bytes;
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

/// The shortest of the times that there are.
fn fastest(times: &[Option<Duration>]) -> Duration {
    times.iter().flatten().min().copied().unwrap_or(Duration::MAX)
}
