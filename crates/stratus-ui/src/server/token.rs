//! The secret that requests from other machines need.

use std::fs::File;
use std::hint::black_box;
use std::io::Read;

use stratus_base::checksum::hex;

use crate::{Error, Result};

/// The number of random bytes.
const TOKEN_BYTES: usize = 32;
/// The system's source of random bytes for secrets.
const RANDOM: &str = "/dev/urandom";

/// A random secret, in hexadecimal digits.
#[derive(Clone)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Token(…)")
    }
}

impl Token {
    /// A new token of 32 bytes.
    pub fn random() -> Result<Self> {
        let mut bytes = [0; TOKEN_BYTES];
        let read = File::open(RANDOM).and_then(|mut file| file.read_exact(&mut bytes));
        read.map_err(|source| Error::Random { path: RANDOM, source })?;
        Ok(Self(hex(&bytes)))
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares with the text of a request, in a time that depends only on its length.
    pub fn equals(&self, given: &str) -> bool {
        let (token, given) = (self.0.as_bytes(), given.as_bytes());
        let differences = token.iter().zip(given).fold(0, |all, (a, b)| black_box(all | (a ^ b)));
        token.len() == given.len() && differences == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_equal() {
        let token = Token::random().unwrap();
        assert_eq!(token.as_str().len(), 2 * TOKEN_BYTES);
        assert_ne!(token.as_str(), Token::random().unwrap().as_str());
        assert!(token.equals(token.as_str()));
        for text in
            ["", &token.as_str()[1..], &format!("{}0", token.as_str()), &"0".repeat(64), &"é".repeat(32)]
        {
            assert!(!token.equals(text), "{text}");
        }
        assert!(!format!("{token:?}").contains(token.as_str()));
    }
}
