//! The loop of a worker: open batches, fill their rows, assemble them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::config::{LoaderError, Position};
use super::fill::WorkerState;
use super::ring::{BufferRing, OpenBatch, RowChunk, chunk_rows};
use super::shared::{Shared, lock, wait};
use crate::buffer::{BatchBuffer, IGNORED_LABEL};
use crate::error::DataError;

/// The next task of a worker.
enum Task {
    /// Assigns a batch to a buffer.
    Open(BatchBuffer),
    Fill(RowChunk),
    Wait,
    End,
}

impl Shared {
    /// The loop of worker `number`.
    pub(super) fn work(&self, number: usize) {
        let mut worker = WorkerState::default();
        let max_rows = chunk_rows(self.config.rows(), self.config.workers, self.min_chunk_rows());
        worker.indices.reserve(max_rows);
        let mut ring = lock(&self.ring);
        loop {
            match self.next_task(&mut ring, number, &mut worker) {
                Task::End => return,
                Task::Wait if number < ring.active => {
                    ring.waiting += 1;
                    ring = wait(&self.work_available, ring);
                    ring.waiting -= 1;
                }
                Task::Wait => ring = wait(&self.workers_wanted, ring),
                Task::Open(buffer) => {
                    drop(ring);
                    let opened = self.open(buffer);
                    ring = lock(&self.ring);
                    ring.opening -= 1;
                    self.register_opened(&mut ring, opened);
                }
                Task::Fill(mut chunk) => {
                    drop(ring);
                    let outcome = catch_unwind(AssertUnwindSafe(|| self.fill(&mut chunk, &mut worker)));
                    let failure = match outcome {
                        Ok(Ok(())) => None,
                        Ok(Err(cause)) => {
                            Some(LoaderError::Data { at: self.position(chunk.sequence), cause })
                        }
                        Err(payload) => Some(self.panicked(chunk.sequence, payload.as_ref())),
                    };
                    ring = lock(&self.ring);
                    let complete = match failure {
                        None => self.complete_chunk(&mut ring, chunk),
                        Some(error) => {
                            ring.fail((chunk.sequence, chunk.first), error);
                            None
                        }
                    };
                    if let Some(batch) = complete {
                        drop(ring);
                        let sequence = batch.sequence;
                        let (mut buffer, chunks) = batch.assemble();
                        let mixed = catch_unwind(AssertUnwindSafe(|| self.mix(&mut buffer, &mut worker)));
                        ring = lock(&self.ring);
                        ring.spare.push(chunks);
                        match mixed {
                            Ok(()) => {
                                let slot = (sequence % ring.ready.len() as u64) as usize;
                                ring.filling -= 1;
                                ring.ready[slot] = Some(buffer);
                                self.batch_ready.notify_all();
                            }
                            Err(payload) => {
                                let error = self.panicked(sequence, payload.as_ref());
                                ring.fail((sequence, buffer.samples), error);
                            }
                        }
                    }
                    ring.busy -= 1;
                    if ring.failure.is_some() {
                        self.batch_ready.notify_all();
                        self.work_available.notify_all();
                    }
                }
            }
        }
    }

    /// Chooses the next task. Old batches come first; a new one is opened if they have no rows left.
    fn next_task(&self, ring: &mut BufferRing, number: usize, worker: &mut WorkerState) -> Task {
        if ring.stopped {
            return Task::End;
        }
        let over = ring.ended || ring.failure.is_some();
        let active = number < ring.active;
        if active && let Some(open) = ring.next_open_batch() {
            let remaining = open.buffer.samples - open.taken;
            let rows = chunk_rows(remaining, self.config.workers, self.min_chunk_rows());
            let chunk = open.take(rows, self.sample_bytes, self.stored_labels(), &mut worker.indices);
            ring.busy += 1;
            // More work is pending: pass the wake-up on.
            if ring.waiting > 0 && (ring.next_open_batch().is_some() || !over && !ring.free.is_empty()) {
                self.work_available.notify_one();
            }
            return Task::Fill(chunk);
        }
        if over {
            return if ring.opening == 0 && active { Task::End } else { Task::Wait };
        }
        match active.then(|| ring.free.pop()).flatten() {
            Some(buffer) => {
                ring.filling += 1;
                ring.opening += 1;
                Task::Open(buffer)
            }
            None => Task::Wait,
        }
    }

