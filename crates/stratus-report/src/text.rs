//! Text for tables and CSV.

/// `text` in `width` columns, its middle left out where it is longer.
pub(crate) fn fit(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return format!("{text:<width$}");
    }
    let kept = width.saturating_sub(2);
    let (head, tail) = (kept - kept / 2, kept / 2);
    text.chars().take(head).chain("..".chars()).chain(text.chars().skip(length - tail)).collect()
}

/// A field of a CSV line: in quotes where it must be.
pub(crate) fn csv_field(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\"")).into()
    } else {
        text.into()
    }
}

/// Bytes in decimal units, as disks and cards are sold: `45.2 MB`.
pub(crate) fn bytes(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_fits() {
        assert_eq!(fit("abc", 5), "abc  ");
        assert_eq!(fit("abcdefghij", 6), "ab..ij");
        assert_eq!(fit("äöüäöüäöü", 7), "äöü..öü");
        assert_eq!(csv_field("a\"b,c"), "\"a\"\"b,c\"");
        assert_eq!(
            (bytes(999), bytes(999_960), bytes(45_210_000)),
            ("999 B".into(), "1.0 MB".into(), "45.2 MB".into())
        );
    }
}
