//! The memory that an import may use.

use crate::error::{Parsed, Problem};
use stratus_base::printable;
use stratus_base::text::bytes;

/// The bytes of weights and constants that are allowed unless the caller sets another limit.
const DEFAULT_MAX_BYTES: u64 = 4 << 30;
/// The bytes of an element: constants and weights are f32, or integers of shapes, which are short.
const ELEMENT_BYTES: u64 = 4;

/// The remaining memory for weights and constants.
#[derive(Debug)]
pub(super) struct MemoryBudget {
    max_bytes: u64,
    remaining_elements: u64,
    /// The number of weights that several nodes read, each of which gets a copy.
    shared_weights: usize,
}

impl MemoryBudget {
    pub fn new(max_bytes: Option<u64>, shared_weights: usize) -> Self {
        let max_bytes = max_bytes.unwrap_or(DEFAULT_MAX_BYTES);
        Self { max_bytes, remaining_elements: max_bytes / ELEMENT_BYTES, shared_weights }
    }

    /// Spends the memory of a constant or of a layer's weights.
    ///
    /// # Errors
    /// If more is needed than remains.
    pub fn spend(&mut self, elements: usize, name: &str) -> Parsed<()> {
        self.check(elements, name)?;
        self.remaining_elements -= elements as u64;
        Ok(())
    }

    /// Checks that a constant of this many elements may be allocated.
    ///
    /// # Errors
    /// If more is needed than remains.
    pub fn check(&self, elements: usize, name: &str) -> Parsed<()> {
        if elements as u64 <= self.remaining_elements {
            return Ok(());
        }
        let shared = match self.shared_weights {
            0 => String::new(),
            1 => "; a weight is shared by several layers, each of which has a copy".to_owned(),
            count => format!("; {count} weights are shared by several layers, each of which has a copy"),
        };
        let used = (self.max_bytes / ELEMENT_BYTES - self.remaining_elements) * ELEMENT_BYTES;
        let needed = bytes(ELEMENT_BYTES.saturating_mul(elements as u64));
        Err(Problem::UnsupportedModel {
            problem: format!(
                "`{}` needs {needed} of memory; {} of {} are in use{shared}",
                printable(name),
                bytes(used),
                bytes(self.max_bytes)
            ),
            remedy: "import it on a machine with more free memory, half of which may be used",
        })
    }
}
