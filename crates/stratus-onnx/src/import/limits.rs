//! The memory that an import may use.

use crate::error::{Parsed, Problem};
use stratus_base::printable;
use stratus_base::text::bytes;

/// The bytes of weights and constants that are allowed unless the caller sets another limit.
const DEFAULT_MAX_BYTES: u64 = 4 << 30;
/// The bytes that the weights and constants of any model may use. A model of a few bytes can name constants
/// of any size, and layers can share a weight, of which each has a copy.
const MAX_BYTES_OF_ANY_MODEL: u64 = 64 << 20;
/// The bytes of weights and constants that are allowed for each byte of a larger model. Weights of 8 bits
/// become f32.
const MAX_BYTES_PER_MODEL_BYTE: u64 = 16;
/// The bytes of an element: constants and weights are f32, or integers of shapes, which are short.
const ELEMENT_BYTES: u64 = 4;

/// The remaining memory for weights and constants.
#[derive(Debug)]
pub(super) struct MemoryBudget {
    max_bytes: u64,
    /// True if the limit is that of the model's size, false if it is that of the machine.
    is_of_model: bool,
    remaining_elements: u64,
    /// The number of weights that several nodes read, each of which gets a copy.
    shared_weights: usize,
}

impl MemoryBudget {
    /// The budget for a model of `model_bytes` bytes with its external weights.
    pub fn new(max_bytes: Option<u64>, model_bytes: u64, shared_weights: usize) -> Self {
        let of_machine = max_bytes.unwrap_or(DEFAULT_MAX_BYTES);
        let of_model = MAX_BYTES_OF_ANY_MODEL.max(model_bytes.saturating_mul(MAX_BYTES_PER_MODEL_BYTE));
        let (max_bytes, is_of_model) = (of_machine.min(of_model), of_model < of_machine);
        Self { max_bytes, is_of_model, remaining_elements: max_bytes / ELEMENT_BYTES, shared_weights }
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
        let (proportion, remedy) = if self.is_of_model {
            let proportion = format!(
                "; weights and constants may use {} or {MAX_BYTES_PER_MODEL_BYTE} times the file",
                bytes(MAX_BYTES_OF_ANY_MODEL)
            );
            (proportion, "export weights as initialisers, one for each layer that uses it")
        } else {
            (String::new(), "import it on a machine with more free memory, half of which may be used")
        };
        let used = (self.max_bytes / ELEMENT_BYTES - self.remaining_elements) * ELEMENT_BYTES;
        let needed = bytes(ELEMENT_BYTES.saturating_mul(elements as u64));
        Err(Problem::UnsupportedModel {
            problem: format!(
                "`{}` needs {needed} of memory; {} of {} are in use{shared}{proportion}",
                printable(name),
                bytes(used),
                bytes(self.max_bytes)
            ),
            remedy,
        })
    }
}
