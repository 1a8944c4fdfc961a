//! What the stages of a pipeline tell each other beside activations and gradients: labels, metrics, and the
//! parameters of a checkpoint.
//!
//! Samples are read by the first stage, where images enter. It hands their labels to the last one, which has
//! the loss. The first one also writes checkpoints: it asks for the other stages' values as it writes them,
//! piece by piece, so that it needs no memory for them.

use crate::TrainError;
use crate::compile::Programs;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::io;
use stratus_engine::program::OptimiserState;
use stratus_engine::session::{Metrics, StateValue, state_of};
use stratus_engine::{Role, Session, Stage};
use stratus_exchange::{ExchangeError, Workers};

/// Kinds of messages: see [`Workers::send_to`].
const LABELS: u16 = 1;
const ASK: u16 = 2;
const ANSWER: u16 = 3;

/// Numbers that are asked for at once.
const PIECE: usize = 1 << 18;

/// Hands the labels of a batch from the first stage to the last.
pub(crate) fn hand_on_labels(
    workers: &Workers,
    stage: Stage,
    labels: &mut [i32],
) -> Result<(), ExchangeError> {
    let labels: &mut [u8] = bytemuck::cast_slice_mut(labels);
    match stage.number {
        0 => workers.send_to(stage.count - 1, LABELS, &[labels]),
        _ if stage.is_last() => workers.receive_from(0, LABELS, false, &mut [labels]),
        _ => Ok(()),
    }
}

/// What the last stage has measured, at all stages.
pub(super) fn of_last(workers: &Workers, own: Metrics) -> Result<Metrics, ExchangeError> {
    let Metrics { loss, samples, top1, top5 } = own;
    let all = workers.all_gather(bytemuck::bytes_of(&[loss, samples, top1, top5]))?;
    let last = all.last().map(Vec::as_slice).unwrap_or_default();
    let number = |at: usize| {
        let bytes = last.get(8 * at..8 * at + 8).and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
        bytes.map_or(f64::NAN, f64::from_le_bytes)
    };
    Ok(Metrics { loss: number(0), samples: number(1), top1: number(2), top5: number(3) })
}

/// A value of the uncut network that a checkpoint keeps, and which stage has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Kept {
    name: String,
    shape: Vec<usize>,
    role: Role,
    optimiser_state: Option<(String, OptimiserState)>,
    average_of: Option<String>,
    stage: usize,
}

/// All values that a checkpoint keeps, in the order of the uncut network.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StagedState {
    kept: Vec<Kept>,
    own: usize,
}

impl StagedState {
    /// Finds out which stage has which value of the `whole` network.
    ///
    /// # Errors
    /// Where one has no stage, or a worker is gone.
    pub fn of(
        whole: &Programs,
        session: &Session,
        stage: Stage,
        workers: &Workers,
    ) -> Result<Self, TrainError> {
        let own: Vec<String> = session.state().map(|value| value.name.to_owned()).collect();
        let all = workers.all_gather_any(serde_json::to_vec(&own).unwrap_or_default())?;
        let mut stages = HashMap::new();
        for (stage, names) in all.iter().enumerate() {
            let names: Vec<String> = serde_json::from_slice(names).map_err(|error| {
                ExchangeError::Ended(format!("what a stage keeps cannot be read: {error}"))
            })?;
            stages.extend(names.into_iter().map(|name| (name, stage)));
        }
        let programs = [Some(&whole.train), whole.tail.as_ref(), Some(&whole.evaluate), Some(&whole.refresh)];
        let kept = state_of(programs.into_iter().flatten()).map(|value| {
            let stage = stages.get(value.name).copied().ok_or_else(|| TrainError::Configuration {
                problem: format!("no stage of the pipeline has `{}`", value.name),
                hint: "train without train.stages".to_owned(),
            })?;
            let owned = |(name, state): (&str, OptimiserState)| (name.to_owned(), state);
            Ok(Kept {
                name: value.name.to_owned(),
                shape: value.shape.to_vec(),
                role: value.role,
                optimiser_state: value.optimiser_state.map(owned),
                average_of: value.average_of.map(str::to_owned),
                stage,
            })
        });
        Ok(Self { kept: kept.collect::<Result<_, TrainError>>()?, own: stage.number })
    }