    /// Assigns the next batch to a buffer. Returns the buffer if there are no more batches, and an error if
    /// its memory was replaced.
    fn open(&self, mut buffer: BatchBuffer) -> OpenOutcome {
        let Some(sequence) = self.assign(&mut buffer) else { return OpenOutcome::None(buffer) };
        let image_bytes = self.sample_bytes * self.config.rows();
        if buffer.images.len() != image_bytes || buffer.labels.len() != self.label_len * self.config.rows() {
            // The fields are public, so the consumer may have replaced them.
            let cause = DataError::ReplacedBuffer { expected: image_bytes, found: buffer.images.len() };
            return OpenOutcome::Failed(sequence, LoaderError::Data { at: self.position(sequence), cause });
        }
        let samples = buffer.samples;
        buffer.images[samples * self.sample_bytes..].fill(0);
        buffer.labels[samples * self.label_len..].fill(IGNORED_LABEL);
        OpenOutcome::Batch(OpenBatch {
            sequence,
            images: buffer.images.split_to(samples * self.sample_bytes),
            labels: buffer.labels.split_to(samples * self.stored_labels()),
            buffer,
            taken: 0,
            filled: Vec::new(),
            done: 0,
        })
    }

    /// Assigns the next batch to `buffer` and returns its sequence number; `None` after the last.
    fn assign(&self, buffer: &mut BatchBuffer) -> Option<u64> {
        let mut sequencer = lock(&self.sequencer);
        let sequence = sequencer.next;
        if sequence == self.batches {
            return None;
        }
        sequencer.next += 1;
        let Position { epoch, batch } = self.position(sequence);
        let len = self.dataset.len();
        // Below `len`, because this batch exists.
        let first = batch as usize * self.config.batch_size;
        let rows = self.config.slice.rows(self.config.batch_size.min(len - first));
        let samples = first + rows.start..first + rows.end;
        buffer.epoch = epoch;
        buffer.index = batch;
        buffer.samples = samples.len();
        buffer.indices.clear();
        sequencer.order.append_indices(self.dataset.as_ref(), sequence, epoch, samples, &mut buffer.indices);
        Some(sequence)
    }

    /// Makes the rows of an opened batch available.
    fn register_opened(&self, ring: &mut BufferRing, opened: OpenOutcome) {
        match opened {
            OpenOutcome::Batch(mut batch) => {
                batch.filled = ring.spare.pop().unwrap_or_default();
                if ring.waiting > 0 && batch.buffer.samples > self.min_chunk_rows() {
                    self.work_available.notify_all();
                }
                let at = ring.open.partition_point(|open| open.sequence < batch.sequence);
                ring.open.insert(at, batch);
            }
            OpenOutcome::None(buffer) => {
                ring.filling -= 1;
                ring.free.push(buffer);
                ring.ended = true;
                self.batch_ready.notify_all();
                self.work_available.notify_all();
            }
            OpenOutcome::Failed(sequence, error) => {
                ring.fail((sequence, 0), error);
                self.batch_ready.notify_all();
                self.work_available.notify_all();
            }
        }
    }

    /// Takes back a filled chunk. Returns its batch if it is complete.
    fn complete_chunk(&self, ring: &mut BufferRing, chunk: RowChunk) -> Option<OpenBatch> {
        let at = ring.open.iter().position(|open| open.sequence == chunk.sequence)?;
        let open = &mut ring.open[at];
        open.done += chunk.rows;
        open.filled.push(chunk);
        if open.done < open.buffer.samples {
            return None;
        }
        ring.open.remove(at)
    }

    /// Mixes the samples of a batch, if enabled.
    fn mix(&self, buffer: &mut BatchBuffer, worker: &mut WorkerState) {
        let BatchBuffer { images, labels, indices, epoch, samples, .. } = buffer;
        if let Some(mixer) = &self.mixer {
            let images = &mut images[..*samples * self.sample_bytes];
            let group = *samples / self.config.slice.count.max(1);
            let labels = &mut labels[..*samples * self.label_len];
            mixer.mix(images, labels, indices, (*epoch, group), &mut worker.last);
        }
    }

    fn panicked(&self, sequence: u64, payload: &(dyn Any + Send)) -> LoaderError {
        LoaderError::Panicked { at: self.position(sequence), message: panic_message(payload) }
    }
}

/// The outcome of assigning a batch to a buffer.
enum OpenOutcome {
    Batch(OpenBatch),
    /// There are no more batches.
    None(BatchBuffer),
    /// The batch with this number cannot be filled.
    Failed(u64, LoaderError),
}

/// The message of a panic.
fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").to_owned()
}
