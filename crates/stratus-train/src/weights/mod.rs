//! The weights of a network: initial values, those of files and other runs, and the state of a session in a
//! checkpoint.

pub(crate) mod initialise;
mod pretrained;
mod recorded;
pub(crate) mod session_state;
mod trained;
mod whiten;

pub(crate) use pretrained::batches_tracked;
pub use pretrained::{Pretrained, WeightsPurpose, initial_tensors};
pub use recorded::RecordedMetadata;
pub use trained::{CheckpointChoice, TrainedNetwork, load_trained_network, model_tensors};
pub(crate) use trained::{
    THRESHOLDS, finished_epochs, load_checkpoint, logit_thresholds, metadata_of_run, model_from_tensors,
    thresholds_of,
};

/// Returns whether class names are just their indices, as in a data set without names.
pub(crate) fn are_numbers(names: &[String]) -> bool {
    names.iter().enumerate().all(|(number, name)| *name == number.to_string())
}
