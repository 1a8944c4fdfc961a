//! Parsing of rates, latencies and sizes.

use crate::error::{Error, Result};

/// Decimal and binary units of bytes, each with its number of bytes.
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
/// Units of bits, each with its number of bytes.
const BITS: [(&str, f64); 3] = [("kbit", 125.0), ("Mbit", 125e3), ("Gbit", 125e6)];
/// Maximum number of bytes, and of bytes per second.
const MAX_BYTES: f64 = 1e18;

/// The number before the first of `units` that the text ends with, times that unit.
fn parse_with_unit(text: &str, mut units: impl Iterator<Item = (&'static str, f64)>) -> Option<f64> {
    let (number, unit) = units.find_map(|(name, unit)| Some((text.trim().strip_suffix(name)?, unit)))?;
    let number: f64 = number.trim().parse().ok()?;
    number.is_finite().then_some(number * unit)
}

/// Parses a rate such as `1Gbit/s` or `500 MB/s`, in bytes/s; `flag` is the name of the argument.
///
/// # Errors
/// If the unit is unknown, or the rate is not above 0.
pub fn bytes_per_second(flag: &'static str, text: &str) -> Result<f64> {
    let example = "1Gbit/s, 100Mbit/s, 500MB/s or 200MiB/s";
    let invalid = |problem| Error::Quantity { flag, text: text.to_owned(), problem, example };
    let amount = text
        .trim()
        .strip_suffix("/s")
        .and_then(|amount| parse_with_unit(amount, BITS.into_iter().chain(BYTES)));
    match amount.ok_or_else(|| invalid("must be a number of bits or bytes per second with a unit"))? {
        rate if rate > 0.0 && rate <= MAX_BYTES => Ok(rate),
        _ => Err(invalid("must be above 0 and at most 10^18 bytes/s")),
    }
}

/// Parses a latency such as `0.2ms` or `5us`, in seconds; `flag` is the name of the argument.
///
/// # Errors
/// If the unit is unknown, or the value is negative.
pub fn latency(flag: &'static str, text: &str) -> Result<f64> {
    let invalid = |problem| Error::Quantity { flag, text: text.to_owned(), problem, example: "0.2ms or 5us" };
    let units = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3)];
    match parse_with_unit(text, units.into_iter()).ok_or_else(|| invalid("must be a number with a unit"))? {
        seconds if (0.0..=60.0).contains(&seconds) => Ok(seconds),
        _ => Err(invalid("must be at least 0 and at most a minute")),
    }
}

/// Parses a size such as `150GB`, in bytes; `flag` is the name of the argument.
///
/// # Errors
/// If the unit is unknown, or the value is negative.
pub fn bytes(flag: &'static str, text: &str) -> Result<u64> {
    let invalid =
        |problem| Error::Quantity { flag, text: text.to_owned(), problem, example: "150GB or 140GiB" };
    match parse_with_unit(text, BYTES.into_iter())
        .ok_or_else(|| invalid("must be a number of bytes with a unit"))?
    {
        size if (0.0..=MAX_BYTES).contains(&size) => Ok(size as u64),
        _ => Err(invalid("must be at least 0 and at most 10^18 bytes")),
    }
}

/// Parses a frequency such as `0.05/h` or `1/d`, per hour; `flag` is the name of the argument.
///
/// # Errors
/// If the unit is unknown, or the value is negative.
pub fn per_hour(flag: &'static str, text: &str) -> Result<f64> {
    let invalid =
        |problem| Error::Quantity { flag, text: text.to_owned(), problem, example: "0.05/h or 1/d" };
    let amount = parse_with_unit(text, [("/h", 1.0), ("/d", 1.0 / 24.0)].into_iter());
    match amount.ok_or_else(|| invalid("must be a number per hour (/h) or per day (/d)"))? {
        rate if (0.0..=1e6).contains(&rate) => Ok(rate),
        _ => Err(invalid("must be at least 0 and at most a million per hour")),
    }
}

/// Parses the emissions of electricity such as `400g/kWh`, in g of CO₂ per kWh; `flag` is the name of the
/// argument.
///
/// # Errors
/// If the unit is unknown, or the value is negative.
pub fn grams_per_kwh(flag: &'static str, text: &str) -> Result<f64> {
    let invalid =
        |problem| Error::Quantity { flag, text: text.to_owned(), problem, example: "400g/kWh or 0.4kg/kWh" };
    let amount = parse_with_unit(text, [("kg/kWh", 1e3), ("g/kWh", 1.0)].into_iter());
    match amount.ok_or_else(|| invalid("must be a mass of CO2 per kWh (g/kWh or kg/kWh)"))? {
        grams if (0.0..=1e4).contains(&grams) => Ok(grams),
        _ => Err(invalid("must be at least 0 and at most 10 kg/kWh")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_rates_and_sizes() {
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
        let grid = |text: &str| grams_per_kwh("grid", text);
        assert_eq!((grid("400g/kWh"), grid("0.05 kg/kWh"), grid("0g/kWh")), (Ok(400.0), Ok(50.0), Ok(0.0)));
        for wrong in ["", "400", "400g", "-1g/kWh", "11kg/kWh", "nang/kWh", "g/kWh"] {
            assert!(grid(wrong).is_err(), "{wrong}");
        }
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
