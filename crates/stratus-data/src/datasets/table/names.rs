//! Many texts in one buffer.

/// Texts by their index.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    text: String,
    ends: Vec<u32>,
}

/// The error for more text than fits: 4 GiB.
#[derive(Debug)]
pub(super) struct NamesFull;

impl Names {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// A text; empty if there is none of this index.
    pub(super) fn get(&self, index: usize) -> &str {
        let start = if index == 0 { Some(&0) } else { self.ends.get(index - 1) };
        let range = start.zip(self.ends.get(index)).map(|(&start, &end)| start as usize..end as usize);
        range.and_then(|range| self.text.get(range)).unwrap_or_default()
    }

    pub(super) fn push(&mut self, name: &str) -> Result<(), NamesFull> {
        let end = u32::try_from(self.text.len() + name.len()).map_err(|_| NamesFull)?;
        // Indices have 32 bits too.
        if self.ends.len() >= u32::MAX as usize {
            return Err(NamesFull);
        }
        self.text.push_str(name);
        self.ends.push(end);
        Ok(())
    }

    /// The texts of these indices, in their order.
    pub(super) fn select(&self, indices: &[u32]) -> Self {
        let mut selected = Self::default();
        for &index in indices {
            // A selection of different texts always fits.
            let _ = selected.push(self.get(index as usize));
        }
        selected.shrink();
        selected
    }

    pub(super) fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Memory in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        (self.text.capacity() + 4 * self.ends.capacity()) as u64
    }
}
