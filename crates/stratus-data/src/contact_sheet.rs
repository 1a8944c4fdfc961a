//! Contact sheets: many small images on one, for people who want to see what a network gets to see.

mod font;

use std::collections::BTreeSet;

use crate::buffer::IGNORED_LABEL;
use crate::png_mark;

/// Images are enlarged to at least so many pixels, and shrunk to at most so many, by a whole factor.
const NARROWEST: usize = 144;
const WIDEST: usize = 512;
/// Between images, and around them.
const GAP: usize = 12;
/// Between an image and its caption.
const CLOSE: usize = 4;
/// A legend's patch of colour.
const PATCH: usize = 12;
const PAPER: [u8; 3] = [250, 250, 248];
const INK: [u8; 3] = [32, 32, 36];
/// Width divided by height that a sheet comes near to.
const SHAPE: f64 = 1.5;

/// An image of a sheet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Red, green and blue of every pixel, row-major: height × width × 3.
    pub pixels: Vec<u8>,
    /// The class of every pixel, row-major, [`IGNORED_LABEL`] where it has none; it is laid over the pixels
    /// in the class's colour.
    pub mask: Option<Vec<i32>>,
    /// What stands below it.
    pub caption: String,
}

/// A picture in red, green and blue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Pixels, row-major: height × width × 3.
    pub pixels: Vec<u8>,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

/// Draws tiles of `size` (H, W) in rows from the left, below a title. Where tiles have masks, a legend names
/// the classes that are met.
#[must_use]
pub fn contact_sheet(
    title: &str,
    tiles: &[Tile],
    [height, width]: [usize; 2],
    class_name: impl Fn(usize) -> String,
) -> Picture {
    let zoom = Zoom::of(height.max(width));
    let [tile_height, tile_width] = [height, width].map(|length| zoom.shown(length));
    let text = if tile_width >= 2 * NARROWEST { 2 } else { 1 };
    let line = font::HEIGHT * text;
    let step = [tile_height + CLOSE + line + GAP, tile_width + GAP];
    let columns = columns_of(tiles.len(), step);
    let sheet_width = (GAP + columns * step[1]).max(GAP + title.chars().count() * font::ADVANCE * 2 + GAP);
    let legend = Legend::new(tiles, class_name, text, sheet_width - 2 * GAP);
    let head = GAP + 2 * font::HEIGHT + GAP;
    let rows = tiles.len().div_ceil(columns);
    let mut sheet = Picture::blank(head + rows * step[0] + legend.height(), sheet_width);
    sheet.write(title, [GAP, GAP], 2, usize::MAX);
    for (at, tile) in tiles.iter().enumerate() {
        let place = [head + at / columns * step[0], GAP + at % columns * step[1]];
        for y in 0..tile_height {
            for x in 0..tile_width {
                let colour = tile.colour([y, x], [height, width], zoom);
                sheet.set([place[0] + y, place[1] + x], colour);
            }
        }
        sheet.write(&tile.caption, [place[0] + tile_height + CLOSE, place[1]], text, tile_width);
    }
    legend.draw(&mut sheet, head + rows * step[0]);
    sheet
}

/// The number of columns that makes a sheet's shape the wanted one.
fn columns_of(tiles: usize, [height, width]: [usize; 2]) -> usize {
    let unlike = |columns: &usize| {
        let shape = (columns * width) as f64 / (tiles.div_ceil(*columns) * height) as f64;
        if shape > SHAPE { shape / SHAPE } else { SHAPE / shape }
    };
    (1..=tiles).min_by(|one, other| unlike(one).total_cmp(&unlike(other))).unwrap_or(1)
}

/// How large images are shown.
#[derive(Clone, Copy)]
enum Zoom {
    In(usize),
    Out(usize),
}

impl Zoom {
    fn of(longest: usize) -> Self {
        if longest > WIDEST {
            Self::Out(longest.div_ceil(WIDEST))
        } else {
            Self::In(NARROWEST.div_ceil(longest.max(1)))
        }
    }

    fn shown(self, length: usize) -> usize {
        match self {
            Self::In(times) => length * times,
            Self::Out(times) => length.div_ceil(times),
        }
    }

