//! Numbers and words as people and shells read them.

/// Four significant digits.
#[must_use]
pub fn significant(number: f64) -> String {
    format!("{number:.3e}").parse::<f64>().map_or_else(|_| number.to_string(), |number| number.to_string())
}

/// A word of a Bourne shell that stands for the text, whatever is in it but NUL.
#[must_use]
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// The same for people to read and copy: quoted only where a shell would read it otherwise.
#[must_use]
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/=,:@%+".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) { text.to_owned() } else { quoted(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_that_say_nothing_are_left_out() {
        assert_eq!(
            [0.1 / 3.0, 0.025, 12345.6, f64::NAN].map(significant),
            ["0.03333", "0.025", "12350", "NaN"]
        );
    }

    #[test]
    fn words_are_quoted_where_a_shell_needs_it() {
        assert_eq!(shell_word("data.path=../photographs"), "data.path=../photographs");
        assert_eq!(shell_word("data.shape=[1, 2]"), "'data.shape=[1, 2]'");
        assert_eq!(shell_word(""), "''");
        assert_eq!(quoted("it's $HOME"), "'it'\\''s $HOME'");
    }
}
