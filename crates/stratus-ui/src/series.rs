//! Curves of an opened run: appendable, with a bounded number of points.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use stratus_report::report::{Curves, IterationCurves};
use stratus_run::csv::IterationRow;

use crate::tail::Tail;

/// Maximum number of values of a sparkline.
const MAX_SPARKLINE_POINTS: usize = 48;

/// The values of a small drawing: at most 48, evenly spaced, and the last one.
#[derive(Clone, Debug, Default)]
pub struct Sparkline {
    values: Vec<f64>,
    /// Every value of this number is kept.
    stride: usize,
    count: usize,
    last: Option<f64>,
}

impl Sparkline {
    /// Adds a value.
    pub fn push(&mut self, value: f64) {
        self.stride = self.stride.max(1);
        if self.count.is_multiple_of(self.stride) {
            if self.values.len() == MAX_SPARKLINE_POINTS {
                let mut position = 0;
                self.values.retain(|_| {
                    position += 1;
                    position % 2 == 1
                });
                self.stride *= 2;
            }
            if self.count.is_multiple_of(self.stride) {
                self.values.push(value);
            }
        }
        self.count += 1;
        self.last = Some(value);
    }

    /// The kept values, with the last one.
    pub fn values(&self) -> Vec<f64> {
        let mut values = self.values.clone();
        if self.stride > 0 && !(self.count - 1).is_multiple_of(self.stride) {
            values.extend(self.last);
        }
        values
    }
}

/// New points of the curves of a run.
#[derive(Debug, Serialize)]
pub struct NewPoints {
    /// The state of the curves; with another one, all points are new.
    pub generation: u64,
    /// The position of the first point.
    pub first: usize,
    /// The points.
    #[serde(flatten)]
    pub curves: Curves,
}

/// The curves of `iterations.csv`, of which every byte is read once.
#[derive(Debug)]
pub struct LiveSeries {
    tail: Tail<IterationRow>,
    curves: IterationCurves,
    generation: u64,
}

/// Returns a number that no earlier server returned to a page: milliseconds since 1970, and larger each time.
fn next_generation() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    let now = u64::try_from(now).unwrap_or(0);
    let next = |last: u64| Some(now.max(last + 1));
    LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map_or(now, |last| now.max(last + 1))
}

impl Default for LiveSeries {
    fn default() -> Self {
        Self { tail: Tail::default(), curves: IterationCurves::default(), generation: next_generation() }
    }
}

impl LiveSeries {
    /// Reads the rows that were appended; returns the number of bytes.
    ///
    /// # Errors
    /// The reason, if the file is damaged or cannot be read.
    pub fn refresh(&mut self, path: &Path) -> Result<u64, String> {
        let (mut rows, mut bytes) = (Vec::new(), 0);
        loop {
            rows.clear();
            let read = self.tail.read(path, &mut rows);
            let length = self.curves.iterations_per_point();
            if read.as_ref().is_ok_and(|read| read.restarted) {
                self.curves = IterationCurves::default();
                self.generation = next_generation();
            }
            rows.iter().for_each(|row| self.curves.push(row));
            if self.curves.iterations_per_point() > length {
                self.generation = next_generation();
            }
            let read = read?;
            bytes += read.bytes;
            if !read.more {
                return Ok(bytes);
            }
        }
    }

    /// The points from number `from`, if the page has the earlier ones of this `generation`; else all.
    pub fn points_from(&self, generation: u64, from: usize) -> NewPoints {
        let is_known = generation == self.generation && from <= self.curves.points();
        let first = if is_known { from } else { 0 };
        NewPoints { generation: self.generation, first, curves: self.curves.points_from(first) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_run::csv::{CsvWriter, Task};

    #[test]
    fn sparkline_keeps_first_and_last_and_is_bounded() {
        for count in [0, 1, 2, 47, 48, 49, 50, 97, 1000, 12_345] {
            let mut line = Sparkline::default();
            (0..count).for_each(|value| line.push(f64::from(value)));
            let values = line.values();
            assert!(values.len() <= MAX_SPARKLINE_POINTS + 1, "{count}: {}", values.len());
            assert_eq!(values.first().copied(), (count > 0).then_some(0.0), "{count}");
            assert_eq!(values.last().copied(), (count > 0).then_some(f64::from(count - 1)), "{count}");
            assert!(values.is_sorted_by(|a, b| a < b), "{count}: {values:?}");
        }
    }

    #[test]
    fn appended_rows_are_new_points_and_a_cut_file_is_sent_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("iterations.csv");
        let mut writer = CsvWriter::open(&path, Task::default()).unwrap();
        let append = |writer: &mut CsvWriter<IterationRow>, range: std::ops::RangeInclusive<u64>| {
            for iteration in range {
                writer
                    .append(&IterationRow { epoch: 1, iteration, loss: 1.0, ..Default::default() })
                    .unwrap();
            }
            writer.flush().unwrap();
        };
        append(&mut writer, 1..=100);
        let mut series = LiveSeries::default();
        let size = std::fs::metadata(&path).unwrap().len();
        assert_eq!(series.refresh(&path), Ok(size));
        let all = series.points_from(0, 0);
        assert_eq!((all.first, all.curves.iteration.len()), (0, 100));
        append(&mut writer, 101..=103);
        let bytes = series.refresh(&path).unwrap();
        assert!(bytes < 300, "{bytes} bytes read for three rows");
        let new = series.points_from(all.generation, 100);
        assert_eq!((new.generation, new.first), (all.generation, 100));
        assert_eq!(new.curves.iteration, [101, 102, 103]);
        // More iterations per point: all points are new.
        append(&mut writer, 104..=1500);
        series.refresh(&path).unwrap();
        let merged = series.points_from(all.generation, 103);
        assert_eq!((merged.first, merged.curves.iteration.len()), (0, 750));
        assert_ne!(merged.generation, all.generation);
        writer.truncate_to(0).unwrap();
        append(&mut writer, 1..=2);
        series.refresh(&path).unwrap();
        let again = series.points_from(merged.generation, 750);
        assert_eq!((again.first, again.curves.iteration), (0, vec![1, 2]));
    }
}