    /// The pixels of an image that become one that is shown.
    fn source(self, shown: usize, length: usize) -> std::ops::Range<usize> {
        match self {
            Self::In(times) => shown / times..shown / times + 1,
            Self::Out(times) => shown * times..((shown + 1) * times).min(length),
        }
    }
}

impl Tile {
    /// The colour of a pixel that is shown: the mean of the image's, with half of the class's, or a dark
    /// stripe where there is none.
    fn colour(&self, [y, x]: [usize; 2], [height, width]: [usize; 2], zoom: Zoom) -> [u8; 3] {
        let (rows, columns) = (zoom.source(y, height), zoom.source(x, width));
        let count = rows.len() * columns.len();
        let mut sums = [0usize; 3];
        for row in rows.clone() {
            for column in columns.clone() {
                let at = 3 * (row * width + column);
                for (sum, value) in sums.iter_mut().zip(self.pixels.get(at..at + 3).unwrap_or(&[0; 3])) {
                    *sum += usize::from(*value);
                }
            }
        }
        let colour = sums.map(|sum| (sum / count.max(1)) as u8);
        let Some(mask) = &self.mask else { return colour };
        let class = mask.get(rows.start * width + columns.start).copied().unwrap_or(IGNORED_LABEL);
        match usize::try_from(class) {
            Ok(class) => mixed(colour, class_colour(class), 128),
            Err(_) if (x + y) % 8 < 2 => mixed(colour, [0; 3], 140),
            Err(_) => mixed(colour, [0; 3], 60),
        }
    }
}

/// `part` of 256 of the second colour, the rest of the first.
fn mixed(first: [u8; 3], second: [u8; 3], part: u32) -> [u8; 3] {
    let mix = |channel: usize| {
        ((u32::from(first[channel]) * (256 - part) + u32::from(second[channel]) * part) / 256) as u8
    };
    [mix(0), mix(1), mix(2)]
}

/// A class's colour: hues a golden section apart, so that neighbours differ, in three shades.
#[must_use]
pub fn class_colour(class: usize) -> [u8; 3] {
    let hue = class as f64 * 0.618_033_988_75 % 1.0 * 6.0;
    let (strength, light) = [(0.85, 255.0), (0.6, 230.0), (0.95, 170.0)][class % 3];
    // Hue to red, green and blue: each is full for a third of the circle and rises and falls in a sixth.
    let channel = |middle: f64| {
        let distance = (hue - middle).abs().min(6.0 - (hue - middle).abs());
        let share = (2.0 - distance).clamp(0.0, 1.0);
        (light * (1.0 - strength * (1.0 - share))).round() as u8
    };
    [channel(0.0), channel(2.0), channel(4.0)]
}

/// The classes of a sheet's masks: patches of colour with names, in columns.
struct Legend {
    entries: Vec<(Option<usize>, String)>,
    text: usize,
    columns: usize,
    step: usize,
}

impl Legend {
    fn new(tiles: &[Tile], class_name: impl Fn(usize) -> String, text: usize, width: usize) -> Self {
        let met: BTreeSet<i32> =
            tiles.iter().filter_map(|tile| tile.mask.as_ref()).flatten().copied().collect();
        let named = met.iter().filter_map(|&class| usize::try_from(class).ok());
        let mut entries: Vec<_> = named.map(|class| (Some(class), class_name(class))).collect();
        if met.contains(&IGNORED_LABEL) {
            entries.push((None, "no class".to_owned()));
        }
        let longest = entries.iter().map(|(_, name)| name.chars().count()).max().unwrap_or(0);
        let step = text * (PATCH + CLOSE + longest * font::ADVANCE) + GAP;
        Self { entries, text, columns: (width / step).max(1), step }
    }

    fn line(&self) -> usize {
        self.text * (PATCH + CLOSE)
    }

    fn height(&self) -> usize {
        let rows = self.entries.len().div_ceil(self.columns);
        if rows == 0 { 0 } else { rows * self.line() + GAP }
    }

