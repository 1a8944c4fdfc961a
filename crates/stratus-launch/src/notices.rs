//! The webhook that the training script notifies of events.
//!
//! The address of a webhook is often a secret. It comes from the environment and reaches the training script
//! through standard input and its environment: never through a file, an argument or a message.

use crate::{Error, Result};

/// The environment variable with the address of the webhook.
pub(crate) const WEBHOOK: &str = "STRATUS_WEBHOOK";
/// The maximum length of the address.
const MAX_ADDRESS_BYTES: usize = 2000;

/// The address of the webhook; empty if there is none.
///
/// # Errors
/// If it is not a valid address. The error does not contain it.
pub(crate) fn webhook() -> Result<String> {
    match std::env::var_os(WEBHOOK).filter(|address| !address.is_empty()) {
        None => Ok(String::new()),
        Some(address) => validate_address(address.to_str().unwrap_or_default()),
    }
}

fn validate_address(address: &str) -> Result<String> {
    let is_address = address.starts_with("https://") || address.starts_with("http://");
    let is_plain = address.chars().all(|c| c.is_ascii_graphic() && !"\"'\\".contains(c));
    if is_address && is_plain && address.len() <= MAX_ADDRESS_BYTES {
        return Ok(address.to_owned());
    }
    Err(Error::usage(
        format!("{WEBHOOK} is not an http:// or https:// address"),
        "unset it, or check that it was copied completely",
    ))
}

#[cfg(test)]
mod tests {
    use super::validate_address;

    #[test]
    fn rejects_invalid_addresses_without_printing_them() {
        assert!(validate_address("https://hooks.example.org/a?b=c#d").is_ok());
        for wrong in ["hunter2", "https://a b", "https://a\nurl = \"file:///hunter2\"", "ftp://hunter2"] {
            let error = validate_address(wrong).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
