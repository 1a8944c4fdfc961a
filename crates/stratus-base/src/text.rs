//! Numbers, sizes, durations and words formatted for people and shells; parsing of durations.

use std::path::Path;

/// Formats a number with four significant digits.
#[must_use]
pub fn significant(number: f64) -> String {
    format!("{number:.3e}").parse::<f64>().map_or_else(|_| number.to_string(), |number| number.to_string())
}

/// Formats a number of bytes with a binary unit: `32 MiB`.
#[must_use]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    // Values from here on would be rounded to 1024.
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 || value >= 100.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// Formats a count with its noun, whose plural ends with s: `1 run`, `2 runs`.
#[must_use]
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Formats a count with a comma between groups of three digits: `1,297,920`.
#[must_use]
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Formats a duration in up to two units: `2 h 05 min`.
#[must_use]
pub fn duration(seconds: f64) -> String {
    let whole = seconds.round();
    match seconds {
        _ if seconds < 10.0 => format!("{seconds:.1} s"),
        _ if whole < 60.0 => format!("{whole} s"),
        _ if whole < 3600.0 => format!("{:.0} min {:02.0} s", (whole / 60.0).floor(), whole % 60.0),
        _ if whole < 172_800.0 => {
            let minutes = (whole / 60.0).round();
            format!("{:.0} h {:02.0} min", (minutes / 60.0).floor(), minutes % 60.0)
        }
        _ => format!("{:.1} d", whole / 86_400.0),
    }
}

/// Parses a positive duration such as `90s`, `1.5h` or `2d`, in seconds.
#[must_use]
pub fn seconds(text: &str) -> Option<f64> {
    let text = text.trim();
    let unit = match text.chars().last()? {
        's' => 1.0,
        'm' => 60.0,
        'h' => 3600.0,
        'd' => 86_400.0,
        _ => return None,
    };
    let number: f64 = text[..text.len() - 1].trim().parse().ok()?;
    (number.is_finite() && number > 0.0).then_some(number * unit)
}

/// Quotes a text as a word of a Bourne shell. The text must not contain NUL.
#[must_use]
pub fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Quotes a text as a word of a Bourne shell only if necessary, for people to read and copy.
#[must_use]
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/=,:@%+".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) { text.to_owned() } else { shell_quoted(text) }
}

/// Returns whether a character can be shown as it is: not a control character or a line break, nor one that
/// changes the direction of the text around it.
#[must_use]
pub fn is_printable(c: char) -> bool {
    match c {
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => false,
        _ => !c.is_control(),
    }
}

/// Quotes a path as a word of a Bourne shell, for commands in messages. One that looks like a flag begins
/// with `./`.
#[must_use]
pub fn shell_path(path: &Path) -> String {
    let text = path.display().to_string();
    shell_word(&if text.starts_with('-') { format!("./{text}") } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_four_significant_digits() {
        assert_eq!(
            [0.1 / 3.0, 0.025, 12345.6, f64::NAN].map(significant),
            ["0.03333", "0.025", "12350", "NaN"]
        );
    }

    #[test]
    fn bytes_are_formatted_with_binary_units() {
        assert_eq!(
            [0, 999, 1023, 1024, 1536, 33_554_432, u64::MAX].map(bytes),
            ["0 B", "999 B", "1023 B", "1 KiB", "1.5 KiB", "32 MiB", "16777216 TiB"]
        );
        // Rounding never gives 1024 of a unit.
        assert_eq!(
            [1_047_000, 1_048_530, 47_395_635, (1 << 30) - 1].map(bytes),
            ["1022 KiB", "1.0 MiB", "45.2 MiB", "1.0 GiB"]
        );
    }

    #[test]
    fn one_thing_is_singular() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "run")), ["0 runs", "1 run", "2 runs"]);
    }

    #[test]
    fn groups_of_digits_are_separated() {
        let counts = [0, 999, 1000, 1_297_920, u64::MAX].map(grouped);
        assert_eq!(counts, ["0", "999", "1,000", "1,297,920", "18,446,744,073,709,551,615"]);
    }

    #[test]
    fn formats_durations() {
        let read = [0.26, 59.4, 61.0, 7500.0, 500_000.0].map(duration);
        assert_eq!(read, ["0.3 s", "59 s", "1 min 01 s", "2 h 05 min", "5.8 d"]);
    }

    #[test]
    fn parses_durations() {
        let read = ["90s", " 1.5h", "2 d", "3m"].map(seconds);
        assert_eq!(read, [Some(90.0), Some(5400.0), Some(172_800.0), Some(180.0)]);
        for wrong in ["", "6", "h", "-1h", "0s", "nanh", "infd", "1hs", "6 hours", "é"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn quotes_shell_words_only_if_necessary() {
        assert_eq!(shell_word("data.path=../photographs"), "data.path=../photographs");
        assert_eq!(shell_word("data.shape=[1, 2]"), "'data.shape=[1, 2]'");
        assert_eq!(shell_word(""), "''");
        assert_eq!(shell_path(Path::new("runs/my run/1")), "'runs/my run/1'");
        assert_eq!(shell_path(Path::new("-x/1")), "./-x/1");
        assert_eq!(shell_quoted("it's $HOME"), "'it'\\''s $HOME'");
    }

    #[test]
    fn characters_that_a_terminal_obeys_are_not_printable() {
        assert!("a ä水'\"\u{200d}😀".chars().all(is_printable));
        for c in "\n\t\u{7}\u{1b}\u{85}\u{61c}\u{200f}\u{2028}\u{2029}\u{202e}\u{2066}\u{2069}".chars() {
            assert!(!is_printable(c), "{c:?}");
        }
    }
}
