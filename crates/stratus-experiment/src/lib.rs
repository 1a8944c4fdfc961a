//! Experiments: the configuration of a run, and what it resolves to.
//!
//! ```text
//! TOML, XML, built-in experiment, --set           ──▶ Experiment          typed, checked; keys may be unset
//! Experiment, facts of data set, network, device  ──▶ ResolvedExperiment  every key is settled
//! ```
//!
//! A file is applied to the built-in experiment of its network if there is one, else to the defaults of
//! [`KEYS`]; overrides are applied last. A run's `experiment.toml` records the result with every key.

mod check;
mod choices;
mod deadline;
mod error;
mod experiment;
mod fake_quantisation;
pub mod foreign_names;
mod keys;
mod metric;
mod parse;
mod resolve;
mod schedule;
mod schema;
mod task;
mod value;
mod xml;

#[cfg(test)]
mod tests;

pub use choices::{
    ClassWeighting, Decode, Device, ExchangeMode, ExchangeType, LossFunction, OnBadSample, OptimiserName,
    Padding, PositiveWeighting, Precision, ScheduleName,
};
pub use deadline::Deadline;
pub use error::{ExperimentError, Origin, UnknownXmlKey};
pub use experiment::{ExperimentText, MAX_FILE_BYTES, ParsedExperiment};
pub use fake_quantisation::FakeQuantisedLayer;
pub use keys::{
    Augment, Checkpoint, Constraint, Data, EarlyStopping, Experiment, ExperimentSettings, FakeQuantisation,
    FirstStage, KEYS, Key, Model, Optimiser, ScheduleSettings, Synthetic, Train, Validation,
};
pub use metric::{Direction, EpochMetric};
pub use resolve::{DatasetFacts, DeviceFacts, NetworkFacts, ResolvedExperiment};
pub use schedule::{Schedule, ScheduleShape};
pub use schema::schema;
pub use task::Annotation;
pub use value::{Value, ValueKind};
pub use xml::{ROOTS as XML_ROOTS, XmlExperiment};
