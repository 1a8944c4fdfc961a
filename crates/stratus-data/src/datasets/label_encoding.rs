//! Converts the pixels of label images to masks.
//!
//! PNG files can store the same colours as palettes or with fewer bits: programs that compress PNG files
//! choose the colour type by the pixels alone. Other programs store class indices as palette entries, whose
//! colours are only for display. So a file has several interpretations:
//!
//! ```text
//!   colours   the colour of each pixel, whatever the colour type          CamVid's original files
//!   greys     grey levels, even if stored with fewer bits or a palette    optimised 8-bit greys
//!   indices   stored values: samples, or palette indices                  VOC's palettes
//! ```
//!
//! If only one interpretation has a class for every pixel, or all give the same classes, it is used.
//! Otherwise the whole palette decides ([`LabelEncoding::decode_palette`]), or the file is rejected as
//! ambiguous.

use crate::dataset::IGNORED_PIXEL;
use crate::decode::{LabelImage, LabelPixels};

/// The class of each pixel value, or [`IGNORED_PIXEL`]; `None` if the value is invalid.
pub(super) type ClassTable = [Option<u8>; 256];

/// The kinds of label images of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EncodingKind {
    /// Class indices.
    Indices,
    /// Class indices or colours.
    IndicesOrColours,
    /// Colours; class indices if the pixels have none of the colours.
    Colours,
}

/// The classes of a data set and their encoding in label images.
#[derive(Debug)]
pub(super) struct LabelEncoding<'a> {
    /// The names of the classes, for messages.
    pub classes: &'a [&'a str],
    /// The class of each index.
    pub index_classes: ClassTable,
    /// The valid indices, for messages.
    pub index_text: &'a str,
    /// The class of each colour.
    pub colours: &'a [([u8; 3], u8)],
    /// The published colour of each index. A palette of these colours may encode classes by colour.
    pub index_colours: &'a [[u8; 3]],
    pub kind: EncodingKind,
}

/// One interpretation of an image with one byte per pixel.
struct Interpretation {
    meaning: PixelMeaning,
    classes: ClassTable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PixelMeaning {
    Colour,
    GreyLevel,
    Index,
}

impl PixelMeaning {
    fn name(self) -> &'static str {
        match self {
            Self::Colour => "colour",
            Self::GreyLevel => "grey value",
            Self::Index => "index",
        }
    }
}

