//! Addresses of folders, and which of them this crate knows.

use std::path::PathBuf;

use crate::StoreError;

/// Where a store is, without what it takes to get there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A folder of this machine.
    Local(PathBuf),
}

/// Whether `text` begins with a scheme this crate knows, as `s3://` is; everything else is a path on this machine.
#[must_use]
pub fn is_address(text: &str) -> bool {
    scheme(text).is_some_and(|scheme| SCHEMES.contains(&scheme.as_str()))
}

const SCHEMES: [&str; 1] = ["file"];

/// What stands before `://`, in lower case.
fn scheme(text: &str) -> Option<String> {
    let (scheme, _) = text.split_once("://")?;
    let known = |letter: char| letter.is_ascii_alphanumeric() || "+-.".contains(letter);
    (!scheme.is_empty() && scheme.chars().all(known)).then(|| scheme.to_ascii_lowercase())
}

impl Address {
    pub(crate) fn parse(text: &str) -> Result<Self, StoreError> {
        let wrong = |problem: String| StoreError::Address { address: text.to_owned(), problem };
        if text.is_empty() {
            return Err(wrong("an empty address; name a folder, as ./data".to_owned()));
        }
        let (Some(scheme), Some((_, rest))) = (scheme(text), text.split_once("://")) else {
            return Ok(Self::Local(PathBuf::from(text)));
        };
        match scheme.as_str() {
            "file" => {
                // file:///path and file://localhost/path (RFC 8089).
                let path = rest.strip_prefix("localhost").unwrap_or(rest);
                if !path.starts_with('/') {
                    return Err(wrong(
                        "it names another machine; write file:///path with three slashes".to_owned(),
                    ));
                }
                let path = decode(path)
                    .ok_or_else(|| wrong("what follows a % must be two hexadecimal digits".to_owned()))?;
                Ok(Self::Local(PathBuf::from(path)))
            }
            _ => Err(wrong(format!(
                "`{scheme}://` is not known; known: {}",
                SCHEMES.map(|known| format!("{known}://")).join(", ")
            ))),
        }
    }
}

/// Takes `%41` back to `A`.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
        bytes.push(u8::try_from(digit(0)? * 16 + digit(1)?).ok()?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).ok()
}

/// What is wrong with a path as that of a file in a store.
pub(crate) fn path_problem(path: &str) -> Option<&'static str> {
    if path.is_empty() {
        return Some("it is empty");
    }
    if path.starts_with('/') {
        return Some("it begins with `/`");
    }
    if path.contains('\\') {
        return Some("it has a backslash");
    }
    if path.contains('\0') {
        return Some("it has a zero byte");
    }
    path.split('/').find_map(|part| match part {
        "" => Some("it has an empty part"),
        "." => Some("`.` is no name"),
        ".." => Some("`..` leads out of a folder"),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_out_are_refused() {
        for bad in
            ["", "/etc/passwd", "..", "a/../../b", "a/..", "./a", "a/./b", "a//b", "a/", "a\\..\\b", "a\0b"]
        {
            assert!(path_problem(bad).is_some(), "{bad:?}");
        }
        for good in ["a", "a/b.tar", ".hidden", "...", "a b/ü", "a..b/c"] {
            assert_eq!(path_problem(good), None, "{good:?}");
        }
    }

    #[test]
    fn local_addresses() {
        let local = |text: &str| match Address::parse(text) {
            Ok(Address::Local(path)) => path.to_str().unwrap().to_owned(),
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(local("data/train"), "data/train");
        assert_eq!(local("/data"), "/data");
        assert_eq!(local("file:///data/a%20b"), "/data/a b");
        assert_eq!(local("FILE://localhost/data"), "/data");
        for bad in ["", "file://server/share", "file:///a%2", "file:///a%zz", "gopher://host/x"] {
            assert!(Address::parse(bad).is_err(), "{bad:?}");
        }
    }
}
