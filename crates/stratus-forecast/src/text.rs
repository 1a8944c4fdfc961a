//! Durations, written and read.

/// Two units: `2 h 05 min`.
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

/// The seconds of a duration such as `90s`, `1.5h` or `2d`; `None` of what is none, or nothing.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_readable() {
        let read = [0.26, 59.4, 61.0, 7500.0, 500_000.0].map(duration);
        assert_eq!(read, ["0.3 s", "59 s", "1 min 01 s", "2 h 05 min", "5.8 d"]);
    }

    #[test]
    fn durations_are_read() {
        let read = ["90s", " 1.5h", "2 d", "3m"].map(seconds);
        assert_eq!(read, [Some(90.0), Some(5400.0), Some(172_800.0), Some(180.0)]);
        for wrong in ["", "6", "h", "-1h", "0s", "nanh", "infd", "1hs", "6 hours", "é"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }
}
