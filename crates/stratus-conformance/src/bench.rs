//! Micro-benchmarks over the case tables: how long a kernel takes, and what that is in operations and bytes
//! a second.

use crate::Case;
use stratus_engine::ops::KernelSpec;
use stratus_engine::{Backend, Choices, Clock, EngineError, Phase, Precision, Value};

/// What was measured of a case on a backend.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// The case's name.
    pub case: String,
    /// The kernel's name.
    pub kernel: &'static str,
    /// What the library calls the kernel it chose.
    pub implementation: String,
    /// The precision.
    pub precision: Precision,
    /// How many runs were measured.
    pub runs: usize,
    /// The median over the runs of the kernel's own seconds.
    pub seconds: f64,
    /// The median over the runs of the seconds spent on changes of layout around it.
    pub layout_seconds: f64,
    /// Floating-point operations of a run.
    pub flops: u64,
    /// Bytes of all operands, updates counted twice: read and written.
    pub bytes: u64,
}

impl Measurement {
    /// Billions of floating-point operations a second.
    #[must_use]
    pub fn gigaflops(&self) -> f64 {
        self.flops as f64 / self.seconds / 1e9
    }

    /// Billions of bytes a second.
    #[must_use]
    pub fn gigabytes(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e9
    }
}

impl Case {
    /// Measures the case on a backend: two runs to warm up, then `runs` (at least one) that count.
    /// `measure` lets the backend measure its candidates first.
    ///
    /// # Errors
    /// Where the backend cannot prepare or run it.
    pub fn bench(
        &self,
        backend: &dyn Backend,
        precision: Precision,
        choices: Choices,
        measure: bool,
        runs: usize,
    ) -> Result<Measurement, EngineError> {
        const WARM_UP: usize = 2;
        let runs = runs.max(1);
        let mut session = self.load(backend, precision, choices, measure)?;
        let steps: Vec<Phase> = session.plan(0).program.steps.iter().map(|step| step.phase).collect();
        let mut clock = Clock::new(session.slots(0));
        let (mut kernel, mut layout) = (Vec::with_capacity(runs), Vec::with_capacity(runs));
        for iteration in 0..WARM_UP + runs {
            clock.restart();
            clock.begin_iteration();
            session.run(0, &mut [], &mut [], &mut clock, 0)?;
            if iteration < WARM_UP {
                continue;
            }
            let seconds = |of_layout: bool| {
                let slots = clock.slots().iter().zip(&steps);
                slots
                    .filter(|(_, phase)| (**phase == Phase::Layout) == of_layout)
                    .map(|(ns, _)| ns)
                    .sum::<u64>()
            };
            kernel.push(seconds(false));
            layout.push(seconds(true));
        }
        let plan = session.plan(0);
        let own = steps.iter().position(|phase| *phase != Phase::Layout);
        let program = self.program(precision)?;
        let operands: Vec<&Value> = program.steps[0].operands().map(|id| program.value(id)).collect();
        let bytes = |value: &&Value| (value.elements() * value.dtype.bytes()) as u64;
        let updates = &operands[self.inputs.len()..self.inputs.len() + self.updates.len()];
        Ok(Measurement {
            case: self.name.clone(),
            kernel: self.kernel.name(),
            implementation: own.map(|step| plan.steps[step].implementation.clone()).unwrap_or_default(),
            precision,
            runs,
            seconds: median(kernel),
            layout_seconds: median(layout),
            flops: self.kernel.flops(&operands),
            bytes: operands.iter().chain(updates).map(bytes).sum(),
        })
    }
}

/// The median of some nanoseconds, in seconds: of an even count the mean of the middle two.
fn median(mut nanoseconds: Vec<u64>) -> f64 {
    nanoseconds.sort_unstable();
    let middle = nanoseconds.len() / 2;
    let upper = nanoseconds.get(middle).copied().unwrap_or_default();
    let lower = if nanoseconds.len().is_multiple_of(2) {
        nanoseconds.get(middle.wrapping_sub(1)).copied()
    } else {
        None
    };
    (upper as f64 + lower.unwrap_or(upper) as f64) / 2e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(median(vec![3_000_000_000, 1_000_000_000, 2_000_000_000]), 2.0);
        assert_eq!(median(vec![1_000_000_000, 2_000_000_000]), 1.5);
        assert_eq!(median(vec![]), 0.0);
    }
}
