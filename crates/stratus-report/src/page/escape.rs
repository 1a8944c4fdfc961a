//! Text in HTML, SVG and JSON documents: no markup, and no characters that hide something.

use std::str::Chars;

/// The character in place of one that must not be shown.
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

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
            letter => escaped.push(shown(letter)),
        }
    }
    escaped
}

/// A JSON document whose texts a script may show as they are: the characters that [`escape`] replaces in HTML
/// are replaced, also those that the document has as escape sequences.
#[must_use]
pub fn showable_json(json: String) -> String {
    if json.chars().all(|letter| letter != '\\' && shown(letter) == letter) {
        return json;
    }
    let mut showable = String::with_capacity(json.len());
    let mut rest = json.chars();
    while let Some(letter) = rest.next() {
        match letter {
            '\\' => push_escape_sequence(&mut showable, &mut rest),
            letter => showable.push(shown(letter)),
        }
    }
    showable
}

/// Copies an escape sequence of JSON, whose backslash was read, or pushes its replacement.
fn push_escape_sequence(showable: &mut String, rest: &mut Chars<'_>) {
    let Some(kind) = rest.next() else { return showable.push('\\') };
    let is_code = |digits: &&str| kind == 'u' && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let code = rest.as_str().get(..4).filter(is_code).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    // Surrogates are no characters. None of those that are replaced needs any.
    let letter = if kind == 'b' { Some('\u{8}') } else { code.and_then(char::from_u32) };
    if letter.map(shown) != Some(REPLACEMENT) {
        return showable.extend(['\\', kind]);
    }
    showable.push(REPLACEMENT);
    if code.is_some() {
        rest.nth(3);
    }
}

/// A character, or its replacement if it must not be shown: control characters are not allowed in HTML;
/// separators of lines and bidirectional embeddings, overrides and isolates change how the text around them
/// is shown.
fn shown(letter: char) -> char {
    match letter {
        '\t' | '\n' | '\r' | '\u{c}' => letter,
        '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => REPLACEMENT,
        letter if letter.is_control() => REPLACEMENT,
        letter => letter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_no_markup_and_no_control_characters() {
        assert_eq!(escape("<img onerror='x'>&\"\u{7}"), "&lt;img onerror=&#39;x&#39;&gt;&amp;&quot;\u{fffd}");
        for letter in ('\u{2028}'..='\u{202e}').chain('\u{2066}'..='\u{2069}') {
            assert_eq!(escape(&format!("cat{letter}gpj.exe")), "cat\u{fffd}gpj.exe", "{letter:?}");
        }
        assert_eq!(escape("שלום \u{200f}é"), "שלום \u{200f}é", "right-to-left text stays as it is");
    }

    /// A script shows exactly the characters that the HTML of the same text has.
    #[test]
    fn texts_of_documents_are_those_of_the_html() {
        let special =
            ['\u{7f}', '\u{85}', '\u{9b}', '\u{61c}', '\u{200f}', '\u{2028}', '\u{fffd}', '水', '😀'];
        let letters =
            ('\0'..='~').chain('\u{2029}'..='\u{202f}').chain('\u{2066}'..='\u{206a}').chain(special);
        let unescaped = |html: &str| {
            let html = html.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
            html.replace("&#39;", "'").replace("&amp;", "&")
        };
        for letter in letters {
            let text = format!("a{letter}\\u202e\\b{letter}");
            let shown: Vec<String> =
                serde_json::from_str(&showable_json(serde_json::to_string(&[&text]).unwrap())).unwrap();
            assert_eq!(shown, [unescaped(&escape(&text))], "{letter:?}");
            // The same character as an escape sequence.
            let Ok(code) = u16::try_from(u32::from(letter)) else { continue };
            let shown: Vec<String> =
                serde_json::from_str(&showable_json(format!("[\"\\u{code:04X}\"]"))).unwrap();
            assert_eq!(shown, [unescaped(&escape(&letter.to_string()))], "{letter:?}");
        }
    }

    #[test]
    fn documents_stay_documents() {
        let json = r#"{"a": [1, null, "</script>", "\ud83d\ude00\\", "\"\u0000\t\\b"]}"#;
        let shown: serde_json::Value = serde_json::from_str(&showable_json(json.to_owned())).unwrap();
        assert_eq!(shown, serde_json::json!({"a": [1, null, "</script>", "😀\\", "\"\u{fffd}\t\\b"]}));
        // What is no JSON document is returned without a panic.
        for text in ["\\", "\\u", "\\u00", "\\u00é1", "\\u+01f", "\\é", "\\ud800"] {
            assert_eq!(showable_json(text.to_owned()), text);
        }
    }
}
