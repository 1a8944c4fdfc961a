//! The lines of a stream's answers: JSON objects, or columns separated by tabs.
//!
//! ```text
//! PATH  MILLISECONDS  CLASS  PROBABILITY  CLASS  PROBABILITY  …     classes, the most probable first
//! PATH  MILLISECONDS  MASK                                          without MASK if none is written
//! PATH  error         PROBLEM
//! PATH  frames        COUNT                                         after the frames of a video
//! ```

use crate::commands::infer::report::{ErrorReport, ImageReport};
use crate::output::printable;
use serde::Serialize;
use stratus_base::text::is_printable;

/// The last line of a video's answer.
#[derive(Serialize)]
struct VideoEnd<'a> {
    path: &'a str,
    /// The number of its frames with a line.
    frames: u64,
}

/// The line of an image with a prediction.
pub(super) fn prediction(report: &ImageReport, json: bool) -> String {
    if json {
        return json_line(report);
    }
    let mut columns = vec![report.path.clone(), format!("{:.3}", report.ms)];
    for top in report.top.iter().flatten() {
        columns.extend([top.name.clone(), format!("{:.6}", top.probability)]);
    }
    columns.extend(report.mask.clone());
    for label in report.applying_labels() {
        columns.extend([label.name.clone(), format!("{:.6}", label.probability)]);
    }
    for answer in report.numbers.iter().flatten() {
        columns.extend([answer.name.clone(), format!("{:?}", answer.number)]);
    }
    tab_separated(&columns)
}

/// The line of an image or video without a prediction.
pub(super) fn error(path: &str, problem: &str, json: bool) -> String {
    if json {
        return json_line(&ErrorReport { path: path.to_owned(), error: problem.to_owned() });
    }
    tab_separated(&[path.to_owned(), "error".to_owned(), problem.to_owned()])
}

/// The line after the frames of a video.
pub(super) fn end_of_video(path: &str, frames: u64, json: bool) -> String {
    if json {
        return json_line(&VideoEnd { path, frames });
    }
    tab_separated(&[path.to_owned(), "frames".to_owned(), frames.to_string()])
}

/// Joins columns by tabs. Tabs, line breaks and other characters that a terminal obeys become �.
fn tab_separated(columns: &[String]) -> String {
    columns.iter().map(|column| printable(column)).collect::<Vec<_>>().join("\t")
}

/// A JSON object in one line. Characters that a terminal obeys are escaped.
fn json_line(value: &impl Serialize) -> String {
    // Strings and numbers always have a JSON form, and NaN becomes `null`.
    let text = serde_json::to_string(value).unwrap_or_default();
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if is_printable(c) {
            line.push(c);
        } else {
            let mut units = [0; 2];
            line.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::infer::report::Top;

    const HOSTILE: &str = "a\tb\u{1b}[2J\r\u{9b}31m\u{202e}\u{7f}\"\\<script>ä水.png";

    fn reports() -> [ImageReport; 2] {
        let top = |class, name: &str, probability| Top { class, name: name.to_owned(), probability };
        let classes = vec![top(3, "three", 0.75), top(5, HOSTILE, 0.25)];
        let of = |top, mask| {
            let (path, labels, numbers) = (HOSTILE.to_owned(), None, None);
            ImageReport { path, top, mask, labels, numbers, ms: 1.23456 }
        };
        [of(Some(classes), None), of(None, Some("masks/a.png".to_owned()))]
    }

    #[test]
    fn hostile_names_do_not_change_columns() {
        let name = "a�b�[2J��31m��\"\\<script>ä水.png";
        let [classes, mask] = reports();
        assert_eq!(prediction(&classes, false), format!("{name}\t1.235\tthree\t0.750000\t{name}\t0.250000"));
        assert_eq!(prediction(&mask, false), format!("{name}\t1.235\tmasks/a.png"));
        assert_eq!(error(HOSTILE, "is\nbad", false), format!("{name}\terror\tis�bad"));
        assert_eq!(end_of_video("a.mp4", 7, false), "a.mp4\tframes\t7");
    }

    #[test]
    fn json_lines_keep_hostile_names() {
        let lines = [
            prediction(&reports()[0], true),
            prediction(&reports()[1], true),
            error(HOSTILE, HOSTILE, true),
            end_of_video(HOSTILE, 7, true),
        ];
        for line in lines {
            assert!(line.chars().all(is_printable), "{line}");
            let value: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!(value["path"], HOSTILE);
        }
    }
}
