//! Redaction of secrets in messages.
//!
//! Servers repeat requests in their error pages, and libraries put whole URLs into their messages. Therefore
//! every external text passes [`Secrets::redact`] before it becomes part of an error.

use std::env;
use std::fmt;

/// The maximum length of a redacted text.
const MAX_MESSAGE_CHARS: usize = 300;

/// The replacement of a secret.
const REDACTED: &str = "[hidden]";

/// Texts to be redacted.
#[derive(Clone, Default)]
pub(crate) struct Secrets(Vec<String>);

impl fmt::Debug for Secrets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(REDACTED)
    }
}

impl Secrets {
    /// The values of environment variables.
    #[cfg_attr(not(feature = "objects"), allow(dead_code, reason = "only used by object stores"))]
    pub(crate) fn from_env(names: &[&str]) -> Self {
        let mut secrets = Self::default();
        for name in names {
            secrets.add(&env::var(name).unwrap_or_default());
        }
        secrets
    }

    /// Adds a text and its encodings in URLs, XML and JSON.
    pub(crate) fn add(&mut self, secret: &str) {
        let xml = secret.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let json = secret.replace('\\', "\\\\").replace('"', "\\\"");
        for form in [secret.to_owned(), crate::address::encode(secret), xml.replace('"', "&quot;"), xml, json]
        {
            if !form.is_empty() && !self.0.contains(&form) {
                self.0.push(form);
            }
        }
        // The longest comes first, since one may contain another.
        self.0.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    }

    /// Adds a query string and each of its values, which may be a signature or token.
    pub(crate) fn add_query(&mut self, query: &str) {
        self.add(query);
        for pair in query.split('&') {
            // Short values are numbers and flags.
            if let Some((_, value)) = pair.split_once('=').filter(|(_, value)| value.len() >= 8) {
                self.add(value);
                if let Some(decoded) = crate::address::decode(value) {
                    self.add(&decoded);
                }
            }
        }
    }

    /// Redacts secrets and the query strings of URLs, and shortens the text to one line.
    pub(crate) fn redact(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.0 {
            text = text.replace(secret.as_str(), REDACTED);
        }
        let words: Vec<String> = text.split_whitespace().map(without_query).collect();
        let text: String = words.join(" ").chars().filter(|letter| !letter.is_control()).collect();
        match text.char_indices().nth(MAX_MESSAGE_CHARS) {
            Some((at, _)) => format!("{}…", &text[..at]),
            None => text,
        }
    }
}

/// Replaces the query strings of URLs in a word by an ellipsis.
fn without_query(word: &str) -> String {
    let mut redacted = String::new();
    let mut rest = word;
    while let Some((before, query)) = rest.split_once('?') {
        let end = query.find(['"', '\'', '<', '>', ')', '`', ',']).unwrap_or(query.len());
        redacted.push_str(before);
        redacted.push('?');
        if query[..end].contains('=') {
            redacted.push('…');
        } else {
            redacted.push_str(&query[..end]);
        }
        rest = &query[end..];
    }
    redacted + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redacts_secrets_in_every_encoding() {
        let mut secrets = Secrets::default();
        secrets.add("hunter2");
        secrets.add("hunter2-and-more");
        secrets.add("p<&\"\\w");
        assert_eq!(
            secrets.redact(r#"p<&"\w p&lt;&amp;"\w p&lt;&amp;&quot;\w p<&\"\\w p%3C%26%22%5Cw"#),
            [REDACTED; 5].join(" ")
        );
        secrets.add_query("sv=2024&sig=abc%2Bdefgh%3D");
        let page = "<Error>\n  hunter2 hunter2-and-more\n<a \
                    href=\"https://h/p?X-Amz-Signature=1234&x=y\">abc+defgh=</a>, why?</Error>";
        let redacted = secrets.redact(page);
        assert_eq!(
            redacted,
            "<Error> [hidden] [hidden] <a href=\"https://h/p?…\">[hidden]</a>, why?</Error>"
        );
        assert_eq!(format!("{secrets:?}"), REDACTED);
        assert_eq!(secrets.redact(&"x".repeat(1000)).chars().count(), MAX_MESSAGE_CHARS + 1);
        assert_eq!(secrets.redact("a\u{7}b"), "ab");
    }
}
