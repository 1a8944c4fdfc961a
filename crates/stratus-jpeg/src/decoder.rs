//! Decoding windows of images, bit-identical to the whole image.

use crate::ffi::{ColourSpace, Decompressor, Library};

/// Extra pixels decoded around a window. Subsampled colours are interpolated from two neighbours, but from
/// one at the edge of the decoded area.
const WINDOW_MARGIN_PIXELS: usize = 4;
/// The minimum number of decoded columns, so that a narrow window is treated like the whole image.
const MIN_DECODED_COLUMNS: usize = 32;

/// Limits on the image size, checked before decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum height and width.
    pub max_side: usize,
    /// The maximum number of pixels. The library allocates at most 8 bytes per pixel and 64 MiB.
    pub max_pixels: usize,
}

/// The channels of a decoded pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PixelFormat {
    /// One byte.
    Grey,
    /// Red, green and blue.
    Rgb,
}

impl PixelFormat {
    /// The number of channels, and of bytes per pixel.
    #[must_use]
    pub fn channels(self) -> usize {
        match self {
            Self::Grey => 1,
            Self::Rgb => 3,
        }
    }
}

/// The header of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Rows of the image.
    pub height: usize,
    /// Columns of the image.
    pub width: usize,
    /// The format of decoded pixels: grey for grey images, RGB for all others.
    pub pixel_format: PixelFormat,
}

/// A window of an image, in whole pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first row.
    pub top: usize,
    /// The row after the last.
    pub bottom: usize,
    /// The first column.
    pub left: usize,
    /// The column after the last.
    pub right: usize,
}

impl Window {
    /// The window that covers the whole image.
    #[must_use]
    pub fn whole(header: &Header) -> Self {
        Self { top: 0, bottom: header.height, left: 0, right: header.width }
    }

    /// Clips the window to an image, to at least one pixel.
    fn clipped(self, header: &Header) -> Self {
        let bottom = self.bottom.clamp(1, header.height);
        let right = self.right.clamp(1, header.width);
        Self { top: self.top.min(bottom - 1), bottom, left: self.left.min(right - 1), right }
    }

    /// The window in an image scaled to 1/`n`, rounded outwards.
    fn scaled_down(self, n: usize) -> Self {
        let Self { top, bottom, left, right } = self;
        Self { top: top / n, bottom: bottom.div_ceil(n), left: left / n, right: right.div_ceil(n) }
    }
}

/// The scale at which an image is decoded, by transforming fewer DCT coefficients. Each pixel is then about
/// the mean of a square of full-resolution pixels. The squares of the last row and column may reach beyond
/// the image, where encoders repeat its edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DctScale {
    /// Full resolution.
    #[default]
    Full,
    /// One half of height and width.
    Half,
    /// One quarter of height and width.
    Quarter,
    /// One eighth of height and width.
    Eighth,
}

impl DctScale {
    /// All scales, the coarsest first.
    pub const ALL: [Self; 4] = [Self::Eighth, Self::Quarter, Self::Half, Self::Full];

    /// The side of the square of pixels that becomes one pixel.
    #[must_use]
    pub fn denominator(self) -> usize {
        match self {
            Self::Full => 1,
            Self::Half => 2,
            Self::Quarter => 4,
            Self::Eighth => 8,
        }
    }

    /// The height and width of an image of `size` at this scale.
    #[must_use]
    pub fn scaled_size(self, size: [usize; 2]) -> [usize; 2] {
        size.map(|length| length.div_ceil(self.denominator()))
    }
}

