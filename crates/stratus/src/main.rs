//! The `stratus` command line.
fn main() {}
