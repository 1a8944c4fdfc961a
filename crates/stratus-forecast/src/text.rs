//! Durations, written and read; rates and sizes, read.

use crate::error::{Error, Result};

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

/// Names of units of bytes, and bytes of each: decimal and binary ones.
const BYTES: [(&str, f64); 9] = [
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    ("B", 1.0),
];
/// And of bits.
const BITS: [(&str, f64); 3] = [("kbit", 125.0), ("Mbit", 125e3), ("Gbit", 125e6)];
/// The most bytes, and the most bytes a second, that are taken for meant.
const MOST: f64 = 1e18;

/// The number before the first of `units` that the text ends in, times that unit.
fn in_units(text: &str, mut units: impl Iterator<Item = (&'static str, f64)>) -> Option<f64> {
    let (number, unit) = units.find_map(|(name, unit)| Some((text.trim().strip_suffix(name)?, unit)))?;
    let number: f64 = number.trim().parse().ok()?;
    number.is_finite().then_some(number * unit)
}

/// The bytes a second of a rate such as `1Gbit/s` or `500 MB/s`; `flag` is the argument's name.
///
/// # Errors
/// Where it has no such unit, or is not above 0.
pub fn bytes_per_second(flag: &'static str, text: &str) -> Result<f64> {
    let example = "1Gbit/s, 100Mbit/s, 500MB/s or 200MiB/s";
    let wrong = |problem| Error::Quantity { flag, text: text.to_owned(), problem, example };
    let amount =
        text.trim().strip_suffix("/s").and_then(|amount| in_units(amount, BITS.into_iter().chain(BYTES)));
    match amount.ok_or_else(|| wrong("a rate is a number of bits or bytes a second, with its unit"))? {
        rate if rate > 0.0 && rate <= MOST => Ok(rate),
        _ => Err(wrong("a rate is above 0 and at most 10^18 bytes a second")),
    }
}

/// The seconds of a short time such as `0.2ms` or `5us`; `flag` is the argument's name.
///
/// # Errors
/// Where it has no such unit, or is below 0.
pub fn latency(flag: &'static str, text: &str) -> Result<f64> {
    let wrong = |problem| Error::Quantity { flag, text: text.to_owned(), problem, example: "0.2ms or 5us" };
    let units = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3)];
    match in_units(text, units.into_iter()).ok_or_else(|| wrong("a latency is a number, with its unit"))? {
        seconds if (0.0..=60.0).contains(&seconds) => Ok(seconds),
        _ => Err(wrong("a latency is at least 0, and at most a minute")),
    }
}

/// The bytes of a size such as `150GB`; `flag` is the argument's name.
///
/// # Errors
/// Where it has no such unit, or is below 0.
pub fn bytes(flag: &'static str, text: &str) -> Result<u64> {
    let wrong =
        |problem| Error::Quantity { flag, text: text.to_owned(), problem, example: "150GB or 140GiB" };
    match in_units(text, BYTES.into_iter())
        .ok_or_else(|| wrong("a size is a number of bytes, with its unit"))?
    {
        size if (0.0..=MOST).contains(&size) => Ok(size as u64),
        _ => Err(wrong("a size is at least 0 and at most 10^18 bytes")),
    }
}

/// How often an hour, of a rate such as `0.05/h` or `1/d`; `flag` is the argument's name.
///
/// # Errors
/// Where it has no such unit, or is below 0.
pub fn per_hour(flag: &'static str, text: &str) -> Result<f64> {
    let wrong = |problem| Error::Quantity { flag, text: text.to_owned(), problem, example: "0.05/h or 1/d" };
    let amount = in_units(text, [("/h", 1.0), ("/d", 1.0 / 24.0)].into_iter());
    match amount.ok_or_else(|| wrong("a rate is how often an hour or a day"))? {
        rate if (0.0..=1e6).contains(&rate) => Ok(rate),
        _ => Err(wrong("a rate is at least 0, and at most a million an hour")),
    }
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

    #[test]
    fn rates_and_sizes_are_read() {
        let link = |text: &str| bytes_per_second("link", text);
        let read = ["1Gbit/s", "100 Mbit/s", "8kbit/s", "500MB/s", " 2 MiB/s", "3B/s"]
            .map(|text| link(text).unwrap());
        assert_eq!(read, [125e6, 12.5e6, 1e3, 500e6, 2_097_152.0, 3.0]);
        assert_eq!((bytes("data-size", "1.5GB"), bytes("data-size", "0B")), (Ok(1_500_000_000), Ok(0)));
        assert_eq!((latency("latency", "0.5ms"), latency("latency", "4 us")), (Ok(0.0005), Ok(4e-6)));
        for wrong in ["", "5", "5s", "-1ms", "nanms", "1e9ms"] {
            assert!(latency("latency", wrong).is_err(), "{wrong}");
        }
        assert_eq!((per_hour("preemptions", "0.05/h"), per_hour("preemptions", "12/d")), (Ok(0.05), Ok(0.5)));
        for wrong in ["", "1", "/s", "1Gbit", "-1Gbit/s", "0MB/s", "nanMB/s", "infGB/s", "1e30GB/s", "é/s"] {
            assert!(link(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "7", "-1GB", "GB", "1GB/s", "nanB"] {
            assert!(bytes("data-size", wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "0.05", "-1/h", "often", "1/s", "nan/h", "1e9/h"] {
            assert!(per_hour("preemptions", wrong).is_err(), "{wrong}");
        }
    }
}
