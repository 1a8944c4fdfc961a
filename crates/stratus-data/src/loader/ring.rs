//! The buffers of a loader, and what its workers do with them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::fill::WorkerState;
use super::order::EpochOrder;
use super::{LoaderError, Position, Shared, lock, said, wait};
use crate::buffer::{BatchBuffer, BatchMemory, IGNORED_LABEL};
use crate::error::DataError;

/// The buffers. Batches that are assigned and not delivered are at most `slots` consecutive ones.
pub(super) struct Ring {
    pub(super) free: Vec<BatchBuffer>,
    /// Batch `s` is at `s % slots`.
    pub(super) ready: Vec<Option<BatchBuffer>>,
    /// Batches of which rows are still to be filled, the oldest first.
    open: VecDeque<OpenBatch>,
    /// Lists of parts that no batch uses.
    spare: Vec<Vec<Part>>,
    /// Buffers that are neither free nor ready nor lent.
    pub(super) filling: usize,
    /// Buffers that get a batch assigned.
    opening: usize,
    /// Parts that are being filled, and batches that are being put together.
    busy: usize,
    /// Workers that may take parts: those with lower numbers.
    pub(super) active: usize,
    /// Of those, the workers that wait for something to do.
    waiting: usize,
    /// Whether all batches were assigned.
    ended: bool,
    /// Tells the workers to end.
    pub(super) stopped: bool,
    /// The earliest failure.
    failure: Option<Failure>,
}

/// Assigns batches to workers, in order.
pub(super) struct Sequencer {
    pub(super) next: u64,
    pub(super) order: EpochOrder,
}

/// What went wrong, where: in which batch, from which row on.
struct Failure {
    at: (u64, usize),
    error: LoaderError,
}

/// A batch that is being filled.
struct OpenBatch {
    sequence: u64,
    /// Its images and labels are the rows behind its samples.
    buffer: BatchBuffer,
    /// The rows that nobody has taken yet.
    images: BatchMemory<u8>,
    labels: BatchMemory<i32>,
    /// The number of rows taken.
    taken: usize,
    /// The parts that are filled, in any order.
    filled: Vec<Part>,
    /// Their rows.
    done: usize,
}

/// Consecutive rows of a batch, which one worker fills.
pub(super) struct Part {
    sequence: u64,
    pub(super) epoch: u32,
    /// Its first row and their number.
    first: usize,
    rows: usize,
    pub(super) images: BatchMemory<u8>,
    pub(super) labels: BatchMemory<i32>,
}

/// What a worker does next.
enum Task {
    /// Assigns a batch to a buffer.
    Open(BatchBuffer),
    Fill(Part),
    Wait,
    End,
}

