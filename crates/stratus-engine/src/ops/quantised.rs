//! Int8 inference: conversion of maps to bytes, and convolutions of bytes. The pass
//! [`quantise`](crate::passes::quantise) inserts these kernels into evaluation programs, so they have no
//! derivative.

use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_same_shape, expect_shape, image_shape};
use crate::{DType, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::ops::Conv2d;

/// How a byte stands for a real number: `real = scale * (byte - zero_point)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Uint8Scale {
    /// The difference of the numbers of consecutive bytes, above 0.
    pub scale: f32,
    /// The byte that stands for 0.
    pub zero_point: u8,
}

impl Uint8Scale {
    /// The scale whose bytes reach from `low` to `high`; 0 is always a byte, so the range is extended to it.
    /// `None` if the range is empty or not finite.
    #[must_use]
    pub fn of_range(low: f32, high: f32) -> Option<Self> {
        let (low, high) = (low.min(0.0), high.max(0.0));
        let scale = (high - low) / 255.0;
        let zero_point = (-low / scale).round();
        (scale.is_normal() && zero_point.is_finite()).then_some(Self { scale, zero_point: zero_point as u8 })
    }

    /// The real number of a byte.
    #[must_use]
    pub fn real(self, byte: f64) -> f64 {
        f64::from(self.scale) * (byte - f64::from(self.zero_point))
    }

    /// The byte nearest to a real number: `real / scale` is rounded, ties to even, before the zero point is
    /// added. Numbers out of range become the first or the last byte, NaN the first.
    #[must_use]
    pub fn byte(self, real: f64) -> f64 {
        let byte = (real / f64::from(self.scale)).round_ties_even() + f64::from(self.zero_point);
        if byte.is_nan() { 0.0 } else { byte.clamp(0.0, 255.0) }
    }

    /// Rounds to the nearest number that a byte represents; NaN stays NaN.
    #[must_use]
    pub fn rounded(self, real: f64) -> f64 {
        if real.is_nan() { real } else { self.real(self.byte(real)) }
    }

    /// Returns whether a real number is rounded to a byte below 0 or above 255.
    #[must_use]
    pub fn clips(self, real: f64) -> bool {
        let byte = (real / f64::from(self.scale)).round_ties_even() + f64::from(self.zero_point);
        !(byte.is_nan() || (0.0..=255.0).contains(&byte))
    }

    pub(super) fn check(self) -> Result<(), String> {
        if self.scale.is_normal() && self.scale > 0.0 {
            return Ok(());
        }
        Err(format!("the scale of bytes must be above 0, got {}", self.scale))
    }
}

/// `x -> y u8`: bytes of the real numbers `x`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantise {
    /// The meaning of the bytes.
    pub bytes: Uint8Scale,
}

/// `(x u8 [N,C,H,W], weight i8 [O,C/G,KH,KW], scale f32 [O], bias f32 [O], addend? [N,O,H',W'])
/// -> y [N,O,H',W']`: `y = scale * products + bias + addend`, then ReLU if `relu`.
///
/// `products` are the exact sums of integer products of `x` and `weight`, with zeros as padding; `scale` is
/// that of `x` times that of the channel's weights. If the zero point of `x` is not 0, `bias` must include
/// its correction, `-scale * zero_point * Σ weight`, and the convolution must not be padded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuantisedConv2d {
    /// Attributes; its bias is always present.
    pub conv: Conv2d,
    /// True if ReLU is applied to the output.
    pub relu: bool,
    /// The map that is added.
    pub addend: Addend,
    /// The meaning of the bytes of `y`; `None` if `y` has real numbers.
    pub output: Option<Uint8Scale>,
}

/// The map that a [`QuantisedConv2d`] adds to its output.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Addend {
    /// None.
    None,
    /// Real numbers.
    Real,
    /// Bytes.
    Bytes(Uint8Scale),
}

fn expect_dtype(value: &Value, dtype: DType) -> Result<(), String> {
    if value.dtype == dtype {
        return Ok(());
    }
    Err(format!("`{}`: expected {dtype}, got {}", value.name, value.dtype))
}

pub(super) fn expect_real(value: &Value) -> Result<(), String> {
    if matches!(value.dtype, DType::F32 | DType::Bf16 | DType::F16 | DType::F64) {
        return Ok(());
    }
    Err(format!("`{}`: expected a floating-point type, got {}", value.name, value.dtype))
}

impl KernelSpec for Quantise {
    fn name(&self) -> &'static str {
        "quantise"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        expect_same_shape(operands[0], operands[1])?;
        expect_real(operands[0])?;
        expect_dtype(operands[1], DType::U8)?;
        self.bytes.check()
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        2 * operands[0].elements() as u64
    }
}

impl KernelSpec for QuantisedConv2d {
    fn name(&self) -> &'static str {
        match (self.addend, self.relu) {
            (Addend::None, false) => "quantised_conv2d",
            (Addend::None, true) => "quantised_conv2d_relu",
            (_, false) => "quantised_conv2d_add",
            (_, true) => "quantised_conv2d_add_relu",
        }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let inputs = if self.addend == Addend::None { 4 } else { 5 };
        expect_counts(counts, &[[inputs, 0, 1]])?;
        let (x, y, conv) = (operands[0], operands[inputs], &self.conv);
        let [n, c, h, w] = image_shape(x)?;
        if c != conv.in_channels {
            return Err(format!("`{}`: expected {} channels, got {c}", x.name, conv.in_channels));
        }
        let [height, width] = conv.output_size([h, w]).map_err(|error| error.to_string())?;
        expect_shape(y, &[n, conv.out_channels, height, width])?;
        expect_shape(operands[1], &conv.weight_shape())?;
        expect_dtype(x, DType::U8)?;
        expect_dtype(operands[1], DType::I8)?;
        for vector in [operands[2], operands[3]] {
            expect_shape(vector, &[conv.out_channels])?;
            expect_dtype(vector, DType::F32)?;
        }
        match self.addend {
            Addend::None => {}
            Addend::Real => {
                expect_same_shape(operands[4], y)?;
                expect_real(operands[4])?;
            }
            Addend::Bytes(bytes) => {
                expect_same_shape(operands[4], y)?;
                expect_dtype(operands[4], DType::U8)?;
                bytes.check()?;
            }
        }
        match self.output {
            Some(bytes) => {
                expect_dtype(y, DType::U8)?;
                bytes.check()
            }
            None => expect_real(y),
        }
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::MatrixProduct
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        let y = operands[operands.len() - 1];
        2 * y.elements() as u64 * self.conv.weight_shape()[1..].iter().product::<usize>() as u64
    }
}
