//! The legend of a sheet: the classes of its masks, as colour patches with names, in columns.

use std::collections::BTreeSet;

use super::font::Font;
use super::image::RgbImage;
use super::{CAPTION_GAP_PIXELS, SheetClasses, TEXT_COLOUR, TILE_GAP_PIXELS, Tile};
use crate::buffer::IGNORED_LABEL;

/// The maximum width of a class's name, in pixels.
const MAX_NAME_PIXELS: usize = 320;

pub(super) struct Legend {
    /// The colour and the name of each class; no colour for pixels without a class.
    entries: Vec<(Option<[u8; 3]>, String)>,
    font: &'static Font,
    columns: usize,
    /// The distance from one column to the next.
    step: usize,
}

impl Legend {
    /// The legend of the classes in the masks of tiles, at most `width` pixels wide if possible.
    pub(super) fn new(tiles: &[Tile], classes: &SheetClasses<'_>, font: &'static Font, width: usize) -> Self {
        let found: BTreeSet<i32> =
            tiles.iter().filter_map(|tile| tile.mask.as_ref()).flatten().copied().collect();
        let named = found.iter().filter_map(|&class| usize::try_from(class).ok());
        let mut entries: Vec<_> = named
            .map(|class| {
                let name = font.shorten_end(&(classes.name)(class), MAX_NAME_PIXELS);
                (Some(classes.palette.colour(class)), name)
            })
            .collect();
        if found.contains(&IGNORED_LABEL) {
            entries.push((None, "no class".to_owned()));
        }
        let longest = entries.iter().map(|(_, name)| font.width(name)).max().unwrap_or(0);
        let step = font.line_height() + CAPTION_GAP_PIXELS + longest + TILE_GAP_PIXELS;
        Self { entries, font, columns: (width / step).max(1), step }
    }

    fn line(&self) -> usize {
        self.font.line_height() + CAPTION_GAP_PIXELS
    }

    pub(super) fn height(&self) -> usize {
        let rows = self.entries.len().div_ceil(self.columns);
        if rows == 0 { 0 } else { rows * self.line() + TILE_GAP_PIXELS }
    }

    /// Draws the legend from row `top` of a sheet.
    pub(super) fn draw(&self, sheet: &mut RgbImage, top: usize) {
        // A patch is as high as a line, less a gap.
        let side = self.font.line_height() - CAPTION_GAP_PIXELS;
        for (at, (colour, name)) in self.entries.iter().enumerate() {
            let corner =
                [top + at / self.columns * self.line(), TILE_GAP_PIXELS + at % self.columns * self.step];
            for y in 0..side {
                for x in 0..side {
                    let colour = match colour {
                        Some(colour) => *colour,
                        None if (x + y) % 8 < 2 => [90; 3],
                        None => [160; 3],
                    };
                    sheet.set([corner[0] + CAPTION_GAP_PIXELS / 2 + y, corner[1] + x], colour);
                }
            }
            let position = [corner[0], corner[1] + self.font.line_height()];
            sheet.write(name, position, self.font, TEXT_COLOUR);
        }
    }
}
