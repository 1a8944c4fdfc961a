//! Timing candidates at plan time.
//!
//! What is measured is what a step costs in training, and measuring has to be over before the user wonders. So: kernels that do the same on operands
//! that lie the same are measured once for all programs; of a step's candidates, those that are far behind after two runs or behind after three are run
//! no more, nor those that took several times as long in the first, which may have been disturbed, but not as much; and of the library's, which stand
//! best first, those behind one that is far behind are not even made.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use stratus_engine::backend::Tile;
use stratus_engine::{AlignedBytes, Operands, StepKernel};

/// A kernel with the bytes of each of its operands.
pub(super) struct Contender {
    pub kernel: Box<dyn StepKernel>,
    pub sizes: Vec<usize>,
}

/// Makes one of a step's candidates; none where those before it, whose times are given, make it not worth a try.
pub(super) type Make<'a> = dyn FnMut(usize, &[Option<Duration>]) -> Result<Option<Contender>, String> + 'a;

/// What kernels took, by a hash of all that this depends on.
pub(crate) type Known = Mutex<HashMap<u64, Duration>>;

/// The hash under which a time is remembered; `what` says all that the time depends on.
pub(super) fn key(what: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// Measures.
pub(super) struct Bench {
    /// For operands, reused from candidate to candidate.
    memory: AlignedBytes,
    /// Where the next run has its operands.
    next: usize,
}

/// Runs per candidate: enough time has passed, or enough runs were made.
const BUDGET: Duration = Duration::from_millis(7);
const MOST_RUNS: u32 = 10;
const FEWEST_RUNS: u32 = 1;

/// A first run this long is the measurement.
const SLOW: Duration = Duration::from_millis(60);

/// A candidate that takes so many times as long as the best of one step has lost.
const FAR_BEHIND: f64 = 1.6;

/// A first run may have been disturbed so much: one that took more times as long as the best is not repeated.
const DISTURBED: f64 = 3.0;

/// Runs shorter than this say little one by one: the scheduler's turns are longer.
const SHORT: Duration = Duration::from_millis(2);

/// Only candidates this near to the best after two runs, and after three, are run again. Two runs can both be disturbed: a gradient of weights that takes
/// 3.1 ms was given up once for one that takes 3.9.
const NEAR: [f64; 2] = [FAR_BEHIND, 1.25];

/// Bytes among which operands move from run to run: more than the last cache holds. What a step of training reads was mostly written so long before
/// that it is there no more.
const COLD: usize = 64 << 20;

/// After so many numbers operands begin again: no extent is a multiple of it.
const PATTERN: usize = 61;

/// Whether a candidate need not be looked at further.
pub(super) fn is_far_behind(time: Duration, best: Duration) -> bool {
    time > SHORT && is_behind(time, best, FAR_BEHIND)
}

/// Whether a time is more than so many times as long as the best.
fn is_behind(time: Duration, best: Duration, times: f64) -> bool {
    time.as_secs_f64() > times * best.as_secs_f64()
}

impl Bench {
    pub fn new() -> Result<Self, String> {
        let memory = AlignedBytes::zeroed(0, "measuring").map_err(|error| error.to_string())?;
        Ok(Self { memory, next: 0 })
    }

    /// The shortest time of a few runs; of a slow kernel the time of the first.
    pub fn time(&mut self, known: &Known, key: u64, kernel: Contender) -> Result<Duration, String> {
        let mut kernel = Some(kernel);
        let times = self.times(known, &[key], &mut |_, _| Ok(kernel.take()))?;
        times[0].ok_or_else(|| "nothing was measured".to_owned())
    }

    /// The same for kernels, with these keys, that do the same work in different ways; none for those that were not made. They run in turn: what
    /// else the machine does for a while, it does to all.
    pub fn times(
        &mut self,
        known: &Known,
        keys: &[u64],
        make: &mut Make<'_>,
    ) -> Result<Vec<Option<Duration>>, String> {
        let mut times: Vec<Option<Duration>> = {
            let known = known.lock().unwrap_or_else(PoisonError::into_inner);
            keys.iter().map(|key| known.get(key).copied()).collect()
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
        for run in 0..MOST_RUNS {
            let best = fastest(&times);
            running.retain(|(number, _, spent)| {
                // The first run was with code, scratch and pages cold too.
                let near = run.checked_sub(1).map(|run| NEAR[(run as usize).min(NEAR.len() - 1)]);
                let is_near = |time| near.is_none_or(|near| !is_behind(time, best, near));
                let may_be_best = times[*number].is_some_and(is_near);
                may_be_best && (run < FEWEST_RUNS || *spent < BUDGET)
            });
            // The only one that is near needs no second run to be the best; a long first run says what it takes.
            let is_sure = |(number, ..): &(usize, Contender, Duration)| {
                times[*number].is_some_and(|time| time > BUDGET)
            };
            if running.len() < 2 && (run >= FEWEST_RUNS || running.iter().all(is_sure)) {
                break;
            }
            for (number, candidate, spent) in &mut running {
                let time = self.run(candidate)?;
                *spent += time;
                times[*number] = times[*number].map(|shortest| shortest.min(time));
            }
        }
        let found = keys.iter().zip(&times).filter_map(|(&key, &time)| Some((key, time?)));
        known.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
        Ok(times)
    }

    fn reserve(&mut self, bytes: usize) -> Result<(), String> {
        if self.memory.len() < bytes {
            // Half as much again, so that it is seldom filled anew.
            let bytes = bytes + self.memory.len() / 2;
            self.memory = AlignedBytes::zeroed(bytes, "measuring").map_err(|error| error.to_string())?;
            // Numbers of ordinary size in either type; zeros and denormals could be faster or slower than what training sees.
            let numbers: [u16; PATTERN] = std::array::from_fn(|number| 0x3c00 + number as u16);
            let pattern: &[u8] = bytemuck::cast_slice(&numbers);
            for part in self.memory.as_mut_slice().chunks_mut(pattern.len()) {
                part.copy_from_slice(&pattern[..part.len()]);
            }
        }
        Ok(())
    }

    fn run(&mut self, Contender { kernel, sizes }: &mut Contender) -> Result<Duration, String> {
        let bytes: usize = sizes.iter().map(|size| size.next_multiple_of(4096)).sum();
        self.reserve(bytes + COLD)?;
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
