//! Names of files and classes in text for people: they come from anywhere, and a terminal would obey some of
//! their characters.

/// The text without characters that control a terminal or change the direction of text: each becomes �.
pub fn printable(text: &str) -> String {
    let is_obeyed = |letter: char| {
        letter.is_control()
            || matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|letter| if is_obeyed(letter) { char::REPLACEMENT_CHARACTER } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_characters_that_a_terminal_obeys() {
        assert_eq!(printable("a\u{1b}[2J\n\u{85}\u{202e}gpj.köter 水"), "a�[2J���gpj.köter 水");
    }
}
