//! Random secrets, such as tokens.

use crate::checksum::hex;
use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read};

/// The system's source of random bytes.
pub const RANDOM_SOURCE: &str = "/dev/urandom";
/// The number of random bytes of a secret.
const SECRET_BYTES: usize = 32;

/// A random secret of 32 bytes, in hexadecimal digits. It is not printed by `Debug`.
#[derive(Clone)]
pub struct Secret(String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Secret(…)")
    }
}

impl Secret {
    /// A new secret.
    ///
    /// # Errors
    /// If [`RANDOM_SOURCE`] cannot be read.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; SECRET_BYTES];
        File::open(RANDOM_SOURCE)?.read_exact(&mut bytes)?;
        Ok(Self(hex(&bytes)))
    }

    /// The digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares with a text that was received, in a time that depends only on its length.
    #[must_use]
    pub fn equals(&self, given: &str) -> bool {
        let (secret, given) = (self.0.as_bytes(), given.as_bytes());
        let differences = secret.iter().zip(given).fold(0, |all, (a, b)| black_box(all | (a ^ b)));
        secret.len() == given.len() && differences == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_secret_is_equal() {
        let secret = Secret::random().unwrap();
        assert_eq!(secret.as_str().len(), 2 * SECRET_BYTES);
        assert_ne!(secret.as_str(), Secret::random().unwrap().as_str());
        assert!(secret.equals(secret.as_str()));
        for text in
            ["", &secret.as_str()[1..], &format!("{}0", secret.as_str()), &"0".repeat(64), &"é".repeat(32)]
        {
            assert!(!secret.equals(text), "{text}");
        }
        assert!(!format!("{secret:?}").contains(secret.as_str()));
    }
}
