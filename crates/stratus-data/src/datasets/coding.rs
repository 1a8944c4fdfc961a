//! From the pixels of label images to masks.
//!
//! A palette is a way of storing colours, and so are few bits: programs that make PNG files smaller choose
//! among PNG's colour types by the pixels alone. Others store class numbers as places in a palette, whose
//! colours are for looking at. So a file has several readings:
//!
//! ```text
//!   colours   the colour of each pixel, whatever the colour type          CamVid's original files
//!   greys     grey values, also where few bits or a palette store them    8-bit greys, made smaller
//!   numbers   what is stored: samples, or places in the palette           VOC's palettes
//! ```
//!
//! Where one reading alone has a class for every pixel, or all give the same classes, there is nothing to
//! decide. Otherwise the whole palette decides ([`Coding::of_palette`]), or the file is refused: it is not
//! guessed.

use super::IGNORED_PIXEL;
use crate::decode::{LabelImage, LabelPixels};

/// The class of each value of a pixel, [`IGNORED_PIXEL`] for none; `None` where no pixel has the value.
pub(super) type Classes = [Option<u8>; 256];

/// How a data set's label images say classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As numbers.
    Numbers,
    /// As numbers, or as colours.
    NumbersOrColours,
    /// As colours; numbers are taken where the pixels have none of the colours.
    Colours,
}

/// A data set's classes, and how its label images say them.
#[derive(Debug)]
pub(super) struct Coding<'a> {
    /// The classes' names, for messages.
    pub classes: &'a [&'a str],
    /// The class of each number.
    pub values: Classes,
    /// Which numbers there are, for messages.
    pub values_text: &'a str,
    /// The class of each colour.
    pub colours: &'a [([u8; 3], u8)],
    /// The colour of each number, where the data set is known by colours too: a palette of these is as likely
    /// meant as colours.
    pub own: &'a [[u8; 3]],
    pub form: Form,
}

/// One way to read an image of a byte per pixel.
struct Reading {
    by: By,
    classes: Classes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Colour,
    Grey,
    Number,
}

impl By {
    fn name(self) -> &'static str {
        match self {
            Self::Colour => "colour",
            Self::Grey => "grey value",
            Self::Number => "stored number",
        }
    }
}

