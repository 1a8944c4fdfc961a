//! The font of sheets, in two sizes: anti-aliased letters of Latin, Greek and Cyrillic, rendered from Source
//! Sans Pro (its licence is beside this file) by `scripts/make-font.py`, which describes the format.
//!
//! Names of files and classes come from anywhere: characters without a letter are drawn as a box, and those
//! that change the direction or the width of other text are not drawn.

use std::io::Read;
use std::sync::OnceLock;

use flate2::read::ZlibDecoder;

const FONT_DATA: &[u8] = include_bytes!("font.bin");
/// The coverage of a pixel that a letter covers whole.
pub(super) const FULL_COVERAGE: u8 = 15;
/// The mark of shortened text.
const ELLIPSIS: char = '…';

/// A letter.
#[derive(Debug)]
pub(super) struct Glyph {
    /// The distance to the next letter, in pixels.
    advance: usize,
    /// The columns from the position of the letter to its box, plus [`LEFT_OFFSET`].
    left: usize,
    /// The rows from the top of the line to its box.
    top: usize,
    width: usize,
    /// The coverage of each pixel of the box, row-major, 0 to [`FULL_COVERAGE`].
    coverage: Vec<u8>,
}

/// The letters of one size.
#[derive(Debug)]
pub(super) struct Font {
    /// The height of a line in pixels.
    line_height: usize,
    /// The code points of the letters, ascending.
    points: Vec<u16>,
    glyphs: Vec<Glyph>,
    /// The letter for other characters.
    unknown: Glyph,
}

/// Added to [`Glyph::left`], because a box may begin left of the position of its letter.
const LEFT_OFFSET: usize = 128;

impl Font {
    /// The font of captions.
    pub(super) fn caption() -> &'static Self {
        &fonts()[0]
    }

    /// The font of titles, and of captions of large images.
    pub(super) fn title() -> &'static Self {
        &fonts()[1]
    }

    /// The height of a line in pixels.
    pub(super) fn line_height(&self) -> usize {
        self.line_height
    }

    fn glyph(&self, letter: char) -> &Glyph {
        let point = u16::try_from(u32::from(letter)).ok();
        let at = point.and_then(|point| self.points.binary_search(&point).ok());
        at.and_then(|at| self.glyphs.get(at)).unwrap_or(&self.unknown)
    }

    /// The width of a text in pixels.
    pub(super) fn width(&self, text: &str) -> usize {
        text.chars().filter(|&letter| is_drawn(letter)).map(|letter| self.glyph(letter).advance).sum()
    }

    /// The covered pixels of a text: row, column and coverage.
    pub(super) fn pixels<'a>(&'a self, text: &'a str) -> impl Iterator<Item = ([usize; 2], u8)> + 'a {
        let mut at = 0;
        let placed = text.chars().filter(|&letter| is_drawn(letter)).map(move |letter| {
            let glyph = self.glyph(letter);
            let column = at;
            at += glyph.advance;
            (column, glyph)
        });
        placed.flat_map(|(column, glyph)| {
            let covered = glyph.coverage.iter().enumerate().filter(|&(_, &coverage)| coverage > 0);
            covered.filter_map(move |(pixel, &coverage)| {
                let x = (column + glyph.left + pixel % glyph.width).checked_sub(LEFT_OFFSET)?;
                Some(([glyph.top + pixel / glyph.width, x], coverage))
            })
        })
    }

    /// The text, shortened at its end to a maximum width.
    pub(super) fn shorten_end(&self, text: &str, max_width: usize) -> String {
        self.shorten(text, max_width, |_| 0)
    }

    /// The text, shortened in its middle to a maximum width: names of files differ at their ends.
    pub(super) fn shorten_middle(&self, text: &str, max_width: usize) -> String {
        self.shorten(text, max_width, |space| space / 2)
    }

    /// Keeps the beginning of a text, and of its end the letters that fit into `tail_width` of the space.
    fn shorten(&self, text: &str, max_width: usize, tail_width: impl Fn(usize) -> usize) -> String {
        if self.width(text) <= max_width {
            return text.to_owned();
        }
        let Some(space) = max_width.checked_sub(self.glyph(ELLIPSIS).advance) else { return String::new() };
        let fitting = |letters: &mut dyn Iterator<Item = char>, mut space: usize| -> Vec<char> {
            letters
                .filter(|&letter| is_drawn(letter))
                .map_while(|letter| {
                    space = space.checked_sub(self.glyph(letter).advance)?;
                    Some(letter)
                })
                .collect()
        };
        let tail = fitting(&mut text.chars().rev(), tail_width(space));
        let tail: String = tail.into_iter().rev().collect();
        let head = fitting(&mut text.chars(), space - self.width(&tail));
        head.into_iter().chain([ELLIPSIS]).chain(tail.chars()).collect()
    }
}

/// Returns whether a character takes part in the layout. Not drawn are marks that are combined with the
/// letter before them, joiners, and the characters that set the direction of text.
fn is_drawn(letter: char) -> bool {
    !matches!(letter,
        '\u{ad}' | '\u{300}'..='\u{36f}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
        | '\u{e0000}'..='\u{e0fff}')
}

