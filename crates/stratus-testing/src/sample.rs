//! Samples of generated test matrices: a part in `make test`, all in `make test-all`.

/// Returns whether tests cover whole matrices, by `STRATUS_TESTS=all`, which `make test-all` sets.
pub fn is_thorough() -> bool {
    std::env::var_os("STRATUS_TESTS").is_some_and(|tests| tests == "all")
}

/// Every `step`-th item, starting at `offset % step`, or all items if [`is_thorough`].
///
/// In a matrix of several dimensions, callers vary the offset of one dimension with the position in another,
/// so that every value of each dimension is tested.
pub fn sample<T>(items: impl IntoIterator<Item = T>, step: usize, offset: usize) -> impl Iterator<Item = T> {
    let (step, offset) = if is_thorough() { (1, 0) } else { (step, offset % step) };
    items.into_iter().skip(offset).step_by(step)
}