impl Ring {
    /// A ring of free buffers. `parts` is the most parts of a batch.
    pub(super) fn new(free: Vec<BatchBuffer>, parts: usize, active: usize) -> Self {
        let slots = free.len();
        Self {
            free,
            ready: (0..slots).map(|_| None).collect(),
            open: VecDeque::with_capacity(slots),
            spare: (0..slots).map(|_| Vec::with_capacity(parts)).collect(),
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

    /// Rows that nobody has taken, of the oldest batch that has some; with a failure, only those before it.
    fn untaken(&mut self) -> Option<&mut OpenBatch> {
        let bound = self.failure.as_ref().map(|failure| failure.at);
        let open = self.open.iter_mut().find(|open| open.taken < open.buffer.samples)?;
        bound.is_none_or(|bound| (open.sequence, open.taken) < bound).then_some(open)
    }

    /// The failure that the consumer gets: once everything before it is done.
    pub(super) fn take_failure(&mut self) -> Option<LoaderError> {
        if self.busy > 0 || self.opening > 0 || self.untaken().is_some() {
            return None;
        }
        let failure = self.failure.take()?;
        self.stopped = true;
        Some(failure.error)
    }

    fn fail(&mut self, at: (u64, usize), error: LoaderError) {
        if self.failure.as_ref().is_none_or(|earliest| at < earliest.at) {
            self.failure = Some(Failure { at, error });
        }
    }
}

impl OpenBatch {
    /// Splits off the next rows: a share of what is left, so that the parts become small towards the end and
    /// all workers finish together.
    fn take(&mut self, shared: &Shared, indices: &mut Vec<u32>) -> Part {
        let left = self.buffer.samples - self.taken;
        let rows = part_of(left, shared.config.workers, shared.least_rows());
        let first = self.taken;
        self.taken += rows;
        indices.clear();
        indices.extend_from_slice(&self.buffer.indices[first..self.taken]);
        Part {
            sequence: self.sequence,
            epoch: self.buffer.epoch,
            first,
            rows,
            images: self.images.split_to(rows * shared.sample_bytes),
            labels: self.labels.split_to(rows * shared.stored_labels()),
        }
    }

    /// Puts the parts together; returns the buffer, and the empty list of parts.
    fn whole(mut self) -> (BatchBuffer, Vec<Part>) {
        self.filled.sort_unstable_by_key(|part| part.first);
        for part in self.filled.drain(..) {
            self.images.unsplit(part.images);
            self.labels.unsplit(part.labels);
        }
        self.images.unsplit(std::mem::take(&mut self.buffer.images));
        self.labels.unsplit(std::mem::take(&mut self.buffer.labels));
        (BatchBuffer { images: self.images, labels: self.labels, ..self.buffer }, self.filled)
    }
}

/// How many of `left` rows a worker takes.
fn part_of(left: usize, workers: usize, least: usize) -> usize {
    left.div_ceil(workers).max(least).min(left)
}

/// The number of parts of a batch.
pub(super) fn parts(rows: usize, workers: usize, least: usize) -> usize {
    let mut left = rows;
    std::iter::from_fn(|| {
        let part = part_of(left, workers, least);
        left -= part;
        (part > 0).then_some(())
    })
    .count()
}

impl Shared {
    /// The loop of worker `number`.
    pub(super) fn work(&self, number: usize) {
        let mut worker = WorkerState::default();
        let most = part_of(self.config.rows(), self.config.workers, self.least_rows());
        worker.indices.reserve(most);
        let mut ring = lock(&self.ring);
        loop {
            match self.next_task(&mut ring, number, &mut worker) {
                Task::End => return,
                Task::Wait if number < ring.active => {
                    ring.waiting += 1;
                    ring = wait(&self.freed, ring);
                    ring.waiting -= 1;
                }
                Task::Wait => ring = wait(&self.wanted, ring),
                Task::Open(buffer) => {
                    drop(ring);
                    let opened = self.open(buffer);
                    ring = lock(&self.ring);
                    ring.opening -= 1;
                    self.add(&mut ring, opened);
                }
                Task::Fill(mut part) => {
                    drop(ring);
                    let outcome = catch_unwind(AssertUnwindSafe(|| self.fill(&mut part, &mut worker)));
                    let failure = match outcome {
                        Ok(Ok(())) => None,
                        Ok(Err(cause)) => Some(LoaderError::Data { at: self.position(part.sequence), cause }),
                        Err(payload) => Some(self.panicked(part.sequence, payload.as_ref())),
                    };
                    ring = lock(&self.ring);
                    let complete = match failure {
                        None => self.put_back(&mut ring, part),
                        Some(error) => {
                            ring.fail((part.sequence, part.first), error);
                            None
                        }
                    };
                    if let Some(batch) = complete {
                        drop(ring);
                        let sequence = batch.sequence;
                        let (mut buffer, parts) = batch.whole();
                        let mixed = catch_unwind(AssertUnwindSafe(|| self.mix(&mut buffer, &mut worker)));
                        ring = lock(&self.ring);
                        ring.spare.push(parts);
                        match mixed {
                            Ok(()) => {
                                let slot = (sequence % ring.ready.len() as u64) as usize;
                                ring.filling -= 1;
                                ring.ready[slot] = Some(buffer);
                                self.filled.notify_all();
                            }
                            Err(payload) => {
                                let error = self.panicked(sequence, payload.as_ref());
                                ring.fail((sequence, buffer.samples), error);
                            }
                        }
                    }
                    ring.busy -= 1;
                    if ring.failure.is_some() {
                        self.filled.notify_all();
                        self.freed.notify_all();
                    }
                }
            }
        }
    }

    /// Old batches come first; a new one is begun where no rows of them are left.
    fn next_task(&self, ring: &mut Ring, number: usize, worker: &mut WorkerState) -> Task {
        if ring.stopped {
            return Task::End;
        }
        let over = ring.ended || ring.failure.is_some();
        let active = number < ring.active;
        if active && let Some(open) = ring.untaken() {
            let part = open.take(self, &mut worker.indices);
            ring.busy += 1;
            // Whoever was woken for something else to do took this: the other waits for another.
            if ring.waiting > 0 && (ring.untaken().is_some() || !over && !ring.free.is_empty()) {
                self.freed.notify_one();
            }
            return Task::Fill(part);
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

    /// Assigns the next batch to a buffer. The buffer comes back alone where there is none, or where it has
    /// not the memory it had.
    fn open(&self, mut buffer: BatchBuffer) -> Opened {
        let Some(sequence) = self.assign(&mut buffer) else { return Opened::None(buffer) };
        let image_bytes = self.sample_bytes * self.config.rows();
        if buffer.images.len() != image_bytes || buffer.labels.len() != self.label_len * self.config.rows() {
            // The fields are public: the consumer may have replaced them.
            let cause = DataError::Buffer { expected: image_bytes, found: buffer.images.len() };
            return Opened::Failed(sequence, LoaderError::Data { at: self.position(sequence), cause });
        }
        let samples = buffer.samples;
        buffer.images[samples * self.sample_bytes..].fill(0);
        buffer.labels[samples * self.label_len..].fill(IGNORED_LABEL);
        Opened::Batch(OpenBatch {
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
        // Below `len`, as there is such a batch.
        let first = batch as usize * self.config.batch_size;
        let rows = self.config.share.rows(self.config.batch_size.min(len - first));
        let samples = first + rows.start..first + rows.end;
        buffer.epoch = epoch;
        buffer.index = batch;
        buffer.samples = samples.len();
        buffer.indices.clear();
        sequencer.order.visit(self.dataset.as_ref(), sequence, epoch, samples, &mut buffer.indices);
        Some(sequence)
    }

    /// Makes the rows of an opened batch available.
    fn add(&self, ring: &mut Ring, opened: Opened) {
        match opened {
            Opened::Batch(mut batch) => {
                batch.filled = ring.spare.pop().unwrap_or_default();
                if ring.waiting > 0 && batch.buffer.samples > self.least_rows() {
                    self.freed.notify_all();
                }
                let place = ring.open.partition_point(|open| open.sequence < batch.sequence);
                ring.open.insert(place, batch);
            }
            Opened::None(buffer) => {
                ring.filling -= 1;
                ring.free.push(buffer);
                ring.ended = true;
                self.filled.notify_all();
                self.freed.notify_all();
            }
            Opened::Failed(sequence, error) => {
                ring.fail((sequence, 0), error);
                self.filled.notify_all();
                self.freed.notify_all();
            }
        }
    }

    /// Takes back a filled part; returns its batch where that is complete.
    fn put_back(&self, ring: &mut Ring, part: Part) -> Option<OpenBatch> {
        let place = ring.open.iter().position(|open| open.sequence == part.sequence)?;
        let open = &mut ring.open[place];
        open.done += part.rows;
        open.filled.push(part);
        if open.done < open.buffer.samples {
            return None;
        }
        ring.open.remove(place)
    }

    /// Mixes the samples of a batch, where that is wanted.
    fn mix(&self, buffer: &mut BatchBuffer, worker: &mut WorkerState) {
        let BatchBuffer { images, labels, indices, epoch, samples, .. } = buffer;
        if let Some(mixer) = &self.mixer {
            let images = &mut images[..*samples * self.sample_bytes];
            let group = *samples / self.config.share.count.max(1);
            let labels = &mut labels[..*samples * self.label_len];
            mixer.mix(images, labels, indices, (*epoch, group), &mut worker.last);
        }
    }

    fn panicked(&self, sequence: u64, payload: &(dyn std::any::Any + Send)) -> LoaderError {
        LoaderError::Panicked { at: self.position(sequence), message: said(payload) }
    }
}

/// What became of a free buffer.
enum Opened {
    Batch(OpenBatch),
    /// There are no more batches.
    None(BatchBuffer),
    /// The batch with this number cannot be filled.
    Failed(u64, LoaderError),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of a batch: large ones first, so that few are asked for, and small ones at last.
    #[test]
    fn parts_become_small_towards_the_end_and_are_all_rows() {
        for (rows, workers, least, expected) in [
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
                taken.push(part_of(left, workers, least));
                left -= taken[taken.len() - 1];
            }
            assert_eq!(taken, expected, "{rows} rows, {workers} workers, at least {least}");
            assert_eq!(parts(rows, workers, least), expected.len());
        }
        assert!(parts(256, 16, 1) < 80);
    }
}
