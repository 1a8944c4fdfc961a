//! The reasons for which a GPU runs at a lower clock than it could.

use std::fmt;
use std::str::FromStr;

/// The reasons for which a GPU is throttled; neither, if it is not. Its text is `no`, `heat`, `power` or
/// `heat+power`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling {
    /// The chip or its memory is too hot.
    pub heat: bool,
    /// It would draw more power than its limit, or than its power supply allows.
    pub power: bool,
}

impl Throttling {
    /// Returns whether there is a reason.
    #[must_use]
    pub fn is_throttled(self) -> bool {
        self.heat || self.power
    }

    fn name(self) -> &'static str {
        match (self.heat, self.power) {
            (false, false) => "no",
            (true, false) => "heat",
            (false, true) => "power",
            (true, true) => "heat+power",
        }
    }
}

impl fmt::Display for Throttling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error of a text that names no reasons for throttling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("neither `no`, `heat`, `power` nor `heat+power`")]
pub struct UnknownThrottling;

impl FromStr for Throttling {
    type Err = UnknownThrottling;

    fn from_str(text: &str) -> Result<Self, UnknownThrottling> {
        let all = [false, true].map(|heat| [false, true].map(|power| Self { heat, power }));
        all.into_iter().flatten().find(|throttling| throttling.name() == text).ok_or(UnknownThrottling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_parsed_to_the_same_reasons() {
        for text in ["no", "heat", "power", "heat+power"] {
            assert_eq!(text.parse::<Throttling>().unwrap().to_string(), text);
        }
        assert_eq!("no".parse(), Ok(Throttling::default()));
        assert!(!Throttling::default().is_throttled());
        assert!("power".parse::<Throttling>().unwrap().is_throttled());
        for text in ["", "yes", "Heat", "power+heat", "heat+", "heat\n"] {
            assert_eq!(text.parse::<Throttling>(), Err(UnknownThrottling), "{text:?}");
        }
    }
}
