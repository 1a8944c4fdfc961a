//! Writes TensorBoard events of a run while it trains.

mod graph;

use crate::TrainError;
use stratus_graph::Graph;
use stratus_run::RunDir;
use stratus_run::csv::{EpochRow, IterationRow, Task};
use stratus_run::events::EventWriter;
use stratus_run::timeline::Program;

/// The TensorBoard events of a run.
#[derive(Debug)]
pub(super) struct TensorBoardLog {
    events: EventWriter,
    task: Task,
    /// The tags of time shares: layers, and phases that belong to no layer.
    tags: Vec<String>,
    /// The index of the tag of each slot, in the program for whole batches.
    shares: Vec<usize>,
    /// Nanoseconds of this epoch by tag.
    sums: Vec<u64>,
    /// Nanoseconds of this epoch in total.
    wall_ns: u64,
}

impl TensorBoardLog {
    /// Opens a run's event file, truncated to `position`. `program` is the one for whole batches. A new file
    /// starts with the network.
    pub fn open(
        run: &RunDir,
        position: u64,
        task: Task,
        program: &Program,
        network: &Graph,
    ) -> Result<Self, TrainError> {
        let (mut tags, mut shares) = (Vec::<String>::new(), Vec::new());
        for slot in &program.slots {
            let name = if slot.layers.is_empty() { slot.phase.name().into() } else { slot.layers.join("+") };
            let tag = format!("share/{name}");
            let known = tags.iter().position(|known| *known == tag);
            shares.push(known.unwrap_or(tags.len()));
            if known.is_none() {
                tags.push(tag);
            }
        }
        let sums = vec![0; tags.len()];
        run.prepare_events()?;
        let mut events = EventWriter::resume_at(&run.events(), position)?;
        if events.is_new() {
            events.graph(&graph::definition(network))?;
        }
        Ok(Self { events, task, tags, shares, sums, wall_ns: 0 })
    }

    /// Adds an iteration. `slots` are the nanoseconds of its steps, if it was on a whole
    /// batch, and `wall_ns` those of the iteration.
    pub fn iteration(
        &mut self,
        row: &IterationRow,
        images_per_second: f64,
        slots: Option<&[u64]>,
        wall_ns: u64,
    ) -> Result<(), TrainError> {
        if let Some(slots) = slots {
            for (&share, &ns) in self.shares.iter().zip(slots) {
                self.sums[share] += ns;
            }
            self.wall_ns += wall_ns;
        }
        let accuracy = match self.task {
            Task::Classification => "iteration/top1",
            Task::Segmentation => "iteration/accuracy",
            Task::MultiLabel => "iteration/label_accuracy",
            Task::Regression => "iteration/r2",
        };
        let values = [
            ("iteration/loss", Some(row.loss)),
            (accuracy, row.accuracy),
            ("iteration/learning_rate", Some(row.learning_rate)),
            ("iteration/images_per_second", Some(images_per_second)),
        ];
        let known = values.into_iter().filter_map(|(tag, value)| Some((tag, value?)));
        Ok(self.events.scalars(row.iteration, known)?)
    }

    /// Adds the end of an epoch, after `iteration`.
    pub fn epoch(&mut self, iteration: u64, row: &EpochRow) -> Result<(), TrainError> {
        let [train, validation] = match self.task {
            Task::Classification => ["epoch/train_top1", "epoch/val_top1"],
            Task::Segmentation => ["epoch/train_accuracy", "epoch/val_accuracy"],
            Task::MultiLabel => ["epoch/train_label_accuracy", "epoch/val_label_accuracy"],
            Task::Regression => ["epoch/train_r2", "epoch/val_r2"],
        };
        let values = [
            ("epoch/train_loss", Some(row.train_loss)),
            (train, Some(row.train_accuracy)),
            ("epoch/val_loss", row.val_loss),
            (validation, row.val_accuracy),
            ("epoch/val_miou", row.val_miou),
            ("epoch/val_map", row.labels.val_map),
            ("epoch/val_auc", row.labels.val_auc),
            ("epoch/val_f1", row.labels.val_f1),
            ("epoch/val_exact_match", row.labels.val_exact_match),
            ("epoch/val_mae", row.numbers.val_mae),
            ("epoch/val_rmse", row.numbers.val_rmse),
        ];
        let wall = self.wall_ns as f64;
        let sums = std::mem::replace(&mut self.sums, vec![0; self.tags.len()]);
        let shares = self.tags.iter().zip(&sums).map(|(tag, &ns)| (tag.as_str(), 100.0 * ns as f64 / wall));
        let shares = shares.filter(|_| wall > 0.0);
        let known = values.into_iter().filter_map(|(tag, value)| Some((tag, value?)));
        self.events.scalars(iteration, known.chain(shares))?;
        self.wall_ns = 0;
        Ok(self.events.flush()?)
    }

    /// Flushes all events, so that other programs see them.
    pub fn flush(&mut self) -> Result<(), TrainError> {
        Ok(self.events.flush()?)
    }

    /// Syncs all events to the disk; returns the file's length.
    pub fn sync(&mut self) -> Result<u64, TrainError> {
        Ok(self.events.sync()?)
    }
}
