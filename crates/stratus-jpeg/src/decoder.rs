//! Decoding windows of images, bit for bit as in the whole image.

use crate::ffi::{ColourSpace, DecoderMemory, Library, Session};

/// Extra pixels around a window. Subsampled colours are interpolated from two neighbours, but at the edge of
/// the decoded area from one.
const MARGIN: usize = 4;
/// The least columns to decode, so that a narrow window is treated like the whole image.
const NARROWEST: usize = 32;

/// Limits, checked before decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest side.
    pub side: usize,
    /// The most pixels. The library allocates at most 8 bytes per pixel and 64 MiB.
    pub pixels: usize,
}

/// The channels of a pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    /// One byte.
    Grey,
    /// Red, green and blue.
    Rgb,
}

impl Colours {
    /// Bytes of a pixel.
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
    /// The channels of decoded pixels: grey for grey images, RGB for all others.
    pub colours: Colours,
}

/// A window of an image, in whole pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Rows above it.
    pub top: usize,
    /// The row behind its last.
    pub bottom: usize,
    /// Columns left of it.
    pub left: usize,
    /// The column behind its last.
    pub right: usize,
}

impl Window {
    /// All of an image.
    #[must_use]
    pub fn whole(header: &Header) -> Self {
        Self { top: 0, bottom: header.height, left: 0, right: header.width }
    }

    /// Clips the window to an image, to at least one pixel.
    fn within(self, header: &Header) -> Self {
        let bottom = self.bottom.clamp(1, header.height);
        let right = self.right.clamp(1, header.width);
        Self { top: self.top.min(bottom - 1), bottom, left: self.left.min(right - 1), right }
    }

    /// The squares of `by` × `by` pixels that it touches.
    fn reduced(self, by: usize) -> Self {
        let Self { top, bottom, left, right } = self;
        Self { top: top / by, bottom: bottom.div_ceil(by), left: left / by, right: right.div_ceil(by) }
    }
}

/// By how much an image is reduced while it is decoded, in height and width. Each pixel is then about the
/// mean of a square of the image's pixels. The last row and the last column may be of squares that reach
/// beyond the image, where encoders repeat its edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reduction {
    /// Not at all.
    #[default]
    Whole,
    /// To one half.
    Half,
    /// To a quarter.
    Quarter,
    /// To an eighth.
    Eighth,
}

impl Reduction {
    /// All of them, the largest first.
    pub const ALL: [Self; 4] = [Self::Eighth, Self::Quarter, Self::Half, Self::Whole];

    /// The side of a square that becomes a pixel.
    #[must_use]
    pub fn by(self) -> usize {
        match self {
            Self::Whole => 1,
            Self::Half => 2,
            Self::Quarter => 4,
            Self::Eighth => 8,
        }
    }

    /// Height and width of an image of this height and width.
    #[must_use]
    pub fn of(self, size: [usize; 2]) -> [usize; 2] {
        size.map(|length| length.div_ceil(self.by()))
    }
}

/// Why a file cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The library refuses the file, or finds damage.
    #[error("{said}")]
    Refused {
        /// The error message of the library.
        said: String,
    },
    /// More pixels than the limits allow.
    #[error(
        "the image is {height}×{width}: more than {side} pixels a side or {pixels} in all",
        side = limits.side, pixels = limits.pixels
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
    #[error("its colours have {bits} bits, and 8 can be decoded")]
    Bits {
        /// Bits.
        bits: i32,
    },
    /// The colour space is none of grey, RGB and CMYK.
    #[error("its colours are neither grey nor RGB nor CMYK")]
    Colours,
}

fn refused(said: String) -> DecodeError {
    DecodeError::Refused { said }
}

/// Decodes files one after another, and keeps a little memory between them. The library allocates more for
/// each.
#[derive(Clone, Debug)]
pub struct Decoder {
    library: Library,
    limits: Limits,
    /// A row of CMYK pixels.
    row: Vec<u8>,
}

impl Decoder {
    /// A decoder that uses a library.
    #[must_use]
    pub fn new(library: Library, limits: Limits) -> Self {
        Self { library, limits, row: Vec::new() }
    }

