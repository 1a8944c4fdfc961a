//! The buffers of a loader, from free to ready.

use std::collections::VecDeque;

use super::config::LoaderError;
use crate::buffer::{BatchBuffer, BatchMemory};

/// The buffers of a loader. At most `slots` consecutive batches are assigned but not yet delivered.
pub(super) struct BufferRing {
    pub(super) free: Vec<BatchBuffer>,
    /// Ready batches; batch `s` is at `s % slots`.
    pub(super) ready: Vec<Option<BatchBuffer>>,
    /// Batches that are being filled, the oldest first.
    pub(super) open: VecDeque<OpenBatch>,
    /// Unused lists of chunks.
    pub(super) spare: Vec<Vec<RowChunk>>,
    /// The number of buffers that are neither free, ready nor lent.
    pub(super) filling: usize,
    /// The number of buffers that are being assigned a batch.
    pub(super) opening: usize,
    /// The number of chunks being filled and of batches being assembled.
    pub(super) busy: usize,
    /// The number of active workers: those with lower numbers may take chunks.
    pub(super) active: usize,
    /// The number of active workers that wait for work.
    pub(super) waiting: usize,
    /// True if all batches were assigned.
    pub(super) ended: bool,
    /// True if the workers must end.
    pub(super) stopped: bool,
    /// The earliest failure.
    pub(super) failure: Option<Failure>,
}

/// An error with its position: batch and row.
pub(super) struct Failure {
    at: (u64, usize),
    error: LoaderError,
}

/// A batch that is being filled.
pub(super) struct OpenBatch {
    pub(super) sequence: u64,
    /// Holds only the padding rows until the batch is assembled.
    pub(super) buffer: BatchBuffer,
    /// The rows that are not taken yet.
    pub(super) images: BatchMemory<u8>,
    pub(super) labels: BatchMemory<i32>,
    /// The number of rows taken.
    pub(super) taken: usize,
    /// The filled chunks, in any order.
    pub(super) filled: Vec<RowChunk>,
    /// The number of rows in them.
    pub(super) done: usize,
}

/// Consecutive rows of a batch that one worker fills.
pub(super) struct RowChunk {
    pub(super) sequence: u64,
    pub(super) epoch: u32,
    /// The first row.
    pub(super) first: usize,
    /// The number of rows.
    pub(super) rows: usize,
    pub(super) images: BatchMemory<u8>,
    pub(super) labels: BatchMemory<i32>,
}

impl BufferRing {
    /// Creates a ring of free buffers. `max_chunks` is the maximum number of chunks per batch.
    pub(super) fn new(free: Vec<BatchBuffer>, max_chunks: usize, active: usize) -> Self {
        let slots = free.len();
        Self {
            free,
            ready: (0..slots).map(|_| None).collect(),
            open: VecDeque::with_capacity(slots),
            spare: (0..slots).map(|_| Vec::with_capacity(max_chunks)).collect(),
            filling: 0,
            opening: 0,
            busy: 0,
            active,
            waiting: 0,
            ended: false,
            stopped: false,
            failure: None,
        }
    }

    /// The oldest batch with untaken rows; after a failure, only if they are before it.
    pub(super) fn next_open_batch(&mut self) -> Option<&mut OpenBatch> {
        let bound = self.failure.as_ref().map(|failure| failure.at);
        let open = self.open.iter_mut().find(|open| open.taken < open.buffer.samples)?;
        bound.is_none_or(|bound| (open.sequence, open.taken) < bound).then_some(open)
    }

    /// Takes the failure for the consumer, once everything before it is done.
    pub(super) fn take_failure(&mut self) -> Option<LoaderError> {
        if self.busy > 0 || self.opening > 0 || self.next_open_batch().is_some() {
            return None;
        }
        let failure = self.failure.take()?;
        self.stopped = true;
        Some(failure.error)
    }

    pub(super) fn fail(&mut self, at: (u64, usize), error: LoaderError) {
        if self.failure.as_ref().is_none_or(|earliest| at < earliest.at) {
            self.failure = Some(Failure { at, error });
        }
    }
}

impl OpenBatch {
    /// Splits off the next `rows` rows, of `image_bytes` bytes and `labels` labels each. `indices` receives
    /// the samples to read.
    pub(super) fn take(
        &mut self,
        rows: usize,
        image_bytes: usize,
        labels: usize,
        indices: &mut Vec<u32>,
    ) -> RowChunk {
        let first = self.taken;
        self.taken += rows;
        indices.clear();
        indices.extend_from_slice(&self.buffer.indices[first..self.taken]);
        RowChunk {
            sequence: self.sequence,
            epoch: self.buffer.epoch,
            first,
            rows,
            images: self.images.split_to(rows * image_bytes),
            labels: self.labels.split_to(rows * labels),
        }
    }

    /// Joins the chunks. Returns the buffer, and the empty list of chunks for reuse.
    pub(super) fn assemble(mut self) -> (BatchBuffer, Vec<RowChunk>) {
        self.filled.sort_unstable_by_key(|chunk| chunk.first);
        for chunk in self.filled.drain(..) {
            self.images.unsplit(chunk.images);
            self.labels.unsplit(chunk.labels);
        }
        self.images.unsplit(std::mem::take(&mut self.buffer.images));
        self.labels.unsplit(std::mem::take(&mut self.buffer.labels));
        (BatchBuffer { images: self.images, labels: self.labels, ..self.buffer }, self.filled)
    }
}

/// The number of rows that a worker takes when `remaining` are left: a share of them, so that chunks shrink
/// towards the end and all workers finish together.
pub(super) fn chunk_rows(remaining: usize, workers: usize, min_rows: usize) -> usize {
    remaining.div_ceil(workers).max(min_rows).min(remaining)
}

/// The number of chunks of a batch.
pub(super) fn chunk_count(rows: usize, workers: usize, min_rows: usize) -> usize {
    let mut remaining = rows;
    std::iter::from_fn(|| {
        let rows = chunk_rows(remaining, workers, min_rows);
        remaining -= rows;
        (rows > 0).then_some(())
    })
    .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Large chunks come first, so that there are few; small ones last, so that workers finish together.
    #[test]
    fn chunks_shrink_towards_the_end_and_cover_all_rows() {
        for (rows, workers, min_rows, expected) in [
            (128, 1, 1, &[128][..]),
            (10, 2, 1, &[5, 3, 1, 1]),
            (10, 2, 4, &[5, 4, 1]),
            (3, 16, 1, &[1, 1, 1]),
            (0, 4, 1, &[]),
            (5, 4, 100, &[5]),
        ] {
            let mut left = rows;
            let mut taken = Vec::new();
            while left > 0 {
                taken.push(chunk_rows(left, workers, min_rows));
                left -= taken[taken.len() - 1];
            }
            assert_eq!(taken, expected, "{rows} rows, {workers} workers, at least {min_rows}");
            assert_eq!(chunk_count(rows, workers, min_rows), expected.len());
        }
        assert!(chunk_count(256, 16, 1) < 80);
    }
}