/// Both sizes.
fn fonts() -> &'static [Font; 2] {
    static FONTS: OnceLock<[Font; 2]> = OnceLock::new();
    FONTS.get_or_init(|| {
        let mut data = Vec::new();
        // The data are part of the program; a test reads them.
        let is_read = ZlibDecoder::new(FONT_DATA).read_to_end(&mut data).is_ok();
        let fonts = if is_read { parse(&data) } else { None };
        fonts.unwrap_or_else(|| [15, 21].map(|line| Font::new(line, line, Vec::new(), Vec::new())))
    })
}

impl Font {
    fn new(line_height: usize, baseline: usize, points: Vec<u16>, glyphs: Vec<Glyph>) -> Self {
        // A box of two thirds of a line, between the baseline and the height of capitals.
        let [height, width] = [(baseline * 2 / 3).max(3), (baseline / 2).max(3)];
        let is_edge = |at: usize, length: usize| at == 0 || at + 1 == length;
        let coverage = (0..height * width)
            .map(|pixel| {
                let edge = is_edge(pixel / width, height) || is_edge(pixel % width, width);
                if edge { FULL_COVERAGE } else { 0 }
            })
            .collect();
        let unknown = Glyph {
            advance: width + 2,
            left: LEFT_OFFSET + 1,
            top: baseline.saturating_sub(height),
            width,
            coverage,
        };
        Self { line_height, points, glyphs, unknown }
    }
}

/// Reads both sizes.
fn parse(data: &[u8]) -> Option<[Font; 2]> {
    let (count, rest) = data.split_first_chunk()?;
    let count = usize::from(u16::from_le_bytes(*count));
    let (points, mut rest) = rest.split_at_checked(2 * count)?;
    let points: Vec<u16> = points.as_chunks().0.iter().map(|&point| u16::from_le_bytes(point)).collect();
    let mut font = || {
        let ([line_height, baseline], mut glyph_data) = rest.split_first_chunk::<2>()?;
        let mut glyphs = Vec::with_capacity(count);
        for _ in 0..count {
            let (numbers, pixels) = glyph_data.split_first_chunk::<5>()?;
            let [advance, left, top, width, height] = numbers.map(usize::from);
            let (packed, after) = pixels.split_at_checked((width * height).div_ceil(2))?;
            glyph_data = after;
            let mut coverage: Vec<u8> = packed.iter().flat_map(|pair| [pair >> 4, pair & 15]).collect();
            coverage.truncate(width * height);
            glyphs.push(Glyph { advance, left, top, width, coverage });
        }
        rest = glyph_data;
        Some(Font::new(usize::from(*line_height), usize::from(*baseline), points.clone(), glyphs))
    };
    let fonts = [font()?, font()?];
    rest.is_empty().then_some(fonts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(letter: char) -> Vec<([usize; 2], u8)> {
        let text = letter.to_string();
        Font::caption().pixels(&text).collect()
    }

    #[test]
    fn letters_of_latin_are_distinct_and_fit_into_a_line() {
        let unknown = drawn('水');
        assert!(!unknown.is_empty());
        for font in [Font::caption(), Font::title()] {
            assert!(font.points.len() > 500 && font.points.is_sorted());
            for letter in ('!'..='~').chain('¡'..='ž').filter(|letter| *letter != '\u{ad}') {
                if letter.is_control() || letter == '\u{a0}' {
                    continue;
                }
                let text = letter.to_string();
                let pixels: Vec<_> = font.pixels(&text).collect();
                assert!(!pixels.is_empty() && font.width(&text) > 0, "{letter:?}");
                assert!(pixels.iter().all(|([row, _], _)| *row < font.line_height()), "{letter:?}");
            }
        }
        let mut seen = std::collections::HashSet::new();
        for letter in ('!'..='~').chain("äöüßéèñçłżčőřśøåÅÆŒœ€".chars()) {
            assert!(drawn(letter) != unknown, "{letter}");
            assert!(seen.insert(drawn(letter)), "{letter}");
        }
    }

    #[test]
    fn unknown_and_control_characters_are_boxes_and_marks_are_not_drawn() {
        let font = Font::caption();
        for letter in ['\n', '\u{1b}', '\0', '水', '🦀', '\u{85}'] {
            assert_eq!(drawn(letter), drawn('\u{10ffff}'), "{letter:?}");
        }
        for letter in ['\u{202e}', '\u{200d}', '\u{301}', '\u{feff}', '\u{2066}', '\u{ad}'] {
            assert_eq!((drawn(letter), font.width(&letter.to_string())), (vec![], 0), "{letter:?}");
        }
        // A decomposed letter, as file systems of macOS store it.
        assert_eq!(font.width("e\u{301}"), font.width("e"));
    }

    #[test]
    fn shortens_text_to_a_width() {
        for font in [Font::caption(), Font::title()] {
            let name = "IMG_20240501_123015_panorama.jpeg";
            assert_eq!(font.shorten_middle(name, font.width(name)), name);
            for width in [0, 5, 40, 100, 150] {
                let middle = font.shorten_middle(name, width);
                let end = font.shorten_end(name, width);
                assert!(font.width(&middle) <= width && font.width(&end) <= width, "{middle} {end}");
            }
            let middle = font.shorten_middle(name, 120);
            assert!(middle.starts_with("IMG") && middle.ends_with("peg") && middle.contains('…'), "{middle}");
            let end = font.shorten_end(name, 120);
            assert!(end.starts_with("IMG_20") && end.ends_with('…'), "{end}");
        }
    }
}
