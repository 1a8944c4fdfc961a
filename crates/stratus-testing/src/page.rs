//! Tables of pages that are generated from the code.

use std::path::Path;

/// Checks that a page contains a Markdown table, which it finds by the first line. With `UPDATE_PAGES` set,
/// as by `make reference`, it writes the table to the page instead.
///
/// # Panics
/// If the page has no table with this first line, or if it differs.
#[track_caller]
pub fn expect_table(path: &Path, table: &str) {
    let page = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let head = table.lines().next().unwrap_or_default();
    let start = page.find(head).unwrap_or_else(|| panic!("{} has no table `{head}`", path.display()));
    let length = page[start..].find("\n\n").map_or(page.len() - start, |end| end + 1);
    let found = &page[start..start + length];
    if found == table {
        return;
    }
    if std::env::var_os("UPDATE_PAGES").is_none() {
        panic!("{} is out of date; `make reference` renews it. It should have:\n{table}", path.display());
    }
    let renewed = [&page[..start], table, &page[start + length..]].concat();
    std::fs::write(path, renewed).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
