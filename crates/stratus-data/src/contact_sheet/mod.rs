//! Contact sheets: many small images on one, to inspect the input of a network.

mod font;

use std::collections::BTreeSet;

use crate::buffer::IGNORED_LABEL;
use crate::png_mark;

/// The limits of the longer side of a tile. Images are enlarged or shrunk by a whole factor.
const MIN_TILE_SIDE_PIXELS: usize = 144;
const MAX_TILE_SIDE_PIXELS: usize = 512;
/// The gap between tiles, and the margin.
const TILE_GAP_PIXELS: usize = 12;
/// The gap between an image and its caption.
const CAPTION_GAP_PIXELS: usize = 4;
/// The side of a colour patch of the legend.
const LEGEND_PATCH_PIXELS: usize = 12;
const BACKGROUND: [u8; 3] = [250, 250, 248];
const TEXT_COLOUR: [u8; 3] = [32, 32, 36];
/// The desired width of a sheet, divided by its height.
const TARGET_ASPECT_RATIO: f64 = 1.5;

/// An image of a sheet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Red, green and blue of every pixel, row-major: height × width × 3.
    pub pixels: Vec<u8>,
    /// The class of every pixel, row-major, or [`IGNORED_LABEL`]. It is overlaid in the colours of the
    /// classes.
    pub mask: Option<Vec<i32>>,
    /// The text below the image.
    pub caption: String,
}

/// An RGB image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RgbImage {
    /// Pixels, row-major: height × width × 3.
    pub pixels: Vec<u8>,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

/// Draws tiles of `size` (H, W) in rows, below a title. If tiles have masks, a legend lists their classes.
#[must_use]
pub fn contact_sheet(
    title: &str,
    tiles: &[Tile],
    [height, width]: [usize; 2],
    class_name: impl Fn(usize) -> String,
) -> RgbImage {
    let scale = TileScale::for_side(height.max(width));
    let [tile_height, tile_width] = [height, width].map(|length| scale.scaled(length));
    let font_scale = if tile_width >= 2 * MIN_TILE_SIDE_PIXELS { 2 } else { 1 };
    let line = font::HEIGHT * font_scale;
    let step = [tile_height + CAPTION_GAP_PIXELS + line + TILE_GAP_PIXELS, tile_width + TILE_GAP_PIXELS];
    let columns = column_count(tiles.len(), step);
    let sheet_width = (TILE_GAP_PIXELS + columns * step[1])
        .max(TILE_GAP_PIXELS + title.chars().count() * font::ADVANCE * 2 + TILE_GAP_PIXELS);
    let legend = Legend::new(tiles, class_name, font_scale, sheet_width - 2 * TILE_GAP_PIXELS);
    let head = TILE_GAP_PIXELS + 2 * font::HEIGHT + TILE_GAP_PIXELS;
    let rows = tiles.len().div_ceil(columns);
    let mut sheet = RgbImage::blank(head + rows * step[0] + legend.height(), sheet_width);
    sheet.write(title, [TILE_GAP_PIXELS, TILE_GAP_PIXELS], 2, usize::MAX);
    for (at, tile) in tiles.iter().enumerate() {
        let corner = [head + at / columns * step[0], TILE_GAP_PIXELS + at % columns * step[1]];
        for y in 0..tile_height {
            for x in 0..tile_width {
                let colour = tile.colour([y, x], [height, width], scale);
                sheet.set([corner[0] + y, corner[1] + x], colour);
            }
        }
        sheet.write(
            &tile.caption,
            [corner[0] + tile_height + CAPTION_GAP_PIXELS, corner[1]],
            font_scale,
            tile_width,
        );
    }
    legend.draw(&mut sheet, head + rows * step[0]);
    sheet
}

/// The number of columns that brings the sheet closest to [`TARGET_ASPECT_RATIO`].
fn column_count(tiles: usize, [height, width]: [usize; 2]) -> usize {
    let deviation = |columns: &usize| {
        let ratio = (columns * width) as f64 / (tiles.div_ceil(*columns) * height) as f64;
        if ratio > TARGET_ASPECT_RATIO { ratio / TARGET_ASPECT_RATIO } else { TARGET_ASPECT_RATIO / ratio }
    };
    (1..=tiles).min_by(|one, other| deviation(one).total_cmp(&deviation(other))).unwrap_or(1)
}

