//! The weights of a network: first values, those of files and other runs, and the state of a session in a
//! checkpoint.

pub(crate) mod initialise;
mod pretrained;
mod recorded;
pub(crate) mod session_state;
mod trained;
mod whiten;

pub(crate) use pretrained::batches_tracked;
pub use pretrained::{Pretrained, WeightsUse, initial};
pub use recorded::Recorded;
pub use trained::{CheckpointChoice, TrainedNetwork, trained_network};
pub(crate) use trained::{load_checkpoint, metadata_of_run};

/// Whether the names of classes are their numbers, as those of a data set without names.
pub(crate) fn are_numbers(names: &[String]) -> bool {
    names.iter().enumerate().all(|(number, name)| *name == number.to_string())
}
