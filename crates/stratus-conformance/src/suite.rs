//! Runs many cases on one backend.

use crate::run::Results;
use crate::{Case, cases};
use serde::Serialize;
use stratus_engine::{Backend, Choices, EngineError, Precision};

/// The variants of a case, each with a name for messages.
type Variants<'a> = dyn Fn(&Case) -> Vec<(String, Choices)> + 'a;
/// The expected error of a case; `None` if it must run.
type ExpectedError<'a> = dyn Fn(&Case, Precision) -> Option<&'static str> + 'a;

/// The configuration of a conformance run: layouts, implementations and expected errors of a backend.
pub struct Suite<'a> {
    backend: &'a dyn Backend,
    twin: Option<&'a dyn Backend>,
    variants: Box<Variants<'a>>,
    expected_error: Box<ExpectedError<'a>>,
}

impl<'a> Suite<'a> {
    /// A suite that runs every case once with the backend's own choices and expects no errors.
    #[must_use]
    pub fn new(backend: &'a dyn Backend) -> Self {
        Self {
            backend,
            twin: None,
            variants: Box::new(|_| vec![(String::new(), Choices::default())]),
            expected_error: Box::new(|_, _| None),
        }
    }

    /// Sets another backend that must give bitwise equal results, such as one whose threads run in another
    /// order.
    #[must_use]
    pub fn same_bits_as(self, twin: &'a dyn Backend) -> Self {
        Self { twin: Some(twin), ..self }
    }

    /// Runs each case with each of these choices.
    #[must_use]
    pub fn with_variants(self, variants: impl Fn(&Case) -> Vec<(String, Choices)> + 'a) -> Self {
        Self { variants: Box::new(variants), ..self }
    }

    /// Sets the cases that must fail, with a part of the error message.
    #[must_use]
    pub fn expecting_errors(
        self,
        expected_error: impl Fn(&Case, Precision) -> Option<&'static str> + 'a,
    ) -> Self {
        Self { expected_error: Box::new(expected_error), ..self }
    }

    /// Runs cases in a precision and compares the results with the reference.
    #[must_use]
    pub fn run(&self, precision: Precision, cases: &[Case]) -> Report {
        let mut report = Report::default();
        for case in cases {
            for (variant, choices) in (self.variants)(case) {
                report.compared += 1;
                if let Err(problem) = self.check(precision, case, &choices) {
                    let how = if variant.is_empty() { variant } else { format!(" ({variant})") };
                    report.failures.push(format!("{problem}{how}"));
                }
            }
        }
        report
    }

    fn check(&self, precision: Precision, case: &Case, choices: &Choices) -> Result<(), String> {
        let run = |backend: &dyn Backend| case.run(backend, precision, choices.clone());
        let failed = |problem: &dyn std::fmt::Display| format!("case `{}` {precision}: {problem}", case.name);
        let got = match (run(self.backend), (self.expected_error)(case, precision)) {
            (Ok(got), None) => got,
            (Ok(_), Some(_)) => return Err(failed(&"expected an error, but it ran")),
            (Err(EngineError::Unsupported { reason, .. }), Some(words)) if reason.contains(words) => {
                return Ok(());
            }
            (Err(error), _) => return Err(failed(&error)),
        };
        let expected = case.expected(precision).map_err(|error| failed(&error))?;
        case.compare(precision, &expected, &got)?;
        let Some(twin) = self.twin else { return Ok(()) };
        let again = run(twin).map_err(|error| failed(&error))?;
        same_bits(&got, &again).map_err(|problem| failed(&problem))
    }
}

/// The result of a suite run.
#[derive(Debug, Default)]
pub struct Report {
    /// The number of comparisons: one for each case and variant.
    pub compared: usize,
    /// One line per failure.
    pub failures: Vec<String>,
}

impl Report {
    /// Adds the result of another run.
    pub fn extend(&mut self, other: Self) {
        self.compared += other.compared;
        self.failures.extend(other.failures);
    }

    /// Asserts that something was compared and nothing failed.
    ///
    /// # Panics
    /// With every failure, or if no case ran.
    pub fn assert_passed(&self) {
        let Self { compared, failures } = self;
        assert!(failures.is_empty(), "{} of {compared} fail:\n{}", failures.len(), failures.join("\n"));
        assert!(*compared > 0, "no case was run");
    }
}

/// Compares the bits of two runs.
///
/// # Errors
/// The position of the first difference.
pub fn same_bits(first: &Results, second: &Results) -> Result<(), String> {
    let bits = |results: &Results| -> Vec<Vec<u64>> {
        results.iter().map(|result| result.iter().map(|number| number.to_bits()).collect()).collect()
    };
    let (first, second) = (bits(first), bits(second));
    if first == second {
        return Ok(());
    }
    let differing =
        first.iter().flatten().zip(second.iter().flatten()).position(|(first, second)| first != second);
    Err(match differing {
        Some(position) => format!("element {position} of the results is not bitwise equal in the second run"),
        None => "the second run has a different number of results".to_owned(),
    })
}

/// The comparison of a backend's kernels with the reference, in every precision in which it can train.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verification {
    /// Library and device.
    pub library: String,
    /// The number of compared cases; a case counts once per precision.
    pub compared: usize,
    /// The differences, one line each.
    pub failures: Vec<String>,
}

impl Verification {
    /// Runs all cases, or those whose name contains `filter`.
    #[must_use]
    pub fn new(backend: &dyn Backend, filter: Option<&str>) -> Self {
        let mut all = Report::default();
        for precision in training_precisions(backend) {
            let mut cases = cases::for_precision(precision);
            cases.retain(|case| filter.is_none_or(|filter| case.name.contains(filter)));
            all.extend(Suite::new(backend).run(precision, &cases));
        }
        Self { library: backend.describe(), compared: all.compared, failures: all.failures }
    }
}

/// The precisions in which a backend can train.
pub(crate) fn training_precisions(backend: &dyn Backend) -> impl Iterator<Item = Precision> {
    backend.precisions().into_iter().filter(|precision| *precision != Precision::F64)
}
