//! Which worker the others waited for.
//!
//! Workers end every iteration together, as each needs the sums of all. The one that comes last to the
//! exchange finds the others there: it communicates for the shortest time of all, which is what the exchange
//! itself takes. What any other communicates beyond that, it has waited for that one.
//!
//! ```text
//! worker 0   computes ███████████████████  communicates ██            the last: 0 waits for nobody
//! worker 1   computes ███████████          communicates ██████████    8 of these 10 it waits for worker 0
//! ```

use stratus_run::RunDir;
use stratus_run::timeline::{Iteration, Phase, Program, Purpose, TimelineReader};

use crate::Result;

/// Nanoseconds that each worker (outer) waited for each (inner), by their places.
pub(super) type Waits = Vec<Vec<i128>>;

/// A worker's timeline, and the iteration at which it is.
struct Worker {
    reader: TimelineReader,
    now: Iteration,
    ended: bool,
}

impl Worker {
    fn open(run: &RunDir) -> Result<Self> {
        let reader = TimelineReader::open(&run.timeline())?;
        Ok(Self { reader, now: Iteration::default(), ended: false })
    }

    /// Reads on to the next iteration that trains; false at the end.
    fn next(&mut self) -> Result<bool> {
        while !self.ended {
            self.ended = !self.reader.read(&mut self.now)?;
            if !self.ended && self.program().purpose == Purpose::Train {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn program(&self) -> &Program {
        &self.reader.programs()[self.now.program]
    }

    /// What it communicates in an iteration, where it has that: iterations only ascend.
    fn communication(&mut self, iteration: u64) -> Result<Option<i128>> {
        while !self.ended && self.now.iteration < iteration {
            self.next()?;
        }
        if self.ended || self.now.iteration != iteration {
            return Ok(None);
        }
        let slots = self.program().slots.iter().zip(&self.now.ns);
        let exchanges = slots.filter(|(slot, _)| slot.phase == Phase::Communication);
        Ok(Some(exchanges.map(|(_, &ns)| i128::from(ns)).sum()))
    }
}

/// Who waited how long for whom, over the training iterations of the first worker but for the first
/// `skipped`, as far as all have them; and how many these are.
pub(super) fn waits(runs: &[&RunDir], skipped: u64) -> Result<(Waits, u64)> {
    let mut waits = vec![vec![0; runs.len()]; runs.len()];
    let mut workers = runs.iter().map(|run| Worker::open(run)).collect::<Result<Vec<_>>>()?;
    let (mut number, mut counted) = (0, 0);
    let mut shares = vec![0; workers.len()];
    while workers[0].next()? {
        number += 1;
        if number <= skipped {
            continue;
        }
        let iteration = workers[0].now.iteration;
        let mut all = true;
        for (worker, share) in workers.iter_mut().zip(&mut shares) {
            match worker.communication(iteration)? {
                Some(ns) => *share = ns,
                None => all = false,
            }
        }
        // The first of those that are equally short.
        let last = shares.iter().enumerate().min_by_key(|(_, ns)| **ns).filter(|_| all);
        let Some((last, &least)) = last else { continue };
        counted += 1;
        for (row, ns) in waits.iter_mut().zip(&shares) {
            row[last] += ns - least;
        }
    }
    Ok((waits, counted))
}
