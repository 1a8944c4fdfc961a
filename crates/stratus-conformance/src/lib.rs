//! The suite that every backend has to pass.
//!
//! [`cases`] holds the cases, a file per operation. [`Case::run`] runs one on a backend and checks on the
//! way that the kernel wrote all of its outputs, zeroed their padding, and left its inputs and everything
//! around its operands alone. [`Case::compare`] compares the results with those of the reference backend
//! ([`Case::expected`]), within [`Case::tolerance`]. [`Suite`] does all of it for many cases, so that a
//! backend's test is a line:
//!
//! ```no_run
//! # use stratus_conformance::{Suite, cases};
//! # use stratus_engine::{Precision, reference::ReferenceBackend};
//! # let relu = |case: &stratus_conformance::Case| case.name.starts_with("relu ");
//! # let some = cases::of(Precision::F32).into_iter().filter(relu).collect::<Vec<_>>();
//! Suite::new(&ReferenceBackend).run(Precision::F32, &some).assert_passed();
//! ```
//!
//! The same cases serve the gradient checks of the engine and, timed ([`Case::bench`]), `stratus bench ops`.

mod bench;
mod case;
pub mod cases;
mod compare;
mod draw;
mod expected;
mod run;
mod suite;

pub use bench::Measurement;
pub use case::{Case, Class, Fill, Operand};
pub use compare::compare;
pub use run::Results;
pub use suite::{Report, Suite, same_bits};
