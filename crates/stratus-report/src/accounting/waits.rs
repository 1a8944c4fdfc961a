//! Waiting times between workers.
//!
//! All workers end an iteration together, since each needs the sums over all. The one that arrives last at
//! the exchange has the shortest communication time: that of the exchange itself. The additional
//! communication time of the other workers is spent waiting for it.
//!
//! ```text
//! worker 0   computes ███████████████████  communicates ██            last: waits for none
//! worker 1   computes ███████████          communicates ██████████    8 of these 10 are waiting for worker 0
//! ```

use stratus_run::RunDir;
use stratus_run::timeline::{Iteration, Phase, Program, Purpose, TimelineReader};

use crate::Result;

/// Nanoseconds that each worker (outer) waited for each worker (inner), by position.
pub(super) type Waits = Vec<Vec<i128>>;

/// The timeline of a worker, with its current iteration.
struct WorkerTimeline {
    reader: TimelineReader,
    iteration: Iteration,
    ended: bool,
}

impl WorkerTimeline {
    fn open(run: &RunDir) -> Result<Self> {
        let reader = TimelineReader::open(&run.timeline())?;
        Ok(Self { reader, iteration: Iteration::default(), ended: false })
    }

    /// Reads the next training iteration; false at the end.
    fn next(&mut self) -> Result<bool> {
        while !self.ended {
            self.ended = !self.reader.read(&mut self.iteration)?;
            if !self.ended && self.program().purpose == Purpose::Train {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn program(&self) -> &Program {
        &self.reader.programs()[self.iteration.program]
    }

    /// The communication time of an iteration, if the timeline has it. Iterations must be requested in
    /// ascending order.
    fn communication(&mut self, iteration: u64) -> Result<Option<i128>> {
        while !self.ended && self.iteration.iteration < iteration {
            self.next()?;
        }
        if self.ended || self.iteration.iteration != iteration {
            return Ok(None);
        }
        let slots = self.program().slots.iter().zip(&self.iteration.ns);
        let exchanges = slots.filter(|(slot, _)| slot.phase == Phase::Communication);
        Ok(Some(exchanges.map(|(_, &ns)| i128::from(ns)).sum()))
    }
}

/// Waiting time of each worker for each other, over the iterations after `skipped` that all recorded, and
/// their number.
pub(super) fn waits(runs: &[&RunDir], skipped: u64) -> Result<(Waits, u64)> {
    let mut waits = vec![vec![0; runs.len()]; runs.len()];
    let mut workers = runs.iter().map(|run| WorkerTimeline::open(run)).collect::<Result<Vec<_>>>()?;
    let (mut number, mut counted) = (0, 0);
    let mut times = vec![0; workers.len()];
    while workers[0].next()? {
        number += 1;
        if number <= skipped {
            continue;
        }
        let iteration = workers[0].iteration.iteration;
        let mut is_complete = true;
        for (worker, time) in workers.iter_mut().zip(&mut times) {
            match worker.communication(iteration)? {
                Some(ns) => *time = ns,
                None => is_complete = false,
            }
        }
        // On ties, the first of the tied workers counts as the last to arrive.
        let last = times.iter().enumerate().min_by_key(|(_, ns)| **ns).filter(|_| is_complete);
        let Some((last, &shortest)) = last else { continue };
        counted += 1;
        for (row, ns) in waits.iter_mut().zip(&times) {
            row[last] += ns - shortest;
        }
    }
    Ok((waits, counted))
}