impl Coding<'_> {
    /// Makes a mask of the pixels of a label image, in place.
    ///
    /// # Errors
    ///
    /// A pixel has no class, or the file can be read in two ways: where, and what to do.
    pub(super) fn mask_of(&self, image: &LabelImage, pixels: &mut Vec<u8>) -> Result<(), String> {
        let width = image.width;
        match &image.pixels {
            LabelPixels::Grey { bits } => self.of_greys(*bits, width, pixels),
            LabelPixels::Palette(palette) => self.of_palette(palette, width, pixels),
            LabelPixels::Colours if self.form == Form::Numbers => {
                // Greys that are stored as colours are numbers still.
                if pixels.as_chunks().0.iter().any(|colour| !is_grey(colour)) {
                    return Err(format!("a colour image; labels are {}, in a grey one", self.values_text));
                }
                for at in 0..pixels.len() / 3 {
                    pixels[at] = pixels[3 * at];
                }
                pixels.truncate(pixels.len() / 3);
                self.of_greys(8, width, pixels)
            }
            LabelPixels::Colours => self.of_colours(width, pixels),
        }
    }

    fn of_colours(&self, width: usize, pixels: &mut Vec<u8>) -> Result<(), String> {
        // Neighbours mostly have the same colour.
        let mut last = ([0; 3], None);
        for pixel in 0..pixels.len() / 3 {
            let colour = [pixels[3 * pixel], pixels[3 * pixel + 1], pixels[3 * pixel + 2]];
            if last.1.is_none() || last.0 != colour {
                last = (colour, self.class_of_colour(colour, None));
            }
            let Some(class) = last.1 else {
                return Err(format!("colour {colour:?} at {} is no class's", place(pixel, width)));
            };
            pixels[pixel] = class;
        }
        pixels.truncate(pixels.len() / 3);
        Ok(())
    }

    /// Samples of 8 bits are numbers or the colours of that grey, by the data set's form. Samples of fewer
    /// may be the numbers themselves, or greys of 8 bits that were made smaller.
    fn of_greys(&self, bits: u8, width: usize, pixels: &mut [u8]) -> Result<(), String> {
        let most = (1u32 << bits) - 1;
        // PNG, third edition, 13.12: samples of fewer bits are spread over the same range.
        let grey = |sample: u8| (u32::from(sample) * 255 / most).min(255) as u8;
        let numbers = Reading { by: By::Number, classes: self.values };
        let greys = Reading { by: By::Grey, classes: table(|sample| self.values[usize::from(grey(sample))]) };
        let colour = |sample: u8| self.class_of_colour([grey(sample); 3], None);
        let colours = Reading { by: By::Colour, classes: table(colour) };
        let numbers = if bits < 8 { vec![numbers, greys] } else { vec![numbers] };
        // Either kind is read where the other does not fit.
        let (usual, other) = match self.form {
            Form::Numbers => (numbers, Vec::new()),
            Form::NumbersOrColours => (numbers, vec![colours]),
            Form::Colours => (vec![colours], numbers),
        };
        let used = used(pixels);
        let fits = |readings: &[Reading]| readings.iter().any(|reading| reading.fits(&used));
        let readings = if !fits(&usual) && fits(&other) { other } else { usual };
        let told = |by: By, sample: u8| match by {
            By::Colour => format!("colour {:?}", [grey(sample); 3]),
            By::Grey => format!("label {}", grey(sample)),
            By::Number => format!("label {sample}"),
        };
        self.read(&readings, None, &told, width, pixels)
    }

    /// Places in a palette. By colour, where all of the palette are class colours and the data set's label
    /// images may be colours. By the greys, where all of it is grey: grey values were made smaller. Unless
    /// the greys are spread evenly from black to white, as programs do to show numbers. By the places, where
    /// it has other colours.
    fn of_palette(&self, palette: &[[u8; 3]], width: usize, pixels: &mut [u8]) -> Result<(), String> {
        let of = |at: u8| palette.get(usize::from(at)).copied();
        let all_known = palette.iter().all(|&colour| self.class_of_colour(colour, None).is_some());
        let all_grey = palette.iter().all(is_grey);
        let spread = palette.len() > 1
            && palette
                .iter()
                .enumerate()
                .all(|(at, colour)| usize::from(colour[0]).abs_diff(at * 255 / (palette.len() - 1)) <= 1);
        let greys_alone = all_grey && !spread;
        let mut readings = Vec::with_capacity(3);
        if !greys_alone {
            readings.push(Reading { by: By::Number, classes: self.values });
        }
        if all_grey {
            let greys = table(|at| of(at).and_then(|colour| self.values[usize::from(colour[0])]));
            readings.push(Reading { by: By::Grey, classes: greys });
        }
        if !self.colours.is_empty() || !self.own.is_empty() {
            let colours = table(|at| of(at).and_then(|colour| self.class_of_colour(colour, Some(at))));
            readings.push(Reading { by: By::Colour, classes: colours });
        }
        if self.form != Form::Numbers {
            // What is wrong is told of the reading that is likelier meant.
            readings.reverse();
        }
        let preferred = match self.form {
            Form::Numbers => None,
            Form::NumbersOrColours if greys_alone => (!all_known).then_some(By::Grey),
            Form::NumbersOrColours | Form::Colours => all_known.then_some(By::Colour),
        };
        let told = |by: By, at: u8| match by {
            By::Colour => format!("colour {:?}", of(at).unwrap_or_default()),
            By::Grey => format!("label {}", of(at).unwrap_or_default()[0]),
            By::Number => format!("label {at}"),
        };
        self.read(&readings, preferred, &told, width, pixels)
    }

    /// Makes classes of pixels, by the reading that fits; by the preferred, where several fit and differ.
    fn read(
        &self,
        readings: &[Reading],
        preferred: Option<By>,
        told: &dyn Fn(By, u8) -> String,
        width: usize,
        pixels: &mut [u8],
    ) -> Result<(), String> {
        let used = used(pixels);
        let fitting: Vec<&Reading> = readings.iter().filter(|reading| reading.fits(&used)).collect();
        let chosen = match fitting[..] {
            [] => return Err(self.unknown(&readings[0], told, width, pixels)),
            [first, ..] => {
                let other = fitting.iter().find(|other| !first.agrees(other, &used));
                let preferred = fitting.iter().find(|reading| Some(reading.by) == preferred);
                match (other, preferred) {
                    (None, _) => first,
                    (Some(_), Some(preferred)) => preferred,
                    (Some(other), None) => return Err(self.ambiguous([first, other], told, width, pixels)),
                }
            }
        };
        for pixel in pixels {
            // Every value that is used has a class.
            *pixel = chosen.classes[usize::from(*pixel)].unwrap_or(IGNORED_PIXEL);
        }
        Ok(())
    }

    fn unknown(
        &self,
        reading: &Reading,
        told: &dyn Fn(By, u8) -> String,
        width: usize,
        pixels: &[u8],
    ) -> String {
        let wrong = pixels.iter().position(|&value| reading.classes[usize::from(value)].is_none());
        let at = wrong.unwrap_or(0);
        let what = format!("{} at {}", told(reading.by, pixels[at]), place(at, width));
        match reading.by {
            By::Colour => format!("{what} is no class's"),
            By::Grey | By::Number => format!("{what} is out of range; labels are {}", self.values_text),
        }
    }

    fn ambiguous(
        &self,
        [one, other]: [&Reading; 2],
        told: &dyn Fn(By, u8) -> String,
        width: usize,
        pixels: &[u8],
    ) -> String {
        let class = |reading: &Reading, value: u8| match reading.classes[usize::from(value)] {
            Some(class) if class != IGNORED_PIXEL => {
                self.classes.get(usize::from(class)).map_or_else(|| class.to_string(), ToString::to_string)
            }
            _ => "no class".to_owned(),
        };
        let differ = |&value: &u8| one.classes[usize::from(value)] != other.classes[usize::from(value)];
        let at = pixels.iter().position(differ).unwrap_or(0);
        let means = |reading: &Reading| {
            let (by, value) = (reading.by.name(), pixels[at]);
            format!("{} by its {by} ({})", class(reading, value), told(reading.by, value))
        };
        let remedy = match self.form {
            Form::Numbers => "as numbers in a grey image of 8 bits",
            Form::NumbersOrColours | Form::Colours => {
                "as colours in an RGB image, or as numbers in a grey one of 8 bits"
            }
        };
        format!(
            "{} is {} and {}: the file can be read in both ways; store its labels {remedy}",
            place(at, width),
            means(one),
            means(other)
        )
    }

    /// The class of a colour, which in a palette has a number too.
    fn class_of_colour(&self, colour: [u8; 3], number: Option<u8>) -> Option<u8> {
        let number = number.map(usize::from);
        if let Some(number) = number.filter(|&number| self.own.get(number) == Some(&colour)) {
            return self.values[number];
        }
        let known = self.colours.iter().find(|(known, _)| *known == colour).map(|(_, class)| *class);
        // Of several numbers of a colour one that has a class, which is the least: none is the greatest.
        let numbers = || self.own.iter().zip(self.values).filter(|(own, _)| **own == colour);
        known.or_else(|| numbers().filter_map(|(_, class)| class).min())
    }
}