    /// Every value, and where it is: `None` here, else how to ask for it.
    pub fn values<'a>(
        &'a self,
        workers: &'a Workers,
    ) -> impl Iterator<Item = (StateValue<'a>, Option<RemoteValues<'a>>)> {
        self.kept.iter().enumerate().map(move |(number, kept)| {
            let described = StateValue {
                name: &kept.name,
                shape: &kept.shape,
                role: kept.role,
                optimiser_state: kept.optimiser_state.as_ref().map(|(name, state)| (name.as_str(), *state)),
                average_of: kept.average_of.as_deref(),
            };
            let count = kept.shape.iter().product();
            let remote =
                RemoteValues { workers, stage: kept.stage, number, count, piece: RefCell::default() };
            (described, (kept.stage != self.own).then_some(remote))
        })
    }

    /// Answers the first stage until it has written its checkpoint.
    pub fn serve(&self, workers: &Workers, session: &Session) -> Result<(), TrainError> {
        let mut answer = Vec::new();
        loop {
            let mut asked = [0u64; 3];
            workers.receive_from(0, ASK, false, &mut [bytemuck::bytes_of_mut(&mut asked)])?;
            let [number, first, count] = asked.map(|number| usize::try_from(number).unwrap_or(usize::MAX));
            let Some(kept) = self.kept.get(number) else { return Ok(()) };
            let view = session.view(&kept.name)?;
            if first.checked_add(count).is_none_or(|end| end > view.len()) {
                return Err(ExchangeError::Ended(format!("`{}` has no {count} numbers", kept.name)).into());
            }
            answer.resize(count, 0.0f32);
            view.read(first, &mut answer);
            workers.send_to(0, ANSWER, &[bytemuck::cast_slice_mut(&mut answer)])?;
        }
    }

    /// Tells the other stages that the checkpoint is written, or was given up.
    pub fn end(&self, workers: &Workers) -> Result<(), ExchangeError> {
        (0..workers.size())
            .filter(|stage| *stage != self.own)
            .try_for_each(|stage| workers.send_to(stage, ASK, &[bytemuck::bytes_of_mut(&mut [u64::MAX; 3])]))
    }
}

/// Values of another stage.
pub(crate) struct RemoteValues<'a> {
    workers: &'a Workers,
    stage: usize,
    /// The position among all values that a checkpoint keeps.
    number: usize,
    count: usize,
    /// The last piece that was asked for, and where it begins.
    piece: RefCell<(usize, Vec<f32>)>,
}

impl fmt::Debug for RemoteValues<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values of stage {}", self.count, self.stage)
    }
}

impl RemoteValues<'_> {
    /// How many there are.
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
                piece.resize(PIECE.min(self.count - at), 0.0);
                self.ask(at, piece).map_err(io::Error::other)?;
            }
            let there = &piece[at - *start..];
            let (now, later) = rest.split_at_mut(there.len().min(rest.len()));
            now.copy_from_slice(&there[..now.len()]);
            at += now.len();
            rest = later;
        }
        if at == self.count {
            // Read to its end: other tensors have pieces of their own.
            *piece = Vec::new();
        }
        Ok(())
    }

    fn ask(&self, first: usize, piece: &mut [f32]) -> Result<(), ExchangeError> {
        let mut asked = [self.number, first, piece.len()].map(|number| number as u64);
        self.workers.send_to(self.stage, ASK, &[bytemuck::bytes_of_mut(&mut asked)])?;
        self.workers.receive_from(self.stage, ANSWER, false, &mut [bytemuck::cast_slice_mut(piece)])
    }
}
