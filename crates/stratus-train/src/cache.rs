//! The cache folder: plans, compiled kernels, copies of remote data shards. It may be deleted at any time.

use std::path::PathBuf;

/// The environment variable of the cache folder. Default: `$XDG_CACHE_HOME/stratus` or `~/.cache/stratus`.
const ENVIRONMENT: &str = "STRATUS_CACHE";

/// The cache folder; `None` if the environment has neither a cache nor a home folder.
#[must_use]
pub fn cache_folder() -> Option<PathBuf> {
    std::env::var_os(ENVIRONMENT).map(PathBuf::from).or_else(|| {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
        cache.or_else(home).map(|cache| cache.join("stratus"))
    })
}
