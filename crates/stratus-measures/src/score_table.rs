//! Scores of samples, gathered batch by batch.

use crate::{LabelRanking, MetricError};

/// The outputs and targets of samples: a row per sample, a column per label or target.
///
/// Outputs are finite; a target is finite, or NaN if it is missing. The table remembers its batches, so that
/// tables of workers that took turns can be merged in the order of samples ([`merge_turns`]). It takes
/// 8 bytes per sample and column.
///
/// [`merge_turns`]: Self::merge_turns
#[derive(Clone, Debug)]
pub struct ScoreTable {
    columns: usize,
    /// `[samples, columns]`, row-major.
    outputs: Vec<f32>,
    /// `[samples, columns]`, row-major; NaN is missing.
    targets: Vec<f32>,
    /// The number of samples of each appended batch.
    batches: Vec<usize>,
}

impl ScoreTable {
    /// Creates a table without samples.
    #[must_use]
    pub fn new(columns: usize) -> Self {
        Self::with_capacity(columns, 0)
    }

    /// Creates a table without samples that allocates nothing for its rows up to `samples` samples.
    #[must_use]
    pub fn with_capacity(columns: usize, samples: usize) -> Self {
        let values = columns.saturating_mul(samples);
        Self {
            columns,
            outputs: Vec::with_capacity(values),
            targets: Vec::with_capacity(values),
            batches: Vec::new(),
        }
    }

    /// The number of labels or targets.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The number of samples, including those without any target.
    #[must_use]
    pub fn samples(&self) -> usize {
        // A table without columns has no values.
        self.outputs.len() / self.columns.max(1)
    }

    /// The outputs, `[samples, columns]`.
    #[must_use]
    pub fn outputs(&self) -> &[f32] {
        &self.outputs
    }

    /// The targets, `[samples, columns]`; NaN is missing.
    #[must_use]
    pub fn targets(&self) -> &[f32] {
        &self.targets
    }

    /// The outputs and targets of each sample.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = (&[f32], &[f32])> {
        let columns = self.columns.max(1);
        self.outputs.chunks_exact(columns).zip(self.targets.chunks_exact(columns))
    }

    /// The output and the target of each sample in a column, including missing targets. Nothing if there is
    /// no such column.
    pub fn column(&self, column: usize) -> impl Iterator<Item = (f32, f32)> + Clone {
        let values = self.outputs.iter().copied().zip(self.targets.iter().copied());
        let first = if column < self.columns { column } else { self.outputs.len() };
        values.skip(first).step_by(self.columns.max(1))
    }

    /// The samples of a label in descending order of their score.
    #[must_use]
    pub fn ranking(&self, label: usize) -> LabelRanking {
        LabelRanking::new(self.column(label))
    }

    /// Appends a batch of samples: `outputs` and `targets`, `[batch, columns]`.
    ///
    /// # Errors
    /// If the slices are no rows of this table, an output is NaN or infinite, or a target is infinite. The
    /// output of a missing target must be finite too. Nothing is appended then.
    pub fn append(&mut self, outputs: &[f32], targets: &[f32]) -> Result<(), MetricError> {
        let columns = self.columns;
        if outputs.len() != targets.len() || !outputs.len().is_multiple_of(columns) {
            let (outputs, targets) = (outputs.len(), targets.len());
            return Err(MetricError::TableSizeMismatch { columns, outputs, targets });
        }
        let wrong = |item, position: usize| {
            let sample = self.samples() + position / columns;
            Err(MetricError::NotFinite { item, sample, column: position % columns })
        };
        if let Some(position) = outputs.iter().position(|output| !output.is_finite()) {
            return wrong("output", position);
        }
        if let Some(position) = targets.iter().position(|target| target.is_infinite()) {
            return wrong("target", position);
        }
        if !outputs.is_empty() {
            self.batches.push(outputs.len() / columns);
        }
        self.outputs.extend_from_slice(outputs);
        self.targets.extend_from_slice(targets);
        Ok(())
    }

    /// Appends the samples of another table, with its batches.
    ///
    /// # Errors
    /// If the numbers of columns differ. Nothing is appended then.
    pub fn merge(&mut self, other: &Self) -> Result<(), MetricError> {
        self.check_columns(other.columns)?;
        self.outputs.extend_from_slice(&other.outputs);
        self.targets.extend_from_slice(&other.targets);
        self.batches.extend_from_slice(&other.batches);
        Ok(())
    }

    /// Merges the tables of workers that took turns batch by batch: the first batch of each table in their
    /// order, then the second of each, and so on. The result is that of a single worker.
    ///
    /// # Errors
    /// If a table has another number of columns than `columns`.
    pub fn merge_turns(columns: usize, tables: &[Self]) -> Result<Self, MetricError> {
        let mut all = Self::with_capacity(columns, tables.iter().map(Self::samples).sum());
        tables.iter().try_for_each(|table| all.check_columns(table.columns))?;
        let rounds = tables.iter().map(|table| table.batches.len()).max().unwrap_or(0);
        let mut next = vec![0; tables.len()];
        for round in 0..rounds {
            for (table, start) in tables.iter().zip(&mut next) {
                let Some(&samples) = table.batches.get(round) else { continue };
                let end = *start + samples * columns;
                all.outputs.extend_from_slice(&table.outputs[*start..end]);
                all.targets.extend_from_slice(&table.targets[*start..end]);
                all.batches.push(samples);
                *start = end;
            }
        }
        Ok(all)
    }

    /// Removes all samples; the memory stays allocated.
    pub fn clear(&mut self) {
        self.outputs.clear();
        self.targets.clear();
        self.batches.clear();
    }

    pub(crate) fn check_columns(&self, found: usize) -> Result<(), MetricError> {
        let columns = self.columns;
        if columns == found { Ok(()) } else { Err(MetricError::ColumnCountMismatch { columns, found }) }
    }
}

impl ScoreTable {
    /// The table as bytes, little-endian: the number of columns and of batches and the length of each batch
    /// as `u64`, then outputs and targets as `f32`.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let counts = [self.columns, self.batches.len()];
        let counts = counts.iter().chain(&self.batches).flat_map(|&count| (count as u64).to_le_bytes());
        let values = self.outputs.iter().chain(&self.targets).flat_map(|value| value.to_le_bytes());
        counts.chain(values).collect()
    }

    /// Parses the bytes of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// If they are no table.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MetricError> {
        let damaged = || MetricError::DamagedTable { bytes: bytes.len() };
        let mut rest = bytes;
        let mut count = || {
            let (first, others) = rest.split_first_chunk().ok_or_else(damaged)?;
            rest = others;
            usize::try_from(u64::from_le_bytes(*first)).map_err(|_| damaged())
        };
        let (columns, batches) = (count()?, count()?);
        // Every batch takes eight bytes, so that memory is bounded by the bytes that there are.
        if batches > bytes.len() / 8 {
            return Err(damaged());
        }
        let batches = (0..batches).map(|_| count()).collect::<Result<Vec<usize>, _>>()?;
        let samples = batches.iter().try_fold(0usize, |sum, &batch| sum.checked_add(batch));
        let values = samples.and_then(|samples| samples.checked_mul(columns)).ok_or_else(damaged)?;
        if values.checked_mul(8) != Some(rest.len()) {
            return Err(damaged());
        }
        let numbers: Vec<f32> = rest.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        let mut table = Self::new(columns);
        if columns > 0 {
            table.append(&numbers[..values], &numbers[values..])?;
        }
        table.batches = batches;
        Ok(table)
    }
}
