//! The environment variables from which credentials are read.

use std::env;

/// The value of the first of these environment variables that is set and not empty.
pub(super) fn variable(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| env::var(name).ok().filter(|value| !value.is_empty()))
}