/// The factor from an image to its tile.
#[derive(Clone, Copy)]
enum TileScale {
    Enlarge(usize),
    Shrink(usize),
}

impl TileScale {
    fn for_side(longest: usize) -> Self {
        if longest > MAX_TILE_SIDE_PIXELS {
            Self::Shrink(longest.div_ceil(MAX_TILE_SIDE_PIXELS))
        } else {
            Self::Enlarge(MIN_TILE_SIDE_PIXELS.div_ceil(longest.max(1)))
        }
    }

    fn scaled(self, length: usize) -> usize {
        match self {
            Self::Enlarge(times) => length * times,
            Self::Shrink(times) => length.div_ceil(times),
        }
    }

    /// The pixels of the image that become pixel `at` of the tile.
    fn source(self, at: usize, length: usize) -> std::ops::Range<usize> {
        match self {
            Self::Enlarge(times) => at / times..at / times + 1,
            Self::Shrink(times) => at * times..((at + 1) * times).min(length),
        }
    }
}

impl Tile {
    /// The colour of a tile's pixel: the mean of the image's pixels, blended with the colour of the class, or
    /// darkened and striped if there is no class.
    fn colour(&self, [y, x]: [usize; 2], [height, width]: [usize; 2], scale: TileScale) -> [u8; 3] {
        let (rows, columns) = (scale.source(y, height), scale.source(x, width));
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
            Ok(class) => blended(colour, class_colour(class), 128),
            Err(_) if (x + y) % 8 < 2 => blended(colour, [0; 3], 140),
            Err(_) => blended(colour, [0; 3], 60),
        }
    }
}

/// Blends two colours; the weight of the second is `weight` / 256.
fn blended(first: [u8; 3], second: [u8; 3], weight: u32) -> [u8; 3] {
    let mix = |channel: usize| {
        ((u32::from(first[channel]) * (256 - weight) + u32::from(second[channel]) * weight) / 256) as u8
    };
    [mix(0), mix(1), mix(2)]
}

/// The colour of a class: hues a golden section apart, so that neighbours differ, in three shades.
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

/// The classes of the masks: colour patches with names, in columns.
struct Legend {
    entries: Vec<(Option<usize>, String)>,
    font_scale: usize,
    columns: usize,
    step: usize,
}

impl Legend {
    fn new(tiles: &[Tile], class_name: impl Fn(usize) -> String, font_scale: usize, width: usize) -> Self {
        let classes: BTreeSet<i32> =
            tiles.iter().filter_map(|tile| tile.mask.as_ref()).flatten().copied().collect();
        let named = classes.iter().filter_map(|&class| usize::try_from(class).ok());
        let mut entries: Vec<_> = named.map(|class| (Some(class), class_name(class))).collect();
        if classes.contains(&IGNORED_LABEL) {
            entries.push((None, "no class".to_owned()));
        }
        let longest = entries.iter().map(|(_, name)| name.chars().count()).max().unwrap_or(0);
        let step = font_scale * (LEGEND_PATCH_PIXELS + CAPTION_GAP_PIXELS + longest * font::ADVANCE)
            + TILE_GAP_PIXELS;
        Self { entries, font_scale, columns: (width / step).max(1), step }
    }

    fn line(&self) -> usize {
        self.font_scale * (LEGEND_PATCH_PIXELS + CAPTION_GAP_PIXELS)
    }

    fn height(&self) -> usize {
        let rows = self.entries.len().div_ceil(self.columns);
        if rows == 0 { 0 } else { rows * self.line() + TILE_GAP_PIXELS }
    }

