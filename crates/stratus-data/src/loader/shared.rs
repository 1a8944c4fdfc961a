//! The state of a loader.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use super::config::{LoaderConfig, Position};
use super::order::EpochOrder;
use super::ring::BufferRing;
use crate::dataset::Dataset;
use crate::decode::JpegLibrary;
use crate::transform::frame::CropSampler;
use crate::transform::mix::Mixer;
use crate::transform::pixels::Converter;

/// The minimum size of a chunk of samples that are only copied: smaller ones are not worth the locking.
const MIN_CHUNK_BYTES: usize = 256 << 10;

/// The state that the workers of a loader share.
pub(super) struct Shared {
    pub(super) dataset: Arc<dyn Dataset>,
    pub(super) config: LoaderConfig,
    pub(super) converter: Converter,
    /// Set if samples are mixed.
    pub(super) mixer: Option<Mixer>,
    pub(super) crop_sampler: CropSampler,
    /// True if stored samples have the requested shape: nothing is cropped or resized.
    pub(super) as_stored: bool,
    /// Channels, height, width of an image in a batch.
    pub(super) shape: [usize; 3],
    /// Samples that could not be decoded, with the cause.
    pub(super) skipped: Mutex<BTreeMap<u32, String>>,
    /// The JPEG library in use, after the first JPEG file.
    pub(super) jpeg: OnceLock<JpegLibrary>,
    /// Identifies the buffers of this loader.
    pub(super) id: u64,
    pub(super) sample_bytes: usize,
    /// Labels per sample: 1; 3 if samples are mixed; one per pixel with masks; the number of targets.
    pub(super) label_len: usize,
    pub(super) batches_per_epoch: u64,
    /// The total number of batches; sequence numbers are below it.
    pub(super) batches: u64,
    pub(super) ring: Mutex<BufferRing>,
    /// Signalled when there is work: a free buffer, rows to fill, or the end.
    pub(super) work_available: Condvar,
    /// Signalled when the number of active workers changes, and at the end.
    pub(super) workers_wanted: Condvar,
    /// Signalled when a batch becomes ready, after a failure, and after the last batch.
    pub(super) batch_ready: Condvar,
    pub(super) sequencer: Mutex<Sequencer>,
}

/// Assigns batches to workers, in order.
pub(super) struct Sequencer {
    pub(super) next: u64,
    pub(super) order: EpochOrder,
}

impl Shared {
    /// The position of the batch with this sequence number.
    pub(super) fn position(&self, sequence: u64) -> Position {
        let (start, stride) = (self.config.start, self.config.stride);
        let batch = start.batch + sequence;
        // Without batches this is never called.
        let per_epoch = self.batches_per_epoch.max(1);
        let epoch = start.epoch.saturating_add((batch / per_epoch) as u32);
        Position { epoch, batch: stride.first + batch % per_epoch * stride.step }
    }

    /// The number of labels per sample before mixing.
    pub(super) fn stored_labels(&self) -> usize {
        let widens = self.mixer.as_ref().is_some_and(|mixer| mixer.targets.is_none());
        if widens { 1 } else { self.label_len }
    }

    /// The minimum number of rows that a worker takes at a time.
    pub(super) fn min_chunk_rows(&self) -> usize {
        if self.as_stored && !self.dataset.has_masks() {
            MIN_CHUNK_BYTES.div_ceil(self.sample_bytes.max(1))
        } else {
            1
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("dataset", &self.dataset.name())
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Ignores poisoning: every change of the state is a single step.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
