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
        let needed: usize = sizes.iter().map(|size| size.next_multiple_of(4096)).sum();
        if self.memory.len() < needed {
            self.memory = AlignedBytes::zeroed(needed, "measuring").map_err(|error| error.to_string())?;
            // Numbers of ordinary size in either type; zeros and denormals could be faster or slower than what training sees.
            for (i, pair) in self.memory.as_mut_slice().chunks_exact_mut(2).enumerate() {
                pair.copy_from_slice(&(0x3c00u16 + (i as u16 % 61)).to_le_bytes());
            }
        }
        let mut best = Duration::MAX;
        let mut spent = Duration::ZERO;
        for run in 0..=MOST_RUNS {
            let mut operands = Operands::new(Tile::WHOLE);
            let mut rest = self.memory.as_mut_slice();
            for (position, &size) in sizes.iter().enumerate() {
                let (slice, tail) = rest.split_at_mut(size.next_multiple_of(4096));
                operands.set(position, &mut slice[..size]);
                rest = tail;
            }
            let start = Instant::now();
            kernel.run(&mut operands)?;
            let time = start.elapsed();
            if run == 0 {
                if time > SLOW {
                    return Ok(time);
                }
                continue;
            }
            best = best.min(time);
            spent += time;
            if (run >= FEWEST_RUNS && spent > BUDGET) || spent > SLOW {
                break;
            }
        }
        Ok(best)
    }
}
