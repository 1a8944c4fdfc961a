//! Shapes of one sample and what can be wrong with them.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The extents of one sample's tensor: `[C, H, W]` or `[features]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shape(pub Vec<usize>);

impl Shape {
    /// `channels × height × width`.
    #[must_use]
    pub fn image(channels: usize, height: usize, width: usize) -> Self {
        Self(vec![channels, height, width])
    }

    /// A vector of `features` numbers.
    #[must_use]
    pub fn vector(features: usize) -> Self {
        Self(vec![features])
    }

    /// The number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.0.iter().product()
    }

    /// `[channels, height, width]`, or an error that says what was found instead.
    ///
    /// # Errors
    /// Where the shape is not that of an image.
    pub fn as_image(&self) -> Result<[usize; 3], ShapeError> {
        self.0.as_slice().try_into().map_err(|_| {
            ShapeError::new(format!("it needs an image of channels x height x width, its input is {self}"))
        })
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, extent) in self.0.iter().enumerate() {
            if position > 0 {
                f.write_str("x")?;
            }
            write!(f, "{extent}")?;
        }
        Ok(())
    }
}

/// Why an operation cannot take a shape. The graph adds which layer it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ShapeError {
    message: String,
}

impl ShapeError {
    /// An error whose message names the shapes.
    #[must_use]
    pub fn new(message: String) -> Self {
        Self { message }
    }
}

/// The extent of a window that slides over one dimension: `(size + before + after - dilation*(kernel-1) - 1) / stride + 1`.
///
/// # Errors
/// Where the window does not fit, or an attribute is zero that may not be.
pub(crate) fn sliding_extent(
    what: &str,
    size: usize,
    kernel: usize,
    stride: usize,
    padding: (usize, usize),
    dilation: usize,
) -> Result<usize, ShapeError> {
    if size == 0 || kernel == 0 || stride == 0 || dilation == 0 {
        return Err(ShapeError::new(format!(
            "its {what} has size {size}, kernel {kernel}, stride {stride}, dilation {dilation}; none of them may be 0"
        )));
    }
    let overflow = || {
        ShapeError::new(format!("its {what} overflows: size {size}, kernel {kernel}, dilation {dilation}"))
    };
    let reach = dilation.checked_mul(kernel - 1).and_then(|r| r.checked_add(1)).ok_or_else(overflow)?;
    let padded = size.checked_add(padding.0).and_then(|s| s.checked_add(padding.1)).ok_or_else(overflow)?;
    if padded < reach {
        return Err(ShapeError::new(format!(
            "its window reaches over {reach} pixels of {what}, its padded input has {padded} ({size} + {} + {})",
            padding.0, padding.1
        )));
    }
    Ok((padded - reach) / stride + 1)
}
