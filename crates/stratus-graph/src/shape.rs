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

    /// The number of elements; `usize::MAX` where it is larger, which no graph accepts.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.0.iter().fold(1, |product, &extent| product.saturating_mul(extent))
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

/// The most elements that a tensor may have, a quarter of a terabyte in f32: no product or sum of sizes
/// overflows.
pub(crate) const MOST_ELEMENTS: usize = 1 << 36;

/// Checks that a tensor is not beyond any machine.
///
/// # Errors
/// Where it has more than [`MOST_ELEMENTS`].
pub(crate) fn limited(what: &str, extents: &[usize]) -> Result<(), ShapeError> {
    let shape = Shape(extents.to_vec());
    if shape.elements() > MOST_ELEMENTS {
        return Err(ShapeError::new(format!("{what} {shape} has more than {MOST_ELEMENTS} elements")));
    }
    Ok(())
}

/// The extent of a window that slides over one dimension:
/// `(size + before + after - dilation*(kernel-1) - 1) / stride + 1`.
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
            "its {what} has size {size}, kernel {kernel}, stride {stride}, dilation {dilation}; none of \
             them may be 0"
        )));
    }
    let overflow = || {
        ShapeError::new(format!("its {what} overflows: size {size}, kernel {kernel}, dilation {dilation}"))
    };
    let reach = dilation.checked_mul(kernel - 1).and_then(|r| r.checked_add(1)).ok_or_else(overflow)?;
    let padded = size.checked_add(padding.0).and_then(|s| s.checked_add(padding.1)).ok_or_else(overflow)?;
    if padded < reach {
        return Err(ShapeError::new(format!(
            "its window reaches over {reach} pixels of {what}, its padded input has {padded} ({size} + {} + \
             {})",
            padding.0, padding.1
        )));
    }
    Ok((padded - reach) / stride + 1)
}

/// The extent of a pooling window that slides over one dimension. Where `ceil` is set, pixels that the
/// stride leaves over get a window of their own, which reaches beyond the padding, unless it would begin
/// behind the image: PyTorch's rule.
///
/// # Errors
/// Where the window does not fit, could lie in the padding alone, or an attribute is zero that may not be.
pub(crate) fn pooled_extent(
    what: &str,
    size: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    ceil: bool,
) -> Result<usize, ShapeError> {
    if kernel > 0 && padding > kernel / 2 {
        return Err(ShapeError::new(format!(
            "its padding {padding} is more than half its window {kernel} in {what}"
        )));
    }
    let over = if ceil { stride.saturating_sub(1) } else { 0 };
    let after = padding.checked_add(over).ok_or_else(|| {
        ShapeError::new(format!("its {what} overflows: padding {padding}, stride {stride}"))
    })?;
    let extent = sliding_extent(what, size, kernel, stride, (padding, after), 1)?;
    let begins_behind = ceil && (extent - 1).saturating_mul(stride) >= size.saturating_add(padding);
    Ok(if begins_behind { extent - 1 } else { extent })
}

/// A pooling's window in words, such as `3x3 stride 2x2 padding 1x1`.
pub(crate) fn window_text(kernel: [usize; 2], stride: [usize; 2], padding: [usize; 2]) -> String {
    let mut text = format!("{}x{} stride {}x{}", kernel[0], kernel[1], stride[0], stride[1]);
    if padding != [0, 0] {
        text += &format!(" padding {}x{}", padding[0], padding[1]);
    }
    text
}