    fn draw(&self, sheet: &mut Picture, top: usize) {
        let side = self.text * PATCH;
        for (at, (class, name)) in self.entries.iter().enumerate() {
            let place = [top + at / self.columns * self.line(), GAP + at % self.columns * self.step];
            for y in 0..side {
                for x in 0..side {
                    let colour = match class {
                        Some(class) => class_colour(*class),
                        None if (x + y) % 8 < 2 => [90; 3],
                        None => [160; 3],
                    };
                    sheet.set([place[0] + y, place[1] + x], colour);
                }
            }
            let text = [place[0] + (side - 7 * self.text) / 2, place[1] + side + self.text * CLOSE];
            sheet.write(name, text, self.text, usize::MAX);
        }
    }
}

impl Picture {
    fn blank(height: usize, width: usize) -> Self {
        Self { pixels: PAPER.repeat(height * width), height, width }
    }

    /// Sets the pixel at (row, column), where there is one.
    fn set(&mut self, [y, x]: [usize; 2], colour: [u8; 3]) {
        if x < self.width
            && let Some(pixel) = self.pixels.get_mut(3 * (y * self.width + x)..3 * (y * self.width + x) + 3)
        {
            pixel.copy_from_slice(&colour);
        }
    }

    /// Writes a line from (row, column) on, each pixel of a letter `size` wide and high; what is wider than
    /// `room` ends in dots.
    fn write(&mut self, line: &str, [top, left]: [usize; 2], size: usize, room: usize) {
        let fit = room / (font::ADVANCE * size);
        let letters = line.chars().count();
        let shown = if letters <= fit { letters } else { fit.saturating_sub(2) };
        let dots = std::iter::repeat_n('.', if letters <= fit { 0 } else { fit.min(2) });
        for (at, letter) in line.chars().take(shown).chain(dots).enumerate() {
            for (row, column) in font::pixels_of(letter) {
                for y in 0..size {
                    for x in 0..size {
                        let place = [top + row * size + y, left + (at * font::ADVANCE + column) * size + x];
                        self.set(place, INK);
                    }
                }
            }
        }
    }

    /// The picture as a PNG file, with the mark of [`png_mark`].
    ///
    /// # Errors
    ///
    /// What the encoder says, as of sizes that PNG does not have.
    pub fn to_png(&self) -> Result<Vec<u8>, png::EncodingError> {
        let side = |length: usize| u32::try_from(length).map_err(|_| png::EncodingError::LimitsExceeded);
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, side(self.width)?, side(self.height)?);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.pixels)?;
        writer.finish()?;
        Ok(png_mark::marked(&file))
    }
}

