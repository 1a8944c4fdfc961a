//! The messages between pipeline stages besides activations and gradients: labels, metrics, and the values of
//! a checkpoint.
//!
//! The first stage reads the samples, and sends their labels to the last one, which computes the loss. The
//! first stage also writes checkpoints: it requests the values of other stages piece by piece while it writes
//! them, so that it needs no memory for them.

use crate::TrainError;
use crate::compile::Programs;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::io;
use stratus_engine::program::OptimiserState;
use stratus_engine::session::{Metrics, StateValue, checkpoint_values};
use stratus_engine::{Role, Session, Stage};
use stratus_exchange::{ExchangeError, WorkerGroup};

/// Message kind of labels, see [`WorkerGroup::send_to`].
const LABELS_KIND: u16 = 1;
/// Message kind of requests for values.
const REQUEST_KIND: u16 = 2;
/// Message kind of replies with values.
const REPLY_KIND: u16 = 3;

/// Elements per request.
const PIECE_ELEMENTS: usize = 1 << 18;

/// Sends the labels of a batch from the first stage to the last.
pub(crate) fn forward_labels(
    workers: &WorkerGroup,
    stage: Stage,
    labels: &mut [i32],
) -> Result<(), ExchangeError> {
    let labels: &mut [u8] = bytemuck::cast_slice_mut(labels);
    match stage.index {
        0 => workers.send_to(workers.rank_of_stage(stage.count - 1), LABELS_KIND, &[labels]),
        _ if stage.is_last() => {
            workers.receive_from(workers.rank_of_stage(0), LABELS_KIND, false, &mut [labels])
        }
        _ => Ok(()),
    }
}

/// Shares the metrics of the last stage with all stages. Those of all pipelines are the same.
pub(super) fn metrics_of_last_stage(
    workers: &WorkerGroup,
    metrics: Metrics,
) -> Result<Metrics, ExchangeError> {
    let Metrics { loss, samples, top1, top5 } = metrics;
    let all = workers.all_gather(bytemuck::bytes_of(&[loss, samples, top1, top5]))?;
    let last = all.last().map(Vec::as_slice).unwrap_or_default();
    let number = |at: usize| {
        let bytes = last.get(8 * at..8 * at + 8).and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
        bytes.map_or(f64::NAN, f64::from_le_bytes)
    };
    Ok(Metrics { loss: number(0), samples: number(1), top1: number(2), top5: number(3) })
}

/// A value of the whole network that a checkpoint stores, and the stage that has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PipelineValue {
    name: String,
    shape: Vec<usize>,
    role: Role,
    optimiser_state: Option<(String, OptimiserState)>,
    average_of: Option<String>,
    stage: usize,
}

/// All values that a checkpoint stores, in the order of the whole network.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PipelineState {
    values: Vec<PipelineValue>,
    stage: Stage,
}

impl PipelineState {
    /// Determines the stage of each value of the `whole` network.
    ///
    /// # Errors
    /// If no stage has a value, or a worker has disconnected.
    pub fn new(
        whole: &Programs,
        session: &Session,
        stage: Stage,
        workers: &WorkerGroup,
    ) -> Result<Self, TrainError> {
        let own_names: Vec<String> = session.state().map(|value| value.name.to_owned()).collect();
        let all = workers.all_gatherv(serde_json::to_vec(&own_names).unwrap_or_default())?;
        let mut stages = HashMap::new();
        // The first pipeline has the first ranks; the others have the same stages.
        for (stage, names) in all.iter().take(stage.count).enumerate() {
            let names: Vec<String> = serde_json::from_slice(names).map_err(|error| {
                ExchangeError::Disconnected(format!("invalid list of values from a stage: {error}"))
            })?;
            stages.extend(names.into_iter().map(|name| (name, stage)));
        }
        let programs = [Some(&whole.train), whole.tail.as_ref(), Some(&whole.evaluate), Some(&whole.refresh)];
        let values = checkpoint_values(programs.into_iter().flatten()).map(|value| {
            let stage = stages.get(value.name).copied().ok_or_else(|| TrainError::Configuration {
                problem: format!("no stage of the pipeline has `{}`", value.name),
                hint: "train without train.stages".to_owned(),
            })?;
            let owned = |(name, state): (&str, OptimiserState)| (name.to_owned(), state);
            Ok(PipelineValue {
                name: value.name.to_owned(),
                shape: value.shape.to_vec(),
                role: value.role,
                optimiser_state: value.optimiser_state.map(owned),
                average_of: value.average_of.map(str::to_owned),
                stage,
            })
        });
        Ok(Self { values: values.collect::<Result<_, TrainError>>()?, stage })
    }

