//! Repeating rows of asynchronous halving whose run was lost.
//!
//! Which cells continued was decided when fewer cells had been trained, so ranking a lost row again among all
//! of them could decide differently. Its reason records how far it was trained and its status. The run is
//! trained to there again, which is bit-identical, and the row gets its status and reason back.

use super::{Trainer, epochs};
use crate::{Definition, Result, Row, Status, Sweep};

/// The start of the reason of a row to repeat; the row's status and reason follow.
const PREFIX: &str = "repeats ";
/// The text before the epoch in the reasons of rows that are not trained to their end.
const EPOCH_PREFIX: &str = "after epoch ";

/// The state of a row before its run was lost.
#[derive(Debug, PartialEq)]
struct Repeat {
    /// The epoch; `None` for the end of training.
    until_epoch: Option<u64>,
    status: Status,
    reason: String,
}

impl Repeat {
    /// Parses the reason of a row; `None` if the row is not repeated.
    fn of(row: &Row) -> Option<Self> {
        if row.status.is_settled() {
            return None;
        }
        let text = row.reason.strip_prefix(PREFIX)?;
        let (status, reason) = text.split_once(": ").unwrap_or((text, ""));
        let status = Status::ALL.into_iter().find(|known| known.name() == status)?;
        let until_epoch = match status {
            Status::Completed => None,
            _ => Some(epoch_in(reason)?),
        };
        Some(Self { until_epoch, status, reason: reason.to_owned() })
    }
}

/// The epoch that a reason names.
fn epoch_in(reason: &str) -> Option<u64> {
    let (_, rest) = reason.split_once(EPOCH_PREFIX)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// The reason with which a row that has lost its run waits; empty if it is trained and ranked from its start.
pub(crate) fn reason_to_repeat(definition: &Definition, row: &Row) -> String {
    if !definition.halving.is_some_and(|halving| halving.is_asynchronous) {
        return String::new();
    }
    if Repeat::of(row).is_some() {
        return row.reason.clone();
    }
    match row.status {
        Status::Completed => format!("{PREFIX}{}", row.status.name()),
        Status::StoppedEarly | Status::Interrupted if epoch_in(&row.reason).is_some() => {
            format!("{PREFIX}{}: {}", row.status.name(), row.reason)
        }
        _ => String::new(),
    }
}

impl Sweep {
    /// Returns whether a row is still to be repeated.
    pub(super) fn has_rows_to_repeat(&self) -> bool {
        self.rows().iter().any(|row| Repeat::of(row).is_some())
    }

    /// Trains the rows that have lost their run to where they were. Returns whether the sweep was stopped.
    pub(super) fn repeat_lost_rows(&mut self, trainer: &mut dyn Trainer) -> Result<bool> {
        for at in 0..self.rows().len() {
            let row = self.rows()[at].clone();
            let Some(repeat) = Repeat::of(&row) else { continue };
            if trainer.is_stopped() {
                return Ok(true);
            }
            let (status, reason) = self.train_row(at, repeat.until_epoch, row.reason.clone(), trainer)?;
            let last = epochs(&self.run_path(&row)).last().map_or(0, |epoch| u64::from(epoch.epoch));
            let has_reached = repeat.until_epoch.is_some_and(|until| last >= until);
            let (status, reason) = match status {
                Status::Interrupted if has_reached => (repeat.status, repeat.reason),
                Status::Interrupted => (status, row.reason),
                _ => (status, reason),
            };
            self.set_status(at, status, reason)?;
            trainer.on_end(self, &self.rows()[at].clone());
            if status == Status::Interrupted && trainer.is_stopped() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(status: Status, reason: &str) -> Row {
        Row { cell: 1, repetition: 1, status, reason: reason.to_owned(), run: String::new() }
    }

    #[test]
    fn reason_records_how_far_a_row_was_trained() {
        let text =
            "[model]\nname = \"digits\"\n[train]\nepochs = 6\n[sweep.keys]\n\"model.width\" = [4, 8]\n";
        let parse = |text: &str| {
            Definition::parse::<&str, &str>(text, std::path::Path::new("sweep.toml"), &[]).unwrap()
        };
        let halving = "[sweep.halving]\nmetric = \"val_top1\"\nasynchronous = true\n";
        let (plain, halved) = (parse(text), parse(&format!("{text}{halving}")));
        let why = "after epoch 2: val_top1 0.0420, 3 of 5 cells continue";
        for (status, reason, until_epoch) in [
            (Status::Completed, "", None),
            (Status::StoppedEarly, why, Some(2)),
            (Status::Interrupted, "paused after epoch 4", Some(4)),
        ] {
            let lost = row(status, reason);
            assert_eq!(reason_to_repeat(&plain, &lost), "");
            let waiting = row(Status::Waiting, &reason_to_repeat(&halved, &lost));
            let repeat = Repeat { until_epoch, status, reason: reason.to_owned() };
            assert_eq!(Repeat::of(&waiting), Some(repeat), "{waiting:?}");
            // The run may be lost again before it has been repeated.
            let again = row(Status::Interrupted, &waiting.reason);
            assert_eq!(reason_to_repeat(&halved, &again), waiting.reason);
        }
        for (status, reason) in [
            (Status::Interrupted, "can be resumed"),
            (Status::Interrupted, "after epoch 99999999999999999999"),
            (Status::Running, ""),
        ] {
            assert_eq!(reason_to_repeat(&halved, &row(status, reason)), "");
        }
        for reason in
            ["repeats ", "repeats asleep", "repeats stopped_early: after epoch x", "repeats: \u{1b}"]
        {
            assert_eq!(Repeat::of(&row(Status::Waiting, reason)), None, "{reason}");
        }
    }
}
