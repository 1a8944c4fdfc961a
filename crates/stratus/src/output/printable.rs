//! Names of files and classes in text for people: they come from anywhere, and a terminal would obey some of
//! their characters.

use stratus_base::text::is_printable;

/// The text without characters that control a terminal or change the direction of text: each becomes �.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_printable(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_characters_that_a_terminal_obeys() {
        assert_eq!(printable("a\u{1b}[2J\n\u{85}\u{202e}gpj.köter 水"), "a�[2J���gpj.köter 水");
    }
}
