//! `confusion.csv`: the counts of a confusion matrix that are not 0.

use std::path::Path;

use stratus_measures::ConfusionMatrix;

use crate::{Error, Result, atomic, csv};

/// The columns, in order.
const COLUMNS: [&str; 4] = ["epoch", "class", "predicted", "count"];
/// The maximum number of counts beside the diagonal; of more, the largest are kept.
pub const MAX_CONFUSIONS: usize = 10_000;
/// The maximum size of the file that is read.
const MAX_BYTES: u64 = 16 << 20;

/// A count of a confusion matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Confusion {
    /// The true class.
    pub class: usize,
    /// The predicted class.
    pub predicted: usize,
    /// The number of images or pixels.
    pub count: u64,
}

/// The counts of a matrix that are not 0, ordered by class: the whole diagonal, and the
/// [`MAX_CONFUSIONS`] largest of the others.
#[must_use]
pub fn confusions(matrix: &ConfusionMatrix) -> Vec<Confusion> {
    let rows = matrix.rows().enumerate();
    let counts = rows.flat_map(|(class, row)| {
        row.iter().enumerate().map(move |(predicted, &count)| Confusion { class, predicted, count })
    });
    let (mut kept, mut wrong): (Vec<_>, Vec<_>) =
        counts.filter(|found| found.count > 0).partition(|found| found.class == found.predicted);
    if wrong.len() > MAX_CONFUSIONS {
        wrong.sort_by_key(|found| (u64::MAX - found.count, found.class, found.predicted));
        wrong.truncate(MAX_CONFUSIONS);
    }
    kept.extend(wrong);
    kept.sort_by_key(|found| (found.class, found.predicted));
    kept
}

/// Replaces `path` by the counts of the validation after `epoch`.
pub fn write_confusion(path: &Path, epoch: u32, counts: &[Confusion]) -> Result<()> {
    let rows = counts.iter().map(|Confusion { class, predicted, count }| {
        [epoch.to_string(), class.to_string(), predicted.to_string(), count.to_string()]
    });
    let text = csv::to_text(std::iter::once(COLUMNS.map(str::to_owned)).chain(rows));
    atomic::write(path, text.as_bytes())
}

/// Reads a file of [`write_confusion`].
pub fn read_confusion(path: &Path) -> Result<Vec<Confusion>> {
    let damaged = |reason: String| Error::damaged(path, reason, "restore it from a copy, or remove it");
    let text = stratus_base::read_text_at_most(path, MAX_BYTES).map_err(Error::io("read", path))?;
    let mut lines = text.lines();
    if lines.next() != Some(&COLUMNS.join(",")) {
        return Err(damaged(format!("line 1 is not {}", COLUMNS.join(","))));
    }
    let parse = |(number, line): (usize, &str)| {
        let mut fields = line.split(',');
        let mut next = || fields.next()?.parse::<u64>().ok();
        let values = [next(), next(), next(), next()];
        match values {
            [Some(_), Some(class), Some(predicted), Some(count)] if fields.next().is_none() => {
                let index = |class: u64| usize::try_from(class).unwrap_or(usize::MAX);
                Ok(Confusion { class: index(class), predicted: index(predicted), count })
            }
            _ => Err(damaged(format!("line {} does not have four numbers", number + 2))),
        }
    };
    lines.enumerate().map(parse).collect()
}