impl LabelEncoding<'_> {
    /// Converts the pixels of a label image to a mask, in place.
    ///
    /// # Errors
    ///
    /// If a pixel has no class, or the file is ambiguous.
    pub(super) fn decode_mask(&self, image: &LabelImage, pixels: &mut Vec<u8>) -> Result<(), String> {
        let width = image.width;
        match &image.pixels {
            LabelPixels::Grey { bits } => self.decode_greys(*bits, width, pixels),
            LabelPixels::Palette(palette) => self.decode_palette(palette, width, pixels),
            LabelPixels::Colours if self.kind == EncodingKind::Indices => {
                // Greys that are stored as RGB are still indices.
                if pixels.as_chunks().0.iter().any(|colour| !is_grey(colour)) {
                    return Err(format!(
                        "colour image, expected a grey or palette image with labels {}",
                        self.index_text
                    ));
                }
                for at in 0..pixels.len() / 3 {
                    pixels[at] = pixels[3 * at];
                }
                pixels.truncate(pixels.len() / 3);
                self.decode_greys(8, width, pixels)
            }
            LabelPixels::Colours => self.decode_colours(width, pixels),
        }
    }

    fn decode_colours(&self, width: usize, pixels: &mut Vec<u8>) -> Result<(), String> {
        // Neighbours mostly have the same colour: remember the last one.
        let mut last = ([0; 3], None);
        for pixel in 0..pixels.len() / 3 {
            let colour = [pixels[3 * pixel], pixels[3 * pixel + 1], pixels[3 * pixel + 2]];
            if last.1.is_none() || last.0 != colour {
                last = (colour, self.class_of_colour(colour, None));
            }
            let Some(class) = last.1 else {
                return Err(format!("unknown label colour {colour:?} at {}", position(pixel, width)));
            };
            pixels[pixel] = class;
        }
        pixels.truncate(pixels.len() / 3);
        Ok(())
    }

    /// 8-bit samples are indices or grey colours, depending on the data set. Samples of fewer bits may be
    /// indices, or 8-bit greys that were stored with fewer bits.
    fn decode_greys(&self, bits: u8, width: usize, pixels: &mut [u8]) -> Result<(), String> {
        let max = (1u32 << bits) - 1;
        // Samples of fewer bits span the same range (PNG, third edition, 13.12).
        let grey = |sample: u8| (u32::from(sample) * 255 / max).min(255) as u8;
        let indices = Interpretation { meaning: PixelMeaning::Index, classes: self.index_classes };
        let greys = Interpretation {
            meaning: PixelMeaning::GreyLevel,
            classes: class_table(|sample| self.index_classes[usize::from(grey(sample))]),
        };
        let colour = |sample: u8| self.class_of_colour([grey(sample); 3], None);
        let colours = Interpretation { meaning: PixelMeaning::Colour, classes: class_table(colour) };
        let indices = if bits < 8 { vec![indices, greys] } else { vec![indices] };
        // Each kind is the fallback of the other.
        let (usual, other) = match self.kind {
            EncodingKind::Indices => (indices, Vec::new()),
            EncodingKind::IndicesOrColours => (indices, vec![colours]),
            EncodingKind::Colours => (vec![colours], indices),
        };
        let used = used(pixels);
        let fits = |interpretations: &[Interpretation]| {
            interpretations.iter().any(|interpretation| interpretation.fits(&used))
        };
        let interpretations = if !fits(&usual) && fits(&other) { other } else { usual };
        let describe = |meaning: PixelMeaning, sample: u8| match meaning {
            PixelMeaning::Colour => format!("colour {:?}", [grey(sample); 3]),
            PixelMeaning::GreyLevel => format!("label {}", grey(sample)),
            PixelMeaning::Index => format!("label {sample}"),
        };
        self.read(&interpretations, None, &describe, width, pixels)
    }

    /// Palette images: by colour if every entry is a class colour, by grey level if the palette is grey but
    /// not an even ramp, else by index.
    fn decode_palette(&self, palette: &[[u8; 3]], width: usize, pixels: &mut [u8]) -> Result<(), String> {
        let colour_of = |at: u8| palette.get(usize::from(at)).copied();
        let all_known = palette.iter().all(|&colour| self.class_of_colour(colour, None).is_some());
        let all_grey = palette.iter().all(is_grey);
        let is_even_ramp = palette.len() > 1
            && palette
                .iter()
                .enumerate()
                .all(|(at, colour)| usize::from(colour[0]).abs_diff(at * 255 / (palette.len() - 1)) <= 1);
        let is_grey_only = all_grey && !is_even_ramp;
        let mut interpretations = Vec::with_capacity(3);
        if !is_grey_only {
            interpretations
                .push(Interpretation { meaning: PixelMeaning::Index, classes: self.index_classes });
        }
        if all_grey {
            let greys =
                class_table(|at| colour_of(at).and_then(|colour| self.index_classes[usize::from(colour[0])]));
            interpretations.push(Interpretation { meaning: PixelMeaning::GreyLevel, classes: greys });
        }
        if !self.colours.is_empty() || !self.index_colours.is_empty() {
            let colours =
                class_table(|at| colour_of(at).and_then(|colour| self.class_of_colour(colour, Some(at))));
            interpretations.push(Interpretation { meaning: PixelMeaning::Colour, classes: colours });
        }
        if self.kind != EncodingKind::Indices {
            // Errors refer to the first interpretation: put the likelier one first.
            interpretations.reverse();
        }
        let preferred = match self.kind {
            EncodingKind::Indices => None,
            EncodingKind::IndicesOrColours if is_grey_only => (!all_known).then_some(PixelMeaning::GreyLevel),
            EncodingKind::IndicesOrColours | EncodingKind::Colours => {
                all_known.then_some(PixelMeaning::Colour)
            }
        };
        let describe = |meaning: PixelMeaning, at: u8| match meaning {
            PixelMeaning::Colour => format!("colour {:?}", colour_of(at).unwrap_or_default()),
            PixelMeaning::GreyLevel => format!("label {}", colour_of(at).unwrap_or_default()[0]),
            PixelMeaning::Index => format!("label {at}"),
        };
        self.read(&interpretations, preferred, &describe, width, pixels)
    }

    /// Maps pixels to classes by the interpretation that fits, or by the preferred one if several fit and
    /// differ.
    fn read(
        &self,
        interpretations: &[Interpretation],
        preferred: Option<PixelMeaning>,
        describe: &dyn Fn(PixelMeaning, u8) -> String,
        width: usize,
        pixels: &mut [u8],
    ) -> Result<(), String> {
        let used = used(pixels);
        let fitting: Vec<&Interpretation> =
            interpretations.iter().filter(|interpretation| interpretation.fits(&used)).collect();
        let chosen = match fitting[..] {
            [] => return Err(self.unknown(&interpretations[0], describe, width, pixels)),
            [first, ..] => {
                let other = fitting.iter().find(|other| !first.agrees(other, &used));
                let preferred =
                    fitting.iter().find(|interpretation| Some(interpretation.meaning) == preferred);
                match (other, preferred) {
                    (None, _) => first,
                    (Some(_), Some(preferred)) => preferred,
                    (Some(other), None) => {
                        return Err(self.ambiguous([first, other], describe, width, pixels));
                    }
                }
            }
        };
        for pixel in pixels {
            // Every used value has a class.
            *pixel = chosen.classes[usize::from(*pixel)].unwrap_or(IGNORED_PIXEL);
        }
        Ok(())
    }

    fn unknown(
        &self,
        interpretation: &Interpretation,
        describe: &dyn Fn(PixelMeaning, u8) -> String,
        width: usize,
        pixels: &[u8],
    ) -> String {
        let unknown = pixels.iter().position(|&value| interpretation.classes[usize::from(value)].is_none());
        let at = unknown.unwrap_or(0);
        let pixel = format!("{} at {}", describe(interpretation.meaning, pixels[at]), position(at, width));
        match interpretation.meaning {
            PixelMeaning::Colour => format!("unknown label {pixel}"),
            PixelMeaning::GreyLevel | PixelMeaning::Index => {
                format!("{pixel} is out of range; labels are {}", self.index_text)
            }
        }
    }

    fn ambiguous(
        &self,
        [one, other]: [&Interpretation; 2],
        describe: &dyn Fn(PixelMeaning, u8) -> String,
        width: usize,
        pixels: &[u8],
    ) -> String {
        let class = |interpretation: &Interpretation, value: u8| match interpretation.classes
            [usize::from(value)]
        {
            Some(class) if class != IGNORED_PIXEL => {
                self.classes.get(usize::from(class)).map_or_else(|| class.to_string(), ToString::to_string)
            }
            _ => "ignored".to_owned(),
        };
        let differ = |&value: &u8| one.classes[usize::from(value)] != other.classes[usize::from(value)];
        let at = pixels.iter().position(differ).unwrap_or(0);
        let describe_meaning = |interpretation: &Interpretation| {
            let (by, value) = (interpretation.meaning.name(), pixels[at]);
            format!(
                "{} by its {by} ({})",
                class(interpretation, value),
                describe(interpretation.meaning, value)
            )
        };
        let remedy = match self.kind {
            EncodingKind::Indices => "as indices in an 8-bit grey image",
            EncodingKind::IndicesOrColours | EncodingKind::Colours => {
                "as colours in an RGB image, or as indices in an 8-bit grey image"
            }
        };
        format!(
            "ambiguous label at {}: {} or {}; store the labels {remedy}",
            position(at, width),
            describe_meaning(one),
            describe_meaning(other)
        )
    }

    /// The class of a colour; `entry` is its index if it is from a palette.
    fn class_of_colour(&self, colour: [u8; 3], entry: Option<u8>) -> Option<u8> {
        let entry = entry.map(usize::from);
        if let Some(index) = entry.filter(|&index| self.index_colours.get(index) == Some(&colour)) {
            return self.index_classes[index];
        }
        let known = self.colours.iter().find(|(known, _)| *known == colour).map(|(_, class)| *class);
        // If several indices share a colour, take the smallest class; `IGNORED_PIXEL` (255) comes last.
        let indices =
            || self.index_colours.iter().zip(self.index_classes).filter(|(known, _)| **known == colour);
        known.or_else(|| indices().filter_map(|(_, class)| class).min())
    }
}