/// The error for a file that cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The library rejected the file.
    #[error("{message}")]
    Refused {
        /// The error message of the library.
        message: String,
    },
    /// The image exceeds the limits.
    #[error(
        "image size {height}×{width} exceeds the limit of {max_side} pixels per side or {max_pixels} in \
         total",
        max_side = limits.max_side, max_pixels = limits.max_pixels
    )]
    TooLarge {
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// The limits.
        limits: Limits,
    },
    /// The precision is not 8 bits.
    #[error("unsupported precision: {bits} bits, expected 8")]
    UnsupportedPrecision {
        /// The bits per sample.
        bits: i32,
    },
    /// The colour space is not grey, RGB, YCbCr, CMYK or YCCK.
    #[error("unsupported colour space")]
    UnsupportedColourSpace,
}

fn refused(message: String) -> DecodeError {
    DecodeError::Refused { message }
}

/// A decoder, which keeps a row buffer between files. The library allocates its own memory for each file.
#[derive(Clone, Debug)]
pub struct Decoder {
    library: Library,
    limits: Limits,
    /// A row of CMYK pixels.
    row: Vec<u8>,
}

impl Decoder {
    /// Creates a decoder that uses a library.
    #[must_use]
    pub fn new(library: Library, limits: Limits) -> Self {
        Self { library, limits, row: Vec::new() }
    }

    /// The library that decodes.
    #[must_use]
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// Reads the header of a file. The rest of the file may be missing.
    ///
    /// # Errors
    /// If the file is damaged, unsupported or exceeds the limits.
    pub fn header(&mut self, file: &[u8]) -> Result<Header, DecodeError> {
        let mut storage = self.library.new_memory();
        let mut decompressor = self.library.begin(&mut storage, file, self.memory()).map_err(refused)?;
        self.read_header(&mut decompressor)
    }

    /// Decodes the window that `choose` returns for the header. `pixels` receives the rows of the image down
    /// to the last of the window. The pixels of the window are at their positions; all others are undefined.
    ///
    /// Damage or truncation below the window goes unnoticed. Damage above or in it is an error, except stray
    /// bytes between segments.
    ///
    /// # Errors
    /// If the file is damaged, unsupported or exceeds the limits.
    pub fn decode(
        &mut self,
        file: &[u8],
        pixels: &mut Vec<u8>,
        choose: &dyn Fn(&Header) -> Window,
    ) -> Result<Header, DecodeError> {
        let unscaled = |header: &Header| (choose(header), DctScale::Full);
        self.decode_scaled(file, pixels, &unscaled).map(|(header, _)| header)
    }

    /// Like [`decode`](Self::decode), at the DCT scale that `choose` returns; the window is in
    /// full-resolution pixels. `pixels` receives rows of the scaled image, in which the pixels that the
    /// window touches are bit-identical to a scaled decoding of the whole image. Also returns the scale.
    ///
    /// # Errors
    /// If the file is damaged, unsupported or exceeds the limits.
    pub fn decode_scaled(
        &mut self,
        file: &[u8],
        pixels: &mut Vec<u8>,
        choose: &dyn Fn(&Header) -> (Window, DctScale),
    ) -> Result<(Header, DctScale), DecodeError> {
        let mut storage = self.library.new_memory();
        let mut decompressor = self.library.begin(&mut storage, file, self.memory()).map_err(refused)?;
        let header = self.read_header(&mut decompressor)?;
        let (window, scale) = choose(&header);
        let [height, width] = scale.scaled_size([header.height, header.width]);
        let scaled = Header { height, width, ..header };
        let window = window.clipped(&header).scaled_down(scale.denominator());
        let is_cmyk = matches!(decompressor.colours(), ColourSpace::Cmyk | ColourSpace::Ycck);
        pixels.resize(window.bottom * width * header.pixel_format.channels(), 0);
        let row = is_cmyk.then_some(&mut self.row);
        decode_window(&mut decompressor, &scaled, scale, window, row, pixels).map_err(refused)?;
        if window.bottom == height {
            // Every row is decoded, so damage before the end marker changes no pixel.
            decompressor
                .finish()
                .or_else(|message| if has_end(file) { Ok(()) } else { Err(refused(message)) })?;
        }
        Ok((header, scale))
    }