    /// Every value, with the means to request it from another stage; `None` if this stage has it.
    pub fn values<'a>(
        &'a self,
        workers: &'a WorkerGroup,
    ) -> impl Iterator<Item = (StateValue<'a>, Option<RemoteValues<'a>>)> {
        self.values.iter().enumerate().map(move |(index, value)| {
            let described = StateValue {
                name: &value.name,
                shape: &value.shape,
                role: value.role,
                optimiser_state: value.optimiser_state.as_ref().map(|(name, state)| (name.as_str(), *state)),
                average_of: value.average_of.as_deref(),
            };
            let count = value.shape.iter().product();
            let remote =
                RemoteValues { workers, stage: value.stage, index, count, piece: RefCell::default() };
            (described, (value.stage != self.stage.index).then_some(remote))
        })
    }

    /// Serves requests of the first stage until it has written its checkpoint. Does nothing in other
    /// pipelines than that of worker 0, which writes.
    pub fn serve(&self, workers: &WorkerGroup, session: &Session) -> Result<(), TrainError> {
        if workers.rank_of_stage(0) != 0 {
            return Ok(());
        }
        let mut reply = Vec::new();
        loop {
            let mut request = [0u64; 3];
            workers.receive_from(0, REQUEST_KIND, false, &mut [bytemuck::bytes_of_mut(&mut request)])?;
            let [index, first, count] = request.map(|number| usize::try_from(number).unwrap_or(usize::MAX));
            let Some(value) = self.values.get(index) else { return Ok(()) };
            let view = session.view(&value.name)?;
            if first.checked_add(count).is_none_or(|end| end > view.len()) {
                return Err(ExchangeError::Disconnected(format!(
                    "`{}` has {} values, but {count} from {first} on were requested",
                    value.name,
                    view.len()
                ))
                .into());
            }
            reply.resize(count, 0.0f32);
            view.read(first, &mut reply);
            workers.send_to(0, REPLY_KIND, &[bytemuck::cast_slice_mut(&mut reply)])?;
        }
    }

    /// Tells the other stages that the checkpoint is written or abandoned.
    pub fn finish(&self, workers: &WorkerGroup) -> Result<(), ExchangeError> {
        (0..self.stage.count).filter(|stage| *stage != self.stage.index).try_for_each(|stage| {
            workers.send_to(stage, REQUEST_KIND, &[bytemuck::bytes_of_mut(&mut [u64::MAX; 3])])
        })
    }
}

/// A value of another stage.
pub(crate) struct RemoteValues<'a> {
    workers: &'a WorkerGroup,
    stage: usize,
    /// The position among all values that a checkpoint stores.
    index: usize,
    count: usize,
    /// The start and the elements of the last piece that was received.
    piece: RefCell<(usize, Vec<f32>)>,
}

impl fmt::Debug for RemoteValues<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} elements of stage {}", self.count, self.stage)
    }
}

impl RemoteValues<'_> {
    /// The number of elements.
    pub fn count(&self) -> usize {
        self.count
    }

    /// As [`stratus_weights::ExternalValues::read`].
    pub fn read(&self, first: usize, out: &mut [f32]) -> io::Result<()> {
        let (start, piece) = &mut *self.piece.borrow_mut();
        let mut at = first;
        let mut rest = out;
        while !rest.is_empty() {
            if at < *start || at - *start >= piece.len() {
                *start = at;
                piece.resize(PIECE_ELEMENTS.min(self.count - at), 0.0);
                self.request(at, piece).map_err(io::Error::other)?;
            }
            let available = &piece[at - *start..];
            let (now, later) = rest.split_at_mut(available.len().min(rest.len()));
            now.copy_from_slice(&available[..now.len()]);
            at += now.len();
            rest = later;
        }
        if at == self.count {
            // The value was read to its end, so its last piece is freed.
            *piece = Vec::new();
        }
        Ok(())
    }

    fn request(&self, first: usize, piece: &mut [f32]) -> Result<(), ExchangeError> {
        let mut request = [self.index, first, piece.len()].map(|number| number as u64);
        self.workers.send_to(self.stage, REQUEST_KIND, &[bytemuck::bytes_of_mut(&mut request)])?;
        self.workers.receive_from(self.stage, REPLY_KIND, false, &mut [bytemuck::cast_slice_mut(piece)])
    }
}
