//! Numbers and words formatted for people and shells.

/// Formats a number with four significant digits.
#[must_use]
pub fn significant(number: f64) -> String {
    format!("{number:.3e}").parse::<f64>().map_or_else(|_| number.to_string(), |number| number.to_string())
}

/// Quotes a text as a word of a Bourne shell. The text must not contain NUL.
#[must_use]
pub fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Quotes a text as a word of a Bourne shell only if necessary, for people to read and copy.
#[must_use]
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/=,:@%+".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) { text.to_owned() } else { shell_quoted(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_four_significant_digits() {
        assert_eq!(
            [0.1 / 3.0, 0.025, 12345.6, f64::NAN].map(significant),
            ["0.03333", "0.025", "12350", "NaN"]
        );
    }

    #[test]
    fn quotes_shell_words_only_if_necessary() {
        assert_eq!(shell_word("data.path=../photographs"), "data.path=../photographs");
        assert_eq!(shell_word("data.shape=[1, 2]"), "'data.shape=[1, 2]'");
        assert_eq!(shell_word(""), "''");
        assert_eq!(shell_quoted("it's $HOME"), "'it'\\''s $HOME'");
    }
}