impl Reading {
    /// Whether every value that is used has a class.
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

fn table(class_of: impl Fn(u8) -> Option<u8>) -> Classes {
    std::array::from_fn(|value| class_of(value as u8))
}

fn used(pixels: &[u8]) -> [bool; 256] {
    let mut used = [false; 256];
    pixels.iter().for_each(|&value| used[usize::from(value)] = true);
    used
}

fn place(pixel: usize, width: usize) -> String {
    format!("row {}, column {}", pixel / width, pixel % width)
}

/// A table of numbers: the classes of 0, 1, …, and [`IGNORED_PIXEL`] for `ignored`.
pub(super) const fn values_of<const N: usize>(classes: [u8; N], ignored: u8) -> Classes {
    let mut values = [None; 256];
    let mut value = 0;
    while value < N {
        values[value] = Some(classes[value]);
        value += 1;
    }
    values[ignored as usize] = Some(IGNORED_PIXEL);
    values
}

/// Makes a mask of a label image whose numbers are the classes: those below `classes`, and [`IGNORED_PIXEL`]
/// for none.
///
/// # Errors
///
/// As [`Coding::mask_of`].
pub(super) fn mask_of_numbers(
    image: &LabelImage,
    classes: usize,
    pixels: &mut Vec<u8>,
) -> Result<(), String> {
    let known = |value: u8| usize::from(value) < classes || value == IGNORED_PIXEL;
    let last = classes.saturating_sub(1);
    let values_text = format!("0 to {last}, and {IGNORED_PIXEL} for none");
    let coding = Coding {
        classes: &[],
        values: table(|value| Some(value).filter(|&value| known(value))),
        values_text: &values_text,
        colours: &[],
        own: &[],
        form: Form::Numbers,
    };
    coding.mask_of(image, pixels)
}
