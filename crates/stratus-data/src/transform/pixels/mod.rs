//! Conversion of stored pixels to the input of the network: element type, layout, normalisation.

mod converter;
mod format;
mod stored;
#[cfg(test)]
mod tests;

pub(crate) use self::converter::Converter;
pub use self::format::{Element, Layout, Normalisation, PixelOrder, ScaleShift};
pub(crate) use self::stored::BatchElement;