    /// The library.
    #[must_use]
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// Reads the header of a file, of which no more needs to be present.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn header(&mut self, file: &[u8]) -> Result<Header, DecodeError> {
        let mut storage = DecoderMemory::new(&self.library);
        let mut session =
            Session::begin(&self.library, &mut storage, file, self.memory()).map_err(refused)?;
        self.read_header(&mut session)
    }

    /// Decodes the window that `wanted` returns for the header. `pixels` receives the rows of the image from
    /// the first to the last of the window. Pixels of the window are at their positions; all others are
    /// undefined.
    ///
    /// Damage or truncation below the window goes unnoticed. Damage above and in it is an error, except stray
    /// bytes between segments.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(
        &mut self,
        file: &[u8],
        pixels: &mut Vec<u8>,
        wanted: &dyn Fn(&Header) -> Window,
    ) -> Result<Header, DecodeError> {
        let whole = |header: &Header| (wanted(header), Reduction::Whole);
        self.decode_reduced(file, pixels, &whole).map(|(header, _)| header)
    }

    /// As [`decode`](Self::decode), reduced by what `wanted` returns beside the window, which is that of the
    /// whole image. `pixels` receives rows of the reduced image: the squares that the window touches are at
    /// their positions, with the bits that they have where all of it is reduced. Returns the reduction too.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode_reduced(
        &mut self,
        file: &[u8],
        pixels: &mut Vec<u8>,
        wanted: &dyn Fn(&Header) -> (Window, Reduction),
    ) -> Result<(Header, Reduction), DecodeError> {
        let mut storage = DecoderMemory::new(&self.library);
        let mut session =
            Session::begin(&self.library, &mut storage, file, self.memory()).map_err(refused)?;
        let header = self.read_header(&mut session)?;
        let (window, reduction) = wanted(&header);
        let [height, width] = reduction.of([header.height, header.width]);
        let reduced = Header { height, width, ..header };
        let window = window.within(&header).reduced(reduction.by());
        let four = matches!(session.colours(), ColourSpace::Cmyk | ColourSpace::Ycck);
        pixels.resize(window.bottom * width * header.colours.channels(), 0);
        let row = four.then_some(&mut self.row);
        decode_window(&mut session, &reduced, reduction, window, row, pixels).map_err(refused)?;
        if window.bottom == height {
            // Every row is decoded: what stands between the last one and the end of the image changes none.
            session.finish().or_else(|said| if has_end(file) { Ok(()) } else { Err(refused(said)) })?;
        }
        Ok((header, reduction))
    }

    fn memory(&self) -> usize {
        self.limits.pixels.saturating_mul(8).saturating_add(64 << 20)
    }

    fn read_header(&self, session: &mut Session<'_>) -> Result<Header, DecodeError> {
        session.read_header().map_err(refused)?;
        let [height, width] = session.size();
        let Limits { side, pixels } = self.limits;
        if height.max(width) > side || height.checked_mul(width).is_none_or(|all| all > pixels) {
            return Err(DecodeError::TooLarge { height, width, limits: self.limits });
        }
        if session.bits() != 8 {
            return Err(DecodeError::Bits { bits: session.bits() });
        }
        let colours = match session.colours() {
            ColourSpace::Grey => Colours::Grey,
            ColourSpace::Rgb | ColourSpace::YCbCr | ColourSpace::Cmyk | ColourSpace::Ycck => Colours::Rgb,
            ColourSpace::Other => return Err(DecodeError::Colours),
        };
        Ok(Header { height, width, colours })
    }
}

/// Decodes a window of a reduced image, as `header` describes that; CMYK pixels go through `row`.
fn decode_window(
    session: &mut Session<'_>,
    header: &Header,
    reduction: Reduction,
    window: Window,
    row: Option<&mut Vec<u8>>,
    pixels: &mut [u8],
) -> Result<(), String> {
    let &Header { height, width, colours } = header;
    let channels = colours.channels();
    let space = match (&row, colours) {
        (Some(_), _) => ColourSpace::Cmyk,
        (None, Colours::Grey) => ColourSpace::Grey,
        (None, Colours::Rgb) => ColourSpace::Rgb,
    };
    session.start(space, reduction.by())?;
    if session.output_size() != [height, width] {
        return Err(format!("the library does not reduce images by {}", reduction.by()));
    }
    let left = window.left.saturating_sub(MARGIN);
    let right = (window.right + MARGIN).max(left + NARROWEST).min(width);
    let left = left.min(right.saturating_sub(NARROWEST));
    // Columns of reduced images are all decoded: some versions crop those of coarse colours wrongly.
    let (left, columns) = if right - left < width && reduction == Reduction::Whole {
        session.crop(left, right - left)?
    } else {
        (0, width)
    };
    let top = window.top.saturating_sub(MARGIN);
    if top > 0 {
        session.skip(top)?;
    }
    let rows = pixels.chunks_exact_mut(width * channels).skip(top);
    let rows = rows.map(|row| &mut row[left * channels..(left + columns) * channels]);
    match row {
        None => session.read(rows)?,
        Some(row) => {
            row.resize(columns * 4, 0);
            for out in rows {
                session.read(std::iter::once(row.as_mut_slice()))?;
                let four = row.chunks_exact(4);
                out.chunks_exact_mut(3).zip(four).for_each(|(out, four)| out.copy_from_slice(&rgb(four)));
            }
        }
    }
    Ok(())
}

/// Whether a file has an end marker, EOI, which entropy-coded data cannot contain.
fn has_end(file: &[u8]) -> bool {
    file.windows(2).rev().any(|marker| marker == [0xff, 0xd9])
}

/// Converts CMYK as stored in files, where 255 means no ink, to RGB.
fn rgb(inks: &[u8]) -> [u8; 3] {
    let black = u32::from(inks[3]);
    [0, 1, 2].map(|ink| {
        // A rounded division by 255.
        let product = u32::from(inks[ink]) * black + 128;
        ((product + (product >> 8)) >> 8) as u8
    })
}
