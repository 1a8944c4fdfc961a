//! The conformance suite that every backend must pass.
//!
//! [`cases`] contains the cases, one file per operation. [`Case::run`] runs a case on a backend and checks
//! that the kernel wrote all outputs, zeroed their padding, and did not modify its inputs or memory around
//! its operands. [`Case::compare`] compares the results with those of the reference backend
//! ([`Case::expected`]), within [`Case::tolerance`]. [`Suite`] does all of this for many cases, so that a
//! backend's test is one line:
//!
//! ```no_run
//! # use stratus_conformance::{Suite, cases};
//! # use stratus_engine::{Precision, reference::ReferenceBackend};
//! # let relu = |case: &stratus_conformance::Case| case.name.starts_with("relu ");
//! # let some = cases::for_precision(Precision::F32).into_iter().filter(relu).collect::<Vec<_>>();
//! Suite::new(&ReferenceBackend).run(Precision::F32, &some).assert_passed();
//! ```
//!
//! The same cases are used in the gradient checks of the engine and, timed ([`Case::bench`]), in `stratus
//! bench ops`.

mod bench;
mod case;
pub mod cases;
mod compare;
mod expected;
mod inputs;
pub mod networks;
mod run;
mod suite;

pub use bench::{Measurement, measure_cases};
pub use case::{Case, DTypeClass, Fill, Operand};
pub use compare::compare;
pub use run::Results;
pub use suite::{Report, Suite, Verification, same_bits};
