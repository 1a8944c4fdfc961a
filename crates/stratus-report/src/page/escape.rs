//! Escaping of text in HTML and SVG.

/// Escapes text for content and quoted attributes.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Control characters are not allowed in HTML; others make text look like another one.
            letter if letter.is_control() && !letter.is_whitespace() || is_bidi_control(letter) => {
                escaped.push('\u{fffd}');
            }
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// Returns whether a character is a bidirectional embedding, override or isolate, which would change the
/// order in which the text after it is shown.
fn is_bidi_control(letter: char) -> bool {
    matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn text_has_no_markup_and_no_control_characters() {
        assert_eq!(escape("<img onerror='x'>&\"\u{7}"), "&lt;img onerror=&#39;x&#39;&gt;&amp;&quot;\u{fffd}");
        for letter in ('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}') {
            assert_eq!(escape(&format!("cat{letter}gpj.exe")), "cat\u{fffd}gpj.exe", "{letter:?}");
        }
        assert_eq!(escape("שלום \u{200f}é"), "שלום \u{200f}é", "right-to-left text stays as it is");
    }
}