impl Interpretation {
    /// Returns whether every used value has a class.
    fn fits(&self, used: &[bool; 256]) -> bool {
        self.classes.iter().zip(used).all(|(class, used)| !used || class.is_some())
    }

    fn agrees(&self, other: &Self, used: &[bool; 256]) -> bool {
        (0..256).all(|value| !used[value] || self.classes[value] == other.classes[value])
    }
}

fn is_grey(&[red, green, blue]: &[u8; 3]) -> bool {
    red == green && green == blue
}

fn class_table(class_of: impl Fn(u8) -> Option<u8>) -> ClassTable {
    std::array::from_fn(|value| class_of(value as u8))
}

fn used(pixels: &[u8]) -> [bool; 256] {
    let mut used = [false; 256];
    pixels.iter().for_each(|&value| used[usize::from(value)] = true);
    used
}

fn position(pixel: usize, width: usize) -> String {
    format!("row {}, column {}", pixel / width, pixel % width)
}

/// A class table for the ids 0, 1, …, with [`IGNORED_PIXEL`] for `ignored`.
pub(super) const fn class_table_of_ids<const N: usize>(classes: [u8; N], ignored: u8) -> ClassTable {
    let mut values = [None; 256];
    let mut value = 0;
    while value < N {
        values[value] = Some(classes[value]);
        value += 1;
    }
    values[ignored as usize] = Some(IGNORED_PIXEL);
    values
}

/// Converts a label image of class indices to a mask: indices below `classes`, and [`IGNORED_PIXEL`] for
/// ignored pixels.
///
/// # Errors
///
/// Like [`LabelEncoding::decode_mask`].
pub(super) fn decode_index_mask(
    image: &LabelImage,
    classes: usize,
    pixels: &mut Vec<u8>,
) -> Result<(), String> {
    let known = |value: u8| usize::from(value) < classes || value == IGNORED_PIXEL;
    let last = classes.saturating_sub(1);
    let index_text = format!("0 to {last}, and {IGNORED_PIXEL} for ignored");
    let encoding = LabelEncoding {
        classes: &[],
        index_classes: class_table(|value| Some(value).filter(|&value| known(value))),
        index_text: &index_text,
        colours: &[],
        index_colours: &[],
        kind: EncodingKind::Indices,
    };
    encoding.decode_mask(image, pixels)
}
