//! Micro-benchmarks of the cases: time per kernel, and its operations and bytes per second.

use crate::suite::training_precisions;
use crate::{Case, cases};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use stratus_base::median;
use stratus_engine::ops::KernelSpec;
use stratus_engine::{Backend, Choices, Clock, EngineError, Phase, Precision, Value};

/// The measurement of a case on a backend.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// The case's name.
    pub case: String,
    /// The kernel's name.
    pub kernel: &'static str,
    /// The backend's name for the chosen implementation.
    pub implementation: String,
    /// The precision.
    pub precision: Precision,
    /// The number of measured runs.
    pub runs: usize,
    /// Median seconds of the kernel.
    pub seconds: f64,
    /// Median seconds of layout conversions around the kernel.
    pub layout_seconds: f64,
    /// Floating-point operations of a run.
    pub flops: u64,
    /// Bytes of all operands; updates count twice, because they are read and written.
    pub bytes: u64,
}

impl Measurement {
    /// Billions of floating-point operations per second.
    #[must_use]
    pub fn gigaflops(&self) -> f64 {
        self.flops as f64 / self.seconds / 1e9
    }

    /// Billions of bytes per second.
    #[must_use]
    pub fn gigabytes(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e9
    }
}

impl Serialize for Measurement {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Measurement", 7)?;
        fields.serialize_field("case", &self.case)?;
        fields.serialize_field("kernel", self.kernel)?;
        fields.serialize_field("implementation", &self.implementation)?;
        fields.serialize_field("precision", &self.precision)?;
        fields.serialize_field("seconds", &self.seconds)?;
        fields.serialize_field("gflops", &self.gigaflops())?;
        fields.serialize_field("gb_per_second", &self.gigabytes())?;
        fields.end()
    }
}

/// The measured runs of each case by [`measure_cases`].
const RUNS: usize = 10;

/// Measures the cases to be measured, or those whose name contains `filter`, in every precision in which the
/// backend can train. It first measures its candidates.
///
/// # Errors
/// If the backend cannot prepare or run a case.
pub fn measure_cases(backend: &dyn Backend, filter: Option<&str>) -> Result<Vec<Measurement>, EngineError> {
    let precisions = training_precisions(backend);
    let cases = precisions
        .flat_map(|precision| cases::benchmarks(precision).into_iter().map(move |case| (case, precision)));
    cases
        .filter(|(case, _)| filter.is_none_or(|filter| case.name.contains(filter)))
        .map(|(case, precision)| case.bench(backend, precision, Choices::default(), true, RUNS))
        .collect()
}

impl Case {
    /// Measures the case on a backend: two warm-up runs, then `runs` (at least one) measured ones. With
    /// `measure` the backend first measures its candidates.
    ///
    /// # Errors
    /// If the backend cannot prepare or run it.
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
            let seconds = |is_layout: bool| {
                let slots = clock.slots().iter().zip(&steps);
                slots
                    .filter(|(_, phase)| (**phase == Phase::Layout) == is_layout)
                    .map(|(ns, _)| ns)
                    .sum::<u64>() as f64
                    / 1e9
            };
            kernel.push(seconds(false));
            layout.push(seconds(true));
        }
        let plan = session.plan(0);
        let kernel_step = steps.iter().position(|phase| *phase != Phase::Layout);
        let program = self.program(precision)?;
        let operands: Vec<&Value> = program.steps[0].operands().map(|id| program.value(id)).collect();
        let bytes = |value: &&Value| (value.elements() * value.dtype.bytes()) as u64;
        let updates = &operands[self.inputs.len()..self.inputs.len() + self.updates.len()];
        Ok(Measurement {
            case: self.name.clone(),
            kernel: self.kernel.name(),
            implementation: kernel_step
                .map(|step| plan.steps[step].implementation.clone())
                .unwrap_or_default(),
            precision,
            runs,
            seconds: median(&mut kernel).unwrap_or(0.0),
            layout_seconds: median(&mut layout).unwrap_or(0.0),
            flops: self.kernel.flops(&operands),
            bytes: operands.iter().chain(updates).map(bytes).sum(),
        })
    }
}
