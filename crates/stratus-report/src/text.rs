//! Formatting of text for tables.

/// Pads `text` to `width` columns, or omits its middle if it is longer.
pub(crate) fn fit(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return format!("{text:<width$}");
    }
    let kept = width.saturating_sub(2);
    let (head, tail) = (kept - kept / 2, kept / 2);
    text.chars().take(head).chain("..".chars()).chain(text.chars().skip(length - tail)).collect()
}

/// Formats a number with at least four significant digits: `0.0123`, `68.21`, `11334`.
pub(crate) fn figure(value: f64) -> String {
    let digits = if value == 0.0 { 0 } else { value.abs().log10().floor() as i32 };
    let decimals = usize::try_from(3 - digits).unwrap_or(0).min(9);
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Formats a p-value: `0.031`, `< 0.001`; an en dash for `None`.
pub(crate) fn probability(p: Option<f64>) -> String {
    match p {
        None => "–".to_owned(),
        Some(p) if p < 0.001 => "< 0.001".to_owned(),
        Some(p) => format!("{p:.3}"),
    }
}

/// Formats `value` with a number of decimals, without negative zero.
pub(crate) fn decimals(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let is_zero = text.bytes().all(|byte| matches!(byte, b'-' | b'0' | b'.'));
    if is_zero { text.trim_start_matches('-').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_text_and_numbers() {
        assert_eq!(fit("abc", 5), "abc  ");
        assert_eq!(fit("abcdefghij", 6), "ab..ij");
        assert_eq!(fit("äöüäöüäöü", 7), "äöü..öü");
        let figures = [0.0, 0.012_341, 0.87, 68.214, 11_334.0, -2.5].map(figure);
        assert_eq!(figures, ["0", "0.01234", "0.87", "68.21", "11334", "-2.5"]);
    }
}
