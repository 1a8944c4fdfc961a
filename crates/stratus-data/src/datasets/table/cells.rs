//! The meaning of cells.

use std::borrow::Cow;

use super::source::{Cell, printable};

/// The problem of a cell that is neither.
pub(super) const NOT_A_VALUE: &str = "expected a number, or a label (0, 1, true, false, yes, no)";

/// A label or a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Value {
    /// NaN if it is missing.
    pub number: f32,
    /// True for words such as `true` and `no`, which are not numbers.
    pub is_word: bool,
}

impl Value {
    /// Returns whether it may be a label: 0, 1 or missing.
    pub(super) fn is_label(self) -> bool {
        self.number.is_nan() || self.number == 0.0 || self.number == 1.0
    }
}

/// Reads a label or a number.
pub(super) fn value_of(cell: Cell<'_>) -> Result<Value, String> {
    let text = match cell {
        Cell::Number(number) => {
            let value = Value { number: number as f32, is_word: false };
            return check_finite(value, || number.to_string());
        }
        // Most cells of labels.
        Cell::Text("0") => return Ok(Value { number: 0.0, is_word: false }),
        Cell::Text("1") => return Ok(Value { number: 1.0, is_word: false }),
        Cell::Text(text) => text.trim(),
    };
    let number = |number| Value { number, is_word: false };
    if text.is_empty() {
        return Ok(number(f32::NAN));
    }
    for (word, meaning) in [("true", 1.0), ("yes", 1.0), ("false", 0.0), ("no", 0.0)] {
        if text.eq_ignore_ascii_case(word) {
            return Ok(Value { number: meaning, is_word: true });
        }
    }
    match text.parse::<f32>() {
        Ok(parsed) => check_finite(number(parsed), || printable(text)),
        Err(_) => Err(format!("{NOT_A_VALUE}, found `{}`", printable(text))),
    }
}

fn check_finite(value: Value, text: impl Fn() -> String) -> Result<Value, String> {
    if value.number.is_infinite() {
        return Err(format!("`{}` is infinite; leave the cell empty if the number is missing", text()));
    }
    Ok(Value { number: if value.number.is_nan() { f32::NAN } else { value.number + 0.0 }, ..value })
}

/// The maximum length of a path: that of Linux.
const MAX_PATH_BYTES: usize = 4096;

/// A path relative to the folder of the table, separated by `/`.
pub(super) fn path_of(cell: Cell<'_>) -> Result<Cow<'_, str>, String> {
    let Cell::Text(text) = cell else { return Err("has numbers; expected paths".to_owned()) };
    if text.trim().is_empty() {
        return Err("the path is empty".to_owned());
    }
    if text.len() > MAX_PATH_BYTES {
        return Err(format!("the path has {} bytes, more than {MAX_PATH_BYTES}", text.len()));
    }
    let path = if text.contains('\\') { Cow::Owned(text.replace('\\', "/")) } else { Cow::Borrowed(text) };
    // `C:/` is a path of Windows; `a:b.png` is a file name.
    let is_drive = matches!(path.as_bytes(), [letter, b':', b'/', ..] if letter.is_ascii_alphabetic());
    let is_absolute = path.starts_with('/') || is_drive;
    let is_plain = !path.contains('\0') && !path.split('/').any(|part| matches!(part, "" | "." | ".."));
    if is_plain && !is_absolute {
        return Ok(path);
    }
    let shown = printable(text);
    if path.contains('\0') {
        return Err(format!("path `{shown}` contains a zero byte"));
    }
    if is_absolute {
        return Err(format!("path `{shown}` is absolute; it must be relative to the folder of the table"));
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if parts.contains(&"..") {
        return Err(format!("path `{shown}` is outside the data set folder"));
    }
    if parts.is_empty() {
        return Err(format!("path `{shown}` is a folder"));
    }
    Ok(Cow::Owned(parts.join("/")))
}

/// The text of a group or of a split.
pub(super) fn text_of(cell: Cell<'_>) -> Option<String> {
    match cell {
        Cell::Text(text) => Some(text.trim()).filter(|text| !text.is_empty()).map(str::to_owned),
        Cell::Number(number) => (!number.is_nan()).then(|| number.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_labels_and_numbers() {
        for (text, number, is_word) in [
            ("1", 1.0, false),
            (" 0 ", 0.0, false),
            ("TRUE", 1.0, true),
            ("No", 0.0, true),
            ("-2.5e3", -2500.0, false),
            ("1.0", 1.0, false),
        ] {
            assert_eq!(value_of(Cell::Text(text)).unwrap(), Value { number, is_word }, "{text}");
        }
        for cell in [Cell::Text(""), Cell::Text("  "), Cell::Text("NaN"), Cell::Number(f64::NAN)] {
            assert!(value_of(cell).unwrap().number.is_nan());
        }
        assert_eq!(value_of(Cell::Number(-0.0)).unwrap().number.to_bits(), 0);
        for (cell, expected) in [
            (Cell::Text("cat"), "expected a number, or a label (0, 1, true, false, yes, no), found `cat`"),
            (Cell::Text("1,5"), "expected a number, or a label (0, 1, true, false, yes, no), found `1,5`"),
            (Cell::Text("inf"), "`inf` is infinite; leave the cell empty if the number is missing"),
            (Cell::Number(1e39), "infinite; leave the cell empty if the number is missing"),
        ] {
            assert!(value_of(cell).unwrap_err().ends_with(expected), "{cell:?}");
        }
    }

    #[test]
    fn paths_stay_in_the_folder() {
        for (text, path) in
            [("a.png", "a.png"), ("./a/b.png", "a/b.png"), ("a\\b.png", "a/b.png"), ("a//./b.png", "a/b.png")]
        {
            assert_eq!(path_of(Cell::Text(text)).unwrap(), path);
        }
        for text in
            ["", " ", "/a.png", "C:/a.png", "\\a.png", "../a.png", "a/../../b.png", "a/..", "./", "a\0b"]
        {
            assert!(path_of(Cell::Text(text)).is_err(), "{text:?}");
        }
        assert!(path_of(Cell::Number(1.0)).is_err());
        let long = "a/".repeat(MAX_PATH_BYTES / 2);
        assert!(path_of(Cell::Text(&long)).is_ok());
        assert_eq!(
            path_of(Cell::Text(&(long + "b"))).unwrap_err(),
            "the path has 4097 bytes, more than 4096"
        );
    }
}