    fn memory(&self) -> usize {
        self.limits.max_pixels.saturating_mul(8).saturating_add(64 << 20)
    }

    fn read_header(&self, decompressor: &mut Decompressor<'_>) -> Result<Header, DecodeError> {
        decompressor.read_header().map_err(refused)?;
        let [height, width] = decompressor.size();
        let Limits { max_side, max_pixels } = self.limits;
        if height.max(width) > max_side || height.checked_mul(width).is_none_or(|all| all > max_pixels) {
            return Err(DecodeError::TooLarge { height, width, limits: self.limits });
        }
        if decompressor.bits() != 8 {
            return Err(DecodeError::UnsupportedPrecision { bits: decompressor.bits() });
        }
        let pixel_format = match decompressor.colours() {
            ColourSpace::Grey => PixelFormat::Grey,
            ColourSpace::Rgb | ColourSpace::YCbCr | ColourSpace::Cmyk | ColourSpace::Ycck => PixelFormat::Rgb,
            ColourSpace::Other => return Err(DecodeError::UnsupportedColourSpace),
        };
        Ok(Header { height, width, pixel_format })
    }
}

/// Decodes a window of a scaled image, whose size is that of `header`. CMYK pixels are converted from `row`.
fn decode_window(
    decompressor: &mut Decompressor<'_>,
    header: &Header,
    scale: DctScale,
    window: Window,
    row: Option<&mut Vec<u8>>,
    pixels: &mut [u8],
) -> Result<(), String> {
    let &Header { height, width, pixel_format } = header;
    let channels = pixel_format.channels();
    let space = match (&row, pixel_format) {
        (Some(_), _) => ColourSpace::Cmyk,
        (None, PixelFormat::Grey) => ColourSpace::Grey,
        (None, PixelFormat::Rgb) => ColourSpace::Rgb,
    };
    decompressor.start(space, scale.denominator())?;
    if decompressor.output_size() != [height, width] {
        return Err(format!("the library does not support the scale 1/{}", scale.denominator()));
    }
    let left = window.left.saturating_sub(WINDOW_MARGIN_PIXELS);
    let right = (window.right + WINDOW_MARGIN_PIXELS).max(left + MIN_DECODED_COLUMNS).min(width);
    let left = left.min(right.saturating_sub(MIN_DECODED_COLUMNS));
    // Scaled images are decoded in full width: some versions crop subsampled colours incorrectly.
    let (left, columns) = if right - left < width && scale == DctScale::Full {
        decompressor.crop(left, right - left)?
    } else {
        (0, width)
    };
    let top = window.top.saturating_sub(WINDOW_MARGIN_PIXELS);
    if top > 0 {
        decompressor.skip(top)?;
    }
    let rows = pixels.chunks_exact_mut(width * channels).skip(top);
    let rows = rows.map(|row| &mut row[left * channels..(left + columns) * channels]);
    match row {
        None => decompressor.read(rows)?,
        Some(row) => {
            row.resize(columns * 4, 0);
            for out in rows {
                decompressor.read(std::iter::once(row.as_mut_slice()))?;
                let pixels = row.chunks_exact(4);
                out.chunks_exact_mut(3).zip(pixels).for_each(|(out, cmyk)| out.copy_from_slice(&rgb(cmyk)));
            }
        }
    }
    Ok(())
}

/// Returns whether a file has an end marker (EOI), which cannot occur in entropy-coded data.
fn has_end(file: &[u8]) -> bool {
    file.windows(2).rev().any(|marker| marker == [0xff, 0xd9])
}

/// Converts a CMYK pixel to RGB. In files, 255 means no ink.
fn rgb(inks: &[u8]) -> [u8; 3] {
    let black = u32::from(inks[3]);
    [0, 1, 2].map(|ink| {
        // This is a rounded division by 255.
        let product = u32::from(inks[ink]) * black + 128;
        ((product + (product >> 8)) >> 8) as u8
    })
}
