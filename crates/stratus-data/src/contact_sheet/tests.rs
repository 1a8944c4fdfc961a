//! The layout of sheets.

use super::*;
use crate::decode::ImageDecoder;

fn tile(colour: [u8; 3], mask: Option<Vec<i32>>, file: &str, caption: &str) -> Tile {
    Tile { pixels: colour.repeat(6), mask, file: file.to_owned(), caption: caption.to_owned() }
}

fn sheet(title: &str, tiles: &[Tile], size: [usize; 2]) -> RgbImage {
    let name = |class: usize| ["sky", "road"].get(class).map_or_else(String::new, |name| (*name).to_owned());
    contact_sheet(title, tiles, size, &SheetClasses { name: &name, palette: &ClassPalette::default() })
}

fn at(sheet: &RgbImage, y: usize, x: usize) -> [u8; 3] {
    let at = 3 * (y * sheet.width + x);
    sheet.pixels[at..at + 3].try_into().unwrap()
}

/// The rows above the first tile.
fn head() -> usize {
    TILE_GAP_PIXELS + Font::title().line_height() + TILE_GAP_PIXELS
}

/// The number of pixels of a region that are not of the background.
fn ink(sheet: &RgbImage, rows: std::ops::Range<usize>, columns: std::ops::Range<usize>) -> usize {
    rows.flat_map(|y| columns.clone().map(move |x| (y, x)))
        .filter(|&(y, x)| at(sheet, y, x) != BACKGROUND)
        .count()
}

#[test]
fn lays_tiles_in_rows_enlarged_by_whole_factors() {
    let tiles: Vec<Tile> = (0..6).map(|number| tile([number * 40, 7, 9], None, "", "x")).collect();
    let sheet = sheet("six", &tiles, [2, 3]);
    let line = Font::caption().line_height();
    let step = [2 * 48 + CAPTION_GAP_PIXELS + line + TILE_GAP_PIXELS, 3 * 48 + TILE_GAP_PIXELS];
    assert_eq!([sheet.height, sheet.width], [head() + 2 * step[0], TILE_GAP_PIXELS + 3 * step[1]]);
    for number in 0..6 {
        let corner = [head() + number / 3 * step[0], TILE_GAP_PIXELS + number % 3 * step[1]];
        for (y, x) in [(0, 0), (95, 0), (0, 143), (95, 143), (50, 70)] {
            assert_eq!(at(&sheet, corner[0] + y, corner[1] + x), [number as u8 * 40, 7, 9]);
        }
        assert_eq!(at(&sheet, corner[0] + 96, corner[1]), BACKGROUND);
        assert_eq!(at(&sheet, corner[0] + 50, corner[1] + 144), BACKGROUND);
        let captions = corner[0] + 96 + CAPTION_GAP_PIXELS;
        assert!(ink(&sheet, captions..captions + line, corner[1]..corner[1] + 20) > 5);
    }
    let png = sheet.to_png().unwrap();
    let mut pixels = Vec::new();
    let decoded = ImageDecoder::default().decode(&png, &mut pixels).unwrap();
    assert_eq!(decoded.shape, [3, sheet.height, sheet.width]);
    assert_eq!(pixels, sheet.pixels);
}

#[test]
fn overlays_masks_and_lists_their_classes() {
    let mask = vec![0, 1, 1, 0, IGNORED_LABEL, 1];
    let tiles = [tile([100, 100, 100], Some(mask), "", "a caption that is longer than its image is wide")];
    let sheet = sheet("", &tiles, [2, 3]);
    let colour = |class| ClassPalette::default().colour(class);
    assert_eq!(at(&sheet, head(), TILE_GAP_PIXELS), blended([100; 3], colour(0), 128));
    assert_eq!(at(&sheet, head(), TILE_GAP_PIXELS + 48), blended([100; 3], colour(1), 128));
    assert!(at(&sheet, head() + 48, TILE_GAP_PIXELS + 48)[0] < 100);
    let bottom = head() + 2 * 48 + CAPTION_GAP_PIXELS + Font::caption().line_height() + TILE_GAP_PIXELS;
    let patches: Vec<[u8; 3]> = (bottom..sheet.height)
        .flat_map(|y| (0..sheet.width).map(move |x| (y, x)))
        .map(|(y, x)| at(&sheet, y, x))
        .collect();
    for colour in [colour(0), colour(1), [160; 3]] {
        let found = patches.iter().filter(|&&patch| patch == colour).count();
        assert!(found >= 100, "{colour:?}: {found}");
    }
    let without = self::sheet("", &[tile([1; 3], None, "", "x")], [2, 3]);
    assert_eq!(without.height, bottom);
}

/// Both lines, however long, with whatever characters, stay below their image.
#[test]
fn texts_stay_below_their_image() {
    let long = "\u{202e}IMG\n\u{1b}[2J<script>水水水".repeat(20);
    let tiles = [
        tile([9; 3], None, &long, &long),
        tile([9; 3], None, "a.jpg", "cat"),
        tile([9; 3], None, "", ""),
        tile([9; 3], None, "", "\u{301}\u{200d}"),
    ];
    let sheet = sheet(&long, &tiles, [2, 3]);
    let line = Font::caption().line_height();
    assert!(sheet.width <= MAX_TITLE_PIXELS + 2 * TILE_GAP_PIXELS);
    let step = [2 * 48 + CAPTION_GAP_PIXELS + 2 * line + TILE_GAP_PIXELS, 144 + TILE_GAP_PIXELS];
    let columns = column_count(tiles.len(), step);
    for number in 0..4 {
        let [top, left] = [head() + number / columns * step[0], TILE_GAP_PIXELS + number % columns * step[1]];
        // Nothing is drawn between the columns, nor below the lines.
        assert_eq!(ink(&sheet, top..top + 96 + CAPTION_GAP_PIXELS + 2 * line, left + 144..left + 155), 0);
        let below = top + 96 + CAPTION_GAP_PIXELS + 2 * line;
        assert_eq!(ink(&sheet, below..(below + TILE_GAP_PIXELS).min(sheet.height), left..left + 144), 0);
        let texts = ink(&sheet, top + 97..below, left..left + 144);
        assert_eq!(texts > 0, number < 2, "{number}: {texts}");
    }
}

#[test]
fn shrinks_large_images_and_draws_an_empty_sheet() {
    let tiles = [Tile { pixels: vec![80; 1024 * 100 * 3], ..Tile::default() }];
    let large = sheet("", &tiles, [100, 1024]);
    assert_eq!(large.width, TILE_GAP_PIXELS + 512 + TILE_GAP_PIXELS);
    assert_eq!(at(&large, head() + 49, TILE_GAP_PIXELS + 511), [80; 3]);
    assert_eq!(at(&large, head() + 50, TILE_GAP_PIXELS + 511), BACKGROUND);
    assert!(sheet("", &[], [5, 5]).to_png().is_ok());
}
