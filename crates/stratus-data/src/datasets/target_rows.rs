//! The targets of samples in memory.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// The targets of samples, a row of numbers each, NaN where one is missing. Equal rows of labels are stored
/// once: there are few.
#[derive(Clone, Debug, Default)]
pub(crate) struct TargetRows {
    width: usize,
    /// Row-major.
    values: Arc<Vec<f32>>,
    /// The row of each sample; `None` if every sample has its own.
    rows: Option<Vec<u32>>,
    samples: usize,
}

impl TargetRows {
    /// The targets of a sample; empty if there is none of this index.
    pub(crate) fn row(&self, index: usize) -> &[f32] {
        let row = match &self.rows {
            Some(rows) => rows.get(index).map(|&row| row as usize),
            None => (index < self.samples).then_some(index),
        };
        row.and_then(|row| self.values.get(row * self.width..(row + 1) * self.width)).unwrap_or_default()
    }

    /// The rows of these samples, in their order.
    pub(crate) fn select(&self, samples: &[u32]) -> Self {
        let (values, rows) = match &self.rows {
            Some(rows) => {
                let selected = samples.iter().filter_map(|&sample| rows.get(sample as usize).copied());
                (Arc::clone(&self.values), Some(selected.collect()))
            }
            None => {
                let mut values = Vec::with_capacity(samples.len() * self.width);
                samples.iter().for_each(|&sample| values.extend_from_slice(self.row(sample as usize)));
                (Arc::new(values), None)
            }
        };
        Self { width: self.width, values, rows, samples: samples.len() }
    }

    /// Memory in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        4 * (self.values.capacity() + self.rows.as_ref().map_or(0, Vec::capacity)) as u64
    }
}

/// Collects the targets of samples.
#[derive(Debug)]
pub(crate) struct TargetRowsBuilder {
    rows: TargetRows,
    /// A row of each hash.
    known: HashMap<u64, u32>,
    hasher: RandomState,
    max_values: usize,
}

/// The error for more targets than fit the limit.
#[derive(Debug)]
pub(crate) struct TooManyTargets;

impl TargetRowsBuilder {
    /// A builder of rows of `width` targets, at most `max_values` different ones in all.
    pub(crate) fn new(width: usize, max_values: usize) -> Self {
        let rows = TargetRows { width, values: Arc::default(), rows: Some(Vec::new()), samples: 0 };
        Self { rows, known: HashMap::new(), hasher: RandomState::new(), max_values }
    }

    /// Adds a sample. Missing targets must have the bits of `f32::NAN`.
    pub(crate) fn push(&mut self, row: &[f32]) -> Result<(), TooManyTargets> {
        let next =
            u32::try_from(self.rows.values.len() / self.rows.width.max(1)).map_err(|_| TooManyTargets)?;
        let Some(rows) = &mut self.rows.rows else {
            return self.append(row);
        };
        let hash = self.hasher.hash_one(bytemuck::cast_slice::<f32, u8>(row));
        let known = *self.known.entry(hash).or_insert(next);
        let start = known as usize * self.rows.width;
        let is_equal = self.rows.values.get(start..start + self.rows.width).is_some_and(|known| {
            known.iter().zip(row).all(|(known, value)| known.to_bits() == value.to_bits())
        });
        rows.push(if is_equal { known } else { next });
        if is_equal {
            self.rows.samples += 1;
            return Ok(());
        }
        self.append(row)
    }

    fn append(&mut self, row: &[f32]) -> Result<(), TooManyTargets> {
        if self.rows.values.len() + row.len() > self.max_values {
            return Err(TooManyTargets);
        }
        // The builder is the only owner: nothing is copied.
        Arc::make_mut(&mut self.rows.values).extend_from_slice(row);
        self.rows.samples += 1;
        Ok(())
    }

    /// The targets of a sample.
    pub(crate) fn row(&self, index: usize) -> &[f32] {
        self.rows.row(index)
    }

    /// The maximum number of targets in different rows.
    pub(crate) fn max_values(&self) -> usize {
        self.max_values
    }

    /// Stores every row from now on, and those before: numbers hardly repeat.
    pub(crate) fn store_all(&mut self) {
        if self.rows.rows.is_none() {
            return;
        }
        let mut values = Vec::with_capacity(self.rows.samples * self.rows.width);
        (0..self.rows.samples).for_each(|sample| values.extend_from_slice(self.rows.row(sample)));
        (self.rows.values, self.rows.rows, self.known) = (Arc::new(values), None, HashMap::new());
    }

    pub(crate) fn finish(mut self) -> TargetRows {
        Arc::make_mut(&mut self.rows.values).shrink_to_fit();
        if let Some(rows) = &mut self.rows.rows {
            rows.shrink_to_fit();
        }
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_rows_are_stored_once() {
        let mut builder = TargetRowsBuilder::new(2, 8);
        let rows = [[1.0, 0.0], [f32::NAN, 0.0], [1.0, 0.0], [f32::NAN, 0.0], [0.0, 0.0]];
        rows.iter().for_each(|row| builder.push(row).unwrap());
        let check = |found: &TargetRows| {
            for (index, row) in rows.iter().enumerate() {
                let bits = |row: &[f32]| row.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(found.row(index)), bits(row));
            }
            assert!(found.row(5).is_empty());
            assert_eq!(found.select(&[4, 0]).row(1), [1.0, 0.0]);
            assert!(found.select(&[4, 0]).row(2).is_empty());
        };
        assert_eq!(builder.rows.values.len(), 6);
        check(&builder.rows);
        builder.store_all();
        assert_eq!(builder.rows.values.len(), 10);
        assert!(builder.push(&[2.0, 3.0]).is_err(), "more than eight values");
        check(&builder.finish());
    }
}
