//! A bitmap font of 5×8 pixels, drawn in `font.txt`: 16 letters per row, from the space to the tilde, and a
//! box for all other characters.

/// The distance from one letter to the next, in pixels.
pub(super) const ADVANCE: usize = 6;
/// The height of a line in pixels; descenders use the last row.
pub(super) const HEIGHT: usize = 8;

const FONT_BITMAP: &str = include_str!("font.txt");
const LETTERS_IN_ROW: usize = 16;
/// The position of the box.
const FALLBACK_GLYPH: usize = 95;

/// The set pixels (row, column) of a letter.
pub(super) fn pixels_of(letter: char) -> impl Iterator<Item = (usize, usize)> {
    let index = match letter {
        ' '..='~' => letter as usize - usize::from(b' '),
        _ => FALLBACK_GLYPH,
    };
    let lines = FONT_BITMAP.lines().skip(index / LETTERS_IN_ROW * (HEIGHT + 1)).take(HEIGHT);
    let first = index % LETTERS_IN_ROW * ADVANCE;
    lines.enumerate().flat_map(move |(row, line)| {
        let pixels = line.bytes().skip(first).take(ADVANCE - 1).enumerate();
        pixels.filter(|(_, pixel)| *pixel == b'#').map(move |(column, _)| (row, column))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn font_bitmap_has_a_cell_for_every_letter() {
        let lines: Vec<&str> = FONT_BITMAP.lines().collect();
        assert_eq!(lines.len(), 6 * (HEIGHT + 1) - 1);
        for (at, line) in lines.iter().enumerate() {
            let width = if at % (HEIGHT + 1) == HEIGHT { 0 } else { LETTERS_IN_ROW * ADVANCE - 1 };
            assert_eq!(line.len(), width, "line {at}");
        }
    }

    #[test]
    fn letters_are_distinct() {
        let mut seen = std::collections::HashSet::new();
        for letter in (' '..='~').chain(['ö']) {
            assert!(seen.insert(pixels_of(letter).collect::<Vec<_>>()), "{letter}");
        }
        assert_eq!(pixels_of(' ').count(), 0);
        assert_eq!(pixels_of('ö').collect::<Vec<_>>(), pixels_of('水').collect::<Vec<_>>());
        assert_eq!(pixels_of('-').collect::<Vec<_>>(), [(3, 1), (3, 2), (3, 3)]);
    }
}
