//! Parsers of answers for `fuzz/`, which are otherwise called with those of a server.

/// Reads the answer of Keystone, which signs in to Swift: its first line is the token, the rest the body.
pub fn swift(answer: &[u8]) {
    crate::objects::fuzz_swift(answer);
}
