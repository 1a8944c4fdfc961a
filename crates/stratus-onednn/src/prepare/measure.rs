//! Timing candidates at plan time.

use std::time::{Duration, Instant};
use stratus_engine::backend::Tile;
use stratus_engine::{AlignedBytes, Operands, StepKernel};

/// Memory for operands, reused from candidate to candidate.
pub(super) struct Bench {
    memory: AlignedBytes,
}

/// Runs per candidate: enough time has passed, or enough runs were made.
const BUDGET: Duration = Duration::from_millis(12);
const MOST_RUNS: u32 = 12;
const FEWEST_RUNS: u32 = 3;

/// A first run this long is the measurement: with further ones a candidate would take more than a quarter of a second.
const SLOW: Duration = Duration::from_millis(60);

impl Bench {
    pub fn new() -> Result<Self, String> {
        Ok(Self { memory: AlignedBytes::zeroed(0, "measuring").map_err(|error| error.to_string())? })
    }

    /// The shortest time of a few runs on operands of these sizes, after one run to warm up; of a slow kernel the time of that one.
    pub fn time(&mut self, kernel: &mut dyn StepKernel, sizes: &[usize]) -> Result<Duration, String> {
        let mut times = self.times(&mut [(kernel, sizes.to_vec())])?;
        times.pop().ok_or_else(|| "nothing was measured".to_owned())
    }

    /// The same for kernels that do the same work in different ways. They run in turn: what else the machine does for a while, it does to all.
    pub fn times(
        &mut self,
        kernels: &mut [(&mut dyn StepKernel, Vec<usize>)],
    ) -> Result<Vec<Duration>, String> {
        let needed = |sizes: &[usize]| sizes.iter().map(|size| size.next_multiple_of(4096)).sum();
        self.reserve(kernels.iter().map(|(_, sizes)| needed(sizes)).max().unwrap_or(0))?;
        let mut best = vec![Duration::MAX; kernels.len()];
        let mut spent = vec![Duration::ZERO; kernels.len()];
        for run in 0..=MOST_RUNS {
            for (number, (kernel, sizes)) in kernels.iter_mut().enumerate() {
                let enough = run > FEWEST_RUNS && spent[number] > BUDGET;
                if enough || spent[number] > SLOW {
                    continue;
                }
                let time = self.run(*kernel, sizes)?;
                if run == 0 && time <= SLOW {
                    continue;
                }
                best[number] = best[number].min(time);
                spent[number] += time;
            }
        }
        Ok(best)
    }

    fn reserve(&mut self, bytes: usize) -> Result<(), String> {
        if self.memory.len() < bytes {
            self.memory = AlignedBytes::zeroed(bytes, "measuring").map_err(|error| error.to_string())?;
            // Numbers of ordinary size in either type; zeros and denormals could be faster or slower than what training sees.
            for (i, pair) in self.memory.as_mut_slice().chunks_exact_mut(2).enumerate() {
                pair.copy_from_slice(&(0x3c00u16 + (i as u16 % 61)).to_le_bytes());
            }
        }
        Ok(())
    }

    fn run(&mut self, kernel: &mut dyn StepKernel, sizes: &[usize]) -> Result<Duration, String> {
        let mut operands = Operands::new(Tile::WHOLE);
        let mut rest = self.memory.as_mut_slice();
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
