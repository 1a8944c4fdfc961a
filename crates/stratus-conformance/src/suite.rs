//! Many cases on one backend.

use crate::Case;
use crate::run::Results;
use stratus_engine::{Backend, Choices, EngineError, Precision};

/// The ways in which a case is run, each with a name for messages.
type Variants<'a> = dyn Fn(&Case) -> Vec<(String, Choices)> + 'a;
/// The words in which a backend has to refuse a case; nothing where it has to run.
type Refusal<'a> = dyn Fn(&Case, Precision) -> Option<&'static str> + 'a;

/// How a backend is held against the cases: in which layouts, by which implementations, and what it may
/// refuse.
pub struct Suite<'a> {
    backend: &'a dyn Backend,
    twin: Option<&'a dyn Backend>,
    variants: Box<Variants<'a>>,
    refusal: Box<Refusal<'a>>,
}

impl<'a> Suite<'a> {
    /// Every case runs once, as the backend plans it, and none is refused.
    #[must_use]
    pub fn new(backend: &'a dyn Backend) -> Self {
        Self {
            backend,
            twin: None,
            variants: Box::new(|_| vec![(String::new(), Choices::default())]),
            refusal: Box::new(|_, _| None),
        }
    }

    /// Another backend, which has to give the same bits: one whose threads run in another order.
    #[must_use]
    pub fn same_bits_as(self, twin: &'a dyn Backend) -> Self {
        Self { twin: Some(twin), ..self }
    }

    /// Runs each case by each of these choices.
    #[must_use]
    pub fn by(self, variants: impl Fn(&Case) -> Vec<(String, Choices)> + 'a) -> Self {
        Self { variants: Box::new(variants), ..self }
    }

    /// Cases that have to be refused, with words that the message contains.
    #[must_use]
    pub fn refusing(self, refusal: impl Fn(&Case, Precision) -> Option<&'static str> + 'a) -> Self {
        Self { refusal: Box::new(refusal), ..self }
    }

    /// Runs cases in a precision and compares what comes out with the reference.
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
        let got = match (run(self.backend), (self.refusal)(case, precision)) {
            (Ok(got), None) => got,
            (Ok(_), Some(_)) => return Err(failed(&"it should be refused, and runs")),
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

/// What came of a run of the suite.
#[derive(Debug, Default)]
pub struct Report {
    /// Comparisons: one for each case and variant.
    pub compared: usize,
    /// A line each.
    pub failures: Vec<String>,
}

impl Report {
    /// Adds what came of another run.
    pub fn extend(&mut self, other: Self) {
        self.compared += other.compared;
        self.failures.extend(other.failures);
    }

    /// Checks that something was compared and nothing failed.
    ///
    /// # Panics
    /// With every failure, where there is one.
    pub fn assert_passed(&self) {
        let Self { compared, failures } = self;
        assert!(failures.is_empty(), "{} of {compared} fail:\n{}", failures.len(), failures.join("\n"));
        assert!(*compared > 0, "no case was run");
    }
}

/// Compares the bits of two runs.
///
/// # Errors
/// Which number is the first to differ.
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
        Some(position) => format!("number {position} of the results has other bits in the second run"),
        None => "the second run has another number of results".to_owned(),
    })
}