    fn draw(&self, sheet: &mut RgbImage, top: usize) {
        let side = self.font_scale * LEGEND_PATCH_PIXELS;
        for (at, (class, name)) in self.entries.iter().enumerate() {
            let corner =
                [top + at / self.columns * self.line(), TILE_GAP_PIXELS + at % self.columns * self.step];
            for y in 0..side {
                for x in 0..side {
                    let colour = match class {
                        Some(class) => class_colour(*class),
                        None if (x + y) % 8 < 2 => [90; 3],
                        None => [160; 3],
                    };
                    sheet.set([corner[0] + y, corner[1] + x], colour);
                }
            }
            let position = [
                corner[0] + (side - 7 * self.font_scale) / 2,
                corner[1] + side + self.font_scale * CAPTION_GAP_PIXELS,
            ];
            sheet.write(name, position, self.font_scale, usize::MAX);
        }
    }
}

impl RgbImage {
    fn blank(height: usize, width: usize) -> Self {
        Self { pixels: BACKGROUND.repeat(height * width), height, width }
    }

    /// Sets the pixel at (row, column) if it is inside the image.
    fn set(&mut self, [y, x]: [usize; 2], colour: [u8; 3]) {
        if x < self.width
            && let Some(pixel) = self.pixels.get_mut(3 * (y * self.width + x)..3 * (y * self.width + x) + 3)
        {
            pixel.copy_from_slice(&colour);
        }
    }

    /// Writes a line of text starting at (row, column), each font pixel `scale` pixels wide and high. Text
    /// wider than `max_width` is truncated with dots.
    fn write(&mut self, line: &str, [top, left]: [usize; 2], scale: usize, max_width: usize) {
        let fit = max_width / (font::ADVANCE * scale);
        let letters = line.chars().count();
        let kept = if letters <= fit { letters } else { fit.saturating_sub(2) };
        let dots = std::iter::repeat_n('.', if letters <= fit { 0 } else { fit.min(2) });
        for (at, letter) in line.chars().take(kept).chain(dots).enumerate() {
            for (row, column) in font::pixels_of(letter) {
                for y in 0..scale {
                    for x in 0..scale {
                        let corner =
                            [top + row * scale + y, left + (at * font::ADVANCE + column) * scale + x];
                        self.set(corner, TEXT_COLOUR);
                    }
                }
            }
        }
    }

    /// Encodes the image as a PNG file, with the mark of [`png_mark`].
    ///
    /// # Errors
    ///
    /// If encoding fails, for example because a side is too long for PNG.
    pub fn to_png(&self) -> Result<Vec<u8>, png::EncodingError> {
        let side = |length: usize| u32::try_from(length).map_err(|_| png::EncodingError::LimitsExceeded);
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, side(self.width)?, side(self.height)?);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.pixels)?;
        writer.finish()?;
        Ok(png_mark::add_mark(&file))
    }
}

