//! Contact sheets: many small images on one, to inspect the input and the output of a network.

mod font;
mod grid;
mod image;
mod legend;
mod palette;

use self::font::Font;
pub use self::grid::{grid, grid_of_masks, resized, shrunk_size};
pub use self::image::{RgbImage, blended, mask_to_png};
use self::legend::Legend;
pub use self::palette::ClassPalette;
use crate::buffer::IGNORED_LABEL;

/// The limits of the longer side of a tile. Images are enlarged or shrunk by a whole factor.
const MIN_TILE_SIDE_PIXELS: usize = 144;
const MAX_TILE_SIDE_PIXELS: usize = 512;
/// Captions of tiles from this width on have large letters.
const MIN_LARGE_CAPTION_PIXELS: usize = 2 * MIN_TILE_SIDE_PIXELS;
/// The gap between tiles, and the margin.
const TILE_GAP_PIXELS: usize = 12;
/// The gap between an image and its caption.
const CAPTION_GAP_PIXELS: usize = 4;
/// The maximum width that a title adds to a sheet.
const MAX_TITLE_PIXELS: usize = 1600;
const BACKGROUND: [u8; 3] = [250, 250, 248];
const TEXT_COLOUR: [u8; 3] = [32, 32, 36];
/// The desired width of a sheet, divided by its height.
const TARGET_ASPECT_RATIO: f64 = 1.5;

/// In masks of tiles: pixels that no colour is overlaid on.
pub const UNMASKED: i32 = -2;

/// An image of a sheet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tile {
    /// Red, green and blue of every pixel, row-major: height × width × 3.
    pub pixels: Vec<u8>,
    /// The class of every pixel, row-major, [`IGNORED_LABEL`] or [`UNMASKED`]. It is overlaid in the colours
    /// of the classes.
    pub mask: Option<Vec<i32>>,
    /// The file, in the first line below the image, shortened in the middle.
    pub file: String,
    /// The text in the last line, such as the classes.
    pub caption: String,
}

/// The classes of the masks of a sheet.
pub struct SheetClasses<'a> {
    /// The name of a class.
    pub name: &'a dyn Fn(usize) -> String,
    /// Its colour.
    pub palette: &'a ClassPalette,
}

/// Draws tiles of `size` (H, W) in rows, below a title. If tiles have masks, a legend lists their classes.
#[must_use]
pub fn contact_sheet(
    title: &str,
    tiles: &[Tile],
    [height, width]: [usize; 2],
    classes: &SheetClasses<'_>,
) -> RgbImage {
    let scale = TileScale::for_side(height.max(width));
    let [tile_height, tile_width] = [height, width].map(|length| scale.scaled(length));
    let font = if tile_width >= MIN_LARGE_CAPTION_PIXELS { Font::title() } else { Font::caption() };
    // A line for the files and one for the captions, if there are any.
    let lines: [fn(&Tile) -> &str; 2] = [|tile| &tile.file, |tile| &tile.caption];
    let [has_files, has_captions] = lines.map(|line| tiles.iter().any(|tile| !line(tile).is_empty()));
    let line_count = usize::from(has_files) + usize::from(has_captions);
    let captions = CAPTION_GAP_PIXELS + line_count * font.line_height();
    // Texts of narrow images may be wider than these.
    let cell_width = tile_width.max(MIN_TILE_SIDE_PIXELS);
    let step = [tile_height + captions + TILE_GAP_PIXELS, cell_width + TILE_GAP_PIXELS];
    let columns = column_count(tiles.len(), step);
    let title = Font::title().shorten_middle(title, MAX_TITLE_PIXELS);
    let sheet_width = (TILE_GAP_PIXELS + columns * step[1])
        .max(TILE_GAP_PIXELS + Font::title().width(&title) + TILE_GAP_PIXELS);
    let legend = Legend::new(tiles, classes, font, sheet_width - 2 * TILE_GAP_PIXELS);
    let head = TILE_GAP_PIXELS + Font::title().line_height() + TILE_GAP_PIXELS;
    let rows = tiles.len().div_ceil(columns);
    let mut sheet = RgbImage::filled(BACKGROUND, head + rows * step[0] + legend.height(), sheet_width);
    sheet.write(&title, [TILE_GAP_PIXELS, TILE_GAP_PIXELS], Font::title(), TEXT_COLOUR);
    for (at, tile) in tiles.iter().enumerate() {
        let [top, left] = [head + at / columns * step[0], TILE_GAP_PIXELS + at % columns * step[1]];
        for y in 0..tile_height {
            for x in 0..tile_width {
                let colour = tile.colour([y, x], [height, width], scale, classes.palette);
                sheet.set([top + y, left + x], colour);
            }
        }
        let mut line_top = top + tile_height + CAPTION_GAP_PIXELS;
        if has_files {
            let file = font.shorten_middle(&tile.file, cell_width);
            sheet.write(&file, [line_top, left], font, TEXT_COLOUR);
            line_top += font.line_height();
        }
        let caption = font.shorten_end(&tile.caption, cell_width);
        sheet.write(&caption, [line_top, left], font, TEXT_COLOUR);
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

/// The factor from an image to its tile, or to another small version of it.
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
    fn colour(
        &self,
        [y, x]: [usize; 2],
        [height, width]: [usize; 2],
        scale: TileScale,
        palette: &ClassPalette,
    ) -> [u8; 3] {
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
            Ok(class) => blended(colour, palette.colour(class), 128),
            Err(_) if class == UNMASKED => colour,
            Err(_) if (x + y) % 8 < 2 => blended(colour, [0; 3], 140),
            Err(_) => blended(colour, [0; 3], 60),
        }
    }
}

#[cfg(test)]
mod tests;
