//! Shapes of one sample, and shape errors.

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

    /// The number of elements; `usize::MAX` if larger, which no graph accepts.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.0.iter().fold(1, |product, &extent| product.saturating_mul(extent))
    }

    /// `[channels, height, width]`.
    ///
    /// # Errors
    /// If the shape is not that of an image.
    pub fn as_image(&self) -> Result<[usize; 3], ShapeError> {
        self.0.as_slice().try_into().map_err(|_| {
            ShapeError::new(format!("expected an image (channels x height x width), got {self}"))
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

/// The reason why an operation rejects a shape. The graph adds the layer.
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

/// The maximum number of elements of a tensor, a quarter of a terabyte in f32, so that no product or sum of
/// sizes overflows.
pub(crate) const MAX_TENSOR_ELEMENTS: usize = 1 << 36;

/// Checks that a tensor has a realistic size.
///
/// # Errors
/// If it has more than [`MAX_TENSOR_ELEMENTS`].
pub(crate) fn check_tensor_size(tensor: &str, extents: &[usize]) -> Result<(), ShapeError> {
    let shape = Shape(extents.to_vec());
    if shape.elements() > MAX_TENSOR_ELEMENTS {
        return Err(ShapeError::new(format!(
            "{tensor} {shape} has more than {MAX_TENSOR_ELEMENTS} elements"
        )));
    }
    Ok(())
}

/// The extent of a window that slides over one dimension:
/// `(size + before + after - dilation*(kernel-1) - 1) / stride + 1`.
///
/// # Errors
/// If the window does not fit, or an attribute is zero.
pub(crate) fn sliding_extent(
    dimension: &str,
    size: usize,
    kernel: usize,
    stride: usize,
    padding: (usize, usize),
    dilation: usize,
) -> Result<usize, ShapeError> {
    if size == 0 || kernel == 0 || stride == 0 || dilation == 0 {
        return Err(ShapeError::new(format!(
            "size {size}, kernel {kernel}, stride {stride} and dilation {dilation} in {dimension} must be at \
             least 1"
        )));
    }
    let overflow = || {
        ShapeError::new(format!(
            "the {dimension} overflows: size {size}, kernel {kernel}, dilation {dilation}"
        ))
    };
    let reach = dilation.checked_mul(kernel - 1).and_then(|r| r.checked_add(1)).ok_or_else(overflow)?;
    let padded = size.checked_add(padding.0).and_then(|s| s.checked_add(padding.1)).ok_or_else(overflow)?;
    if padded < reach {
        return Err(ShapeError::new(format!(
            "window of {reach} pixels exceeds the padded {dimension} {padded} ({size} + {} + {})",
            padding.0, padding.1
        )));
    }
    Ok((padded - reach) / stride + 1)
}

/// The extent of a pooling window that slides over one dimension. With `ceil`, remaining pixels get another
/// window, which reaches beyond the padding, unless it would start after the image: PyTorch's rule.
///
/// # Errors
/// If the window does not fit or could be entirely padding, or an attribute is zero.
pub(crate) fn pooled_extent(
    dimension: &str,
    size: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    ceil: bool,
) -> Result<usize, ShapeError> {
    if kernel > 0 && padding > kernel / 2 {
        return Err(ShapeError::new(format!(
            "padding {padding} exceeds half the window {kernel} in {dimension}"
        )));
    }
    let over = if ceil { stride.saturating_sub(1) } else { 0 };
    let after = padding.checked_add(over).ok_or_else(|| {
        ShapeError::new(format!("the {dimension} overflows: padding {padding}, stride {stride}"))
    })?;
    let extent = sliding_extent(dimension, size, kernel, stride, (padding, after), 1)?;
    let starts_after_image = ceil && (extent - 1).saturating_mul(stride) >= size.saturating_add(padding);
    Ok(if starts_after_image { extent - 1 } else { extent })
}

/// The text of a pooling's window, such as `3x3 stride 2x2 padding 1x1`.
pub(crate) fn window_text(kernel: [usize; 2], stride: [usize; 2], padding: [usize; 2]) -> String {
    let mut text = format!("{}x{} stride {}x{}", kernel[0], kernel[1], stride[0], stride[1]);
    if padding != [0, 0] {
        text += &format!(" padding {}x{}", padding[0], padding[1]);
    }
    text
}
