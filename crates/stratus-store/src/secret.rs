//! Keeping secrets out of what is shown.
//!
//! Servers repeat in their error pages what they were sent, and libraries put whole URLs into their messages.
//! Whatever comes from outside goes through [`Secrets::hide`] before it becomes part of an error.

use std::env;
use std::fmt;

/// The most characters of a server's explanation that are worth showing.
const MOST_SHOWN: usize = 300;

/// What stands in a secret's place.
const HIDDEN: &str = "[hidden]";

/// Texts that must never be shown.
#[derive(Clone, Default)]
pub(crate) struct Secrets(Vec<String>);

impl fmt::Debug for Secrets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(HIDDEN)
    }
}

impl Secrets {
    /// The values of environment variables.
    #[cfg_attr(not(feature = "objects"), allow(dead_code, reason = "stores of objects alone need it"))]
    pub(crate) fn of_environment(names: &[&str]) -> Self {
        let mut secrets = Self::default();
        for name in names {
            secrets.add(&env::var(name).unwrap_or_default());
        }
        secrets
    }

    /// Adds a text as it is, and as it stands in URLs, in XML and in JSON.
    pub(crate) fn add(&mut self, secret: &str) {
        let xml = secret.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let json = secret.replace('\\', "\\\\").replace('"', "\\\"");
        for form in [secret.to_owned(), crate::address::encode(secret), xml.replace('"', "&quot;"), xml, json]
        {
            if !form.is_empty() && !self.0.contains(&form) {
                self.0.push(form);
            }
        }
        // The longest first: one may be part of another.
        self.0.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    }

    /// Adds the signature or token of a query string: all of it and each value.
    pub(crate) fn add_query(&mut self, query: &str) {
        self.add(query);
        for pair in query.split('&') {
            // Short ones are numbers and flags.
            if let Some((_, value)) = pair.split_once('=').filter(|(_, value)| value.len() >= 8) {
                self.add(value);
                if let Some(decoded) = crate::address::decode(value) {
                    self.add(&decoded);
                }
            }
        }
    }

    /// `text` on one line, without secrets and without the query strings of URLs, cut to what is worth
    /// showing.
    pub(crate) fn hide(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.0 {
            text = text.replace(secret.as_str(), HIDDEN);
        }
        let words: Vec<String> = text.split_whitespace().map(without_query).collect();
        let text: String = words.join(" ").chars().filter(|letter| !letter.is_control()).collect();
        match text.char_indices().nth(MOST_SHOWN) {
            Some((at, _)) => format!("{}…", &text[..at]),
            None => text,
        }
    }
}

/// A word without what follows a question mark in it up to the end of what can be a URL.
fn without_query(word: &str) -> String {
    let mut shown = String::new();
    let mut rest = word;
    while let Some((before, query)) = rest.split_once('?') {
        let end = query.find(['"', '\'', '<', '>', ')', '`', ',']).unwrap_or(query.len());
        shown.push_str(before);
        shown.push('?');
        if query[..end].contains('=') {
            shown.push('…');
        } else {
            shown.push_str(&query[..end]);
        }
        rest = &query[end..];
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_secret_is_shown() {
        let mut secrets = Secrets::default();
        secrets.add("hunter2");
        secrets.add("hunter2-and-more");
        secrets.add("p<&\"\\w");
        assert_eq!(
            secrets.hide(r#"p<&"\w p&lt;&amp;"\w p&lt;&amp;&quot;\w p<&\"\\w p%3C%26%22%5Cw"#),
            [HIDDEN; 5].join(" ")
        );
        secrets.add_query("sv=2024&sig=abc%2Bdefgh%3D");
        let page = "<Error>\n  hunter2 hunter2-and-more\n<a \
                    href=\"https://h/p?X-Amz-Signature=1234&x=y\">abc+defgh=</a>, why?</Error>";
        let shown = secrets.hide(page);
        assert_eq!(shown, "<Error> [hidden] [hidden] <a href=\"https://h/p?…\">[hidden]</a>, why?</Error>");
        assert_eq!(format!("{secrets:?}"), HIDDEN);
        assert_eq!(secrets.hide(&"x".repeat(1000)).chars().count(), MOST_SHOWN + 1);
        assert_eq!(secrets.hide("a\u{7}b"), "ab");
    }
}