/// Encodes a mask as a PNG file with the classes as values, and a palette of their colours. Ignored pixels
/// are 255, black. With `raw` the file is grey, without a palette. It has the mark of [`png_mark`].
///
/// # Errors
///
/// If a class is above 254, or encoding fails.
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
    Ok(png_mark::add_mark(&file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::ImageDecoder;

    fn tile(colour: [u8; 3], mask: Option<Vec<i32>>, caption: &str) -> Tile {
        Tile { pixels: colour.repeat(6), mask, caption: caption.to_owned() }
    }

    fn at(sheet: &RgbImage, y: usize, x: usize) -> [u8; 3] {
        let at = 3 * (y * sheet.width + x);
        sheet.pixels[at..at + 3].try_into().unwrap()
    }

    #[test]
    fn lays_tiles_in_rows_enlarged_by_whole_factors() {
        let tiles: Vec<Tile> = (0..6).map(|number| tile([number * 40, 7, 9], None, "x")).collect();
        let sheet = contact_sheet("six", &tiles, [2, 3], |class| class.to_string());
        let (head, step) = (
            TILE_GAP_PIXELS + 16 + TILE_GAP_PIXELS,
            [2 * 48 + CAPTION_GAP_PIXELS + 8 + TILE_GAP_PIXELS, 3 * 48 + TILE_GAP_PIXELS],
        );
        assert_eq!([sheet.height, sheet.width], [head + 2 * step[0], TILE_GAP_PIXELS + 3 * step[1]]);
        for number in 0..6 {
            let corner = [head + number / 3 * step[0], TILE_GAP_PIXELS + number % 3 * step[1]];
            for (y, x) in [(0, 0), (95, 0), (0, 143), (95, 143), (50, 70)] {
                assert_eq!(at(&sheet, corner[0] + y, corner[1] + x), [number as u8 * 40, 7, 9]);
            }
            assert_eq!(at(&sheet, corner[0] + 96, corner[1]), BACKGROUND);
            assert_eq!(at(&sheet, corner[0] + 50, corner[1] + 144), BACKGROUND);
        }
        // The letter x has a stroke in its third row.
        assert_eq!(at(&sheet, head + 96 + CAPTION_GAP_PIXELS + 2, TILE_GAP_PIXELS), TEXT_COLOUR);
        let png = sheet.to_png().unwrap();
        let mut pixels = Vec::new();
        let decoded = ImageDecoder::default().decode(&png, &mut pixels).unwrap();
        assert_eq!(decoded.shape, [3, sheet.height, sheet.width]);
        assert_eq!(pixels, sheet.pixels);
    }

    #[test]
    fn overlays_masks_and_lists_their_classes() {
        let mask = vec![0, 1, 1, 0, IGNORED_LABEL, 1];
        let tiles = [tile([100, 100, 100], Some(mask), "a caption that is longer than its image is wide")];
        let sheet = contact_sheet("", &tiles, [2, 3], |class| ["sky", "road"][class].to_owned());
        let head = TILE_GAP_PIXELS + 16 + TILE_GAP_PIXELS;
        assert_eq!(at(&sheet, head, TILE_GAP_PIXELS), blended([100; 3], class_colour(0), 128));
        assert_eq!(at(&sheet, head, TILE_GAP_PIXELS + 48), blended([100; 3], class_colour(1), 128));
        assert!(at(&sheet, head + 48, TILE_GAP_PIXELS + 48)[0] < 100);
        let bottom = head + 2 * 48 + CAPTION_GAP_PIXELS + 8 + TILE_GAP_PIXELS;
        let patches: Vec<[u8; 3]> = (bottom..sheet.height)
            .flat_map(|y| (0..sheet.width).map(move |x| (y, x)))
            .map(|(y, x)| at(&sheet, y, x))
            .collect();
        for colour in [class_colour(0), class_colour(1), [160; 3]] {
            let found = patches.iter().filter(|&&patch| patch == colour).count();
            assert!(found >= LEGEND_PATCH_PIXELS * LEGEND_PATCH_PIXELS * 2 / 3, "{colour:?}: {found}");
        }
        let without = contact_sheet("", &[tile([1; 3], None, "")], [2, 3], |class| class.to_string());
        assert_eq!(without.height, bottom);
    }

    #[test]
    fn shrinks_large_images_and_draws_an_empty_sheet() {
        let tiles = [Tile { pixels: vec![80; 1024 * 100 * 3], mask: None, caption: String::new() }];
        let sheet = contact_sheet("", &tiles, [100, 1024], |class| class.to_string());
        assert_eq!(sheet.width, TILE_GAP_PIXELS + 512 + TILE_GAP_PIXELS);
        assert_eq!(at(&sheet, TILE_GAP_PIXELS + 16 + TILE_GAP_PIXELS + 49, TILE_GAP_PIXELS + 511), [80; 3]);
        assert_eq!(
            at(&sheet, TILE_GAP_PIXELS + 16 + TILE_GAP_PIXELS + 50, TILE_GAP_PIXELS + 511),
            BACKGROUND
        );
        assert!(contact_sheet("", &[], [5, 5], |class| class.to_string()).to_png().is_ok());
    }

    #[test]
    fn class_colours_are_distinct() {
        for class in 0..100 {
            for other in 0..class {
                assert_ne!(class_colour(class), class_colour(other), "{class} {other}");
            }
        }
    }
}
