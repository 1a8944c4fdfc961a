//! Notices of what happens to a launch, by whoever trains it.
//!
//! The address of a webhook often is a secret. It comes from the environment, and goes to the script that
//! trains on its standard input and in its environment: into no file, no argument, no message.

use crate::{Error, Result};

/// The environment variable with the webhook's address.
pub(crate) const WEBHOOK: &str = "STRATUS_WEBHOOK";
/// The longest address.
const LONGEST: usize = 2000;

/// The webhook's address; empty where there is none.
///
/// # Errors
/// Where it is no address. It is not shown.
pub(crate) fn webhook() -> Result<String> {
    match std::env::var_os(WEBHOOK).filter(|address| !address.is_empty()) {
        None => Ok(String::new()),
        Some(address) => checked(address.to_str().unwrap_or_default()),
    }
}

fn checked(address: &str) -> Result<String> {
    let is_address = address.starts_with("https://") || address.starts_with("http://");
    let is_plain = address.chars().all(|c| c.is_ascii_graphic() && !"\"'\\".contains(c));
    if is_address && is_plain && address.len() <= LONGEST {
        return Ok(address.to_owned());
    }
    Err(Error::usage(
        format!("{WEBHOOK} is no address that begins with https:// or http://"),
        "unset it, or see that nothing was lost when it was copied",
    ))
}

#[cfg(test)]
mod tests {
    use super::checked;

    #[test]
    fn what_is_no_address_is_refused_and_not_shown() {
        assert!(checked("https://hooks.example.org/a?b=c#d").is_ok());
        for wrong in ["hunter2", "https://a b", "https://a\nurl = \"file:///hunter2\"", "ftp://hunter2"] {
            let error = checked(wrong).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