/// A mask as a PNG file whose values are the classes, with a palette of their colours; pixels of no class are
/// 255, black. With `raw` it is grey: the values alone. The file has the mark of
/// [`png_mark`].
///
/// # Errors
///
/// Where there are more than 255 classes, or what the encoder says.
pub fn mask_to_png(
    mask: &[i32],
    [height, width]: [usize; 2],
    raw: bool,
) -> Result<Vec<u8>, png::EncodingError> {
    let side = |length: usize| u32::try_from(length).map_err(|_| png::EncodingError::LimitsExceeded);
    let value = |&class: &i32| match class {
        IGNORED_LABEL => Ok(u8::MAX),
        class => u8::try_from(class).map_err(|_| png::EncodingError::LimitsExceeded),
    };
    let values = mask.iter().map(value).collect::<Result<Vec<u8>, _>>()?;
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, side(width)?, side(height)?);
    encoder.set_depth(png::BitDepth::Eight);
    if raw {
        encoder.set_color(png::ColorType::Grayscale);
    } else {
        encoder.set_color(png::ColorType::Indexed);
        let colours = (0..usize::from(u8::MAX)).map(class_colour).chain([[0; 3]]);
        encoder.set_palette(colours.flatten().collect::<Vec<u8>>());
    }
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&values)?;
    writer.finish()?;
    Ok(png_mark::marked(&file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::ImageDecoder;

    fn tile(colour: [u8; 3], mask: Option<Vec<i32>>, caption: &str) -> Tile {
        Tile { pixels: colour.repeat(6), mask, caption: caption.to_owned() }
    }

    fn at(sheet: &Picture, y: usize, x: usize) -> [u8; 3] {
        let at = 3 * (y * sheet.width + x);
        sheet.pixels[at..at + 3].try_into().unwrap()
    }

    #[test]
    fn tiles_stand_in_rows_and_are_enlarged_by_whole_factors() {
        let tiles: Vec<Tile> = (0..6).map(|number| tile([number * 40, 7, 9], None, "x")).collect();
        let sheet = contact_sheet("six", &tiles, [2, 3], |class| class.to_string());
        let (head, step) = (GAP + 16 + GAP, [2 * 48 + CLOSE + 8 + GAP, 3 * 48 + GAP]);
        assert_eq!([sheet.height, sheet.width], [head + 2 * step[0], GAP + 3 * step[1]]);
        for number in 0..6 {
            let place = [head + number / 3 * step[0], GAP + number % 3 * step[1]];
            for (y, x) in [(0, 0), (95, 0), (0, 143), (95, 143), (50, 70)] {
                assert_eq!(at(&sheet, place[0] + y, place[1] + x), [number as u8 * 40, 7, 9]);
            }
            assert_eq!(at(&sheet, place[0] + 96, place[1]), PAPER);
            assert_eq!(at(&sheet, place[0] + 50, place[1] + 144), PAPER);
        }
        // The letter x has a stroke in its third row.
        assert_eq!(at(&sheet, head + 96 + CLOSE + 2, GAP), INK);
        let png = sheet.to_png().unwrap();
        let mut pixels = Vec::new();
        let decoded = ImageDecoder::default().decode(&png, &mut pixels).unwrap();
        assert_eq!(decoded.shape, [3, sheet.height, sheet.width]);
        assert_eq!(pixels, sheet.pixels);
    }

    #[test]
    fn masks_are_laid_over_and_explained() {
        let mask = vec![0, 1, 1, 0, IGNORED_LABEL, 1];
        let tiles = [tile([100, 100, 100], Some(mask), "a caption that is longer than its image is wide")];
        let sheet = contact_sheet("", &tiles, [2, 3], |class| ["sky", "road"][class].to_owned());
        let head = GAP + 16 + GAP;
        assert_eq!(at(&sheet, head, GAP), mixed([100; 3], class_colour(0), 128));
        assert_eq!(at(&sheet, head, GAP + 48), mixed([100; 3], class_colour(1), 128));
        assert!(at(&sheet, head + 48, GAP + 48)[0] < 100);
        let bottom = head + 2 * 48 + CLOSE + 8 + GAP;
        let patches: Vec<[u8; 3]> = (bottom..sheet.height)
            .flat_map(|y| (0..sheet.width).map(move |x| (y, x)))
            .map(|(y, x)| at(&sheet, y, x))
            .collect();
        for colour in [class_colour(0), class_colour(1), [160; 3]] {
            let found = patches.iter().filter(|&&patch| patch == colour).count();
            assert!(found >= PATCH * PATCH * 2 / 3, "{colour:?}: {found}");
        }
        let without = contact_sheet("", &[tile([1; 3], None, "")], [2, 3], |class| class.to_string());
        assert_eq!(without.height, bottom);
    }

    #[test]
    fn large_images_are_shrunk_and_none_is_a_sheet_too() {
        let tiles = [Tile { pixels: vec![80; 1024 * 100 * 3], mask: None, caption: String::new() }];
        let sheet = contact_sheet("", &tiles, [100, 1024], |class| class.to_string());
        assert_eq!(sheet.width, GAP + 512 + GAP);
        assert_eq!(at(&sheet, GAP + 16 + GAP + 49, GAP + 511), [80; 3]);
        assert_eq!(at(&sheet, GAP + 16 + GAP + 50, GAP + 511), PAPER);
        assert!(contact_sheet("", &[], [5, 5], |class| class.to_string()).to_png().is_ok());
    }

    #[test]
    fn colours_of_classes_differ() {
        for class in 0..100 {
            for other in 0..class {
                assert_ne!(class_colour(class), class_colour(other), "{class} {other}");
            }
        }
    }
}
