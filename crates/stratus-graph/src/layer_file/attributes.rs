//! Reads and checks the attributes of one layer.

use crate::Initialisation;
use crate::ops::Conv2d;
use toml::{Table, Value};

/// The maximum count or extent in a layer file.
pub(crate) const MAX_EXTENT: usize = 1 << 20;

/// A missing or invalid attribute.
#[derive(Debug)]
pub(crate) enum AttributeError {
    /// A missing attribute without default.
    Missing(&'static str),
    /// A value other than `need`.
    Invalid { key: &'static str, need: String },
}

/// The keys and values of a layer.
#[derive(Debug)]
pub(crate) struct Attributes<'a> {
    table: &'a Table,
}

impl<'a> Attributes<'a> {
    pub(crate) fn new(table: &'a Table) -> Self {
        Self { table }
    }

    fn read<T>(
        &self,
        key: &'static str,
        need: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, AttributeError> {
        let Some(value) = self.table.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| AttributeError::Invalid { key, need: need.to_owned() })
    }

    /// An integer of at least 1.
    pub(crate) fn count(&self, key: &'static str) -> Result<Option<usize>, AttributeError> {
        self.read(key, &format!("an integer from 1 to {MAX_EXTENT}"), |value| integer(value, 1))
    }

    /// A [`count`](Self::count) that may be zero.
    pub(crate) fn offset(&self, key: &'static str) -> Result<Option<usize>, AttributeError> {
        self.read(key, &format!("an integer from 0 to {MAX_EXTENT}"), |value| integer(value, 0))
    }

    /// A [`count`](Self::count) without default.
    pub(crate) fn required_count(&self, key: &'static str) -> Result<usize, AttributeError> {
        self.count(key)?.ok_or(AttributeError::Missing(key))
    }

    /// `[height, width]`, or one integer for both, each at least 1.
    pub(crate) fn pair(&self, key: &'static str) -> Result<Option<[usize; 2]>, AttributeError> {
        self.pair_from(key, 1)
    }

    /// A [`pair`](Self::pair) without default.
    pub(crate) fn required_pair(&self, key: &'static str) -> Result<[usize; 2], AttributeError> {
        self.pair(key)?.ok_or(AttributeError::Missing(key))
    }

    /// A [`pair`](Self::pair) that may be zero.
    pub(crate) fn padding(&self, key: &'static str) -> Result<Option<[usize; 2]>, AttributeError> {
        self.pair_from(key, 0)
    }

    fn pair_from(&self, key: &'static str, min: usize) -> Result<Option<[usize; 2]>, AttributeError> {
        let need = format!("an integer from {min} to {MAX_EXTENT}, or [height, width]");
        self.read(key, &need, |value| match value {
            Value::Array(_) => integers(value, min)?.try_into().ok(),
            _ => integer(value, min).map(|extent| [extent; 2]),
        })
    }

    /// `[channels, height, width]`.
    pub(crate) fn required_image(&self, key: &'static str) -> Result<[usize; 3], AttributeError> {
        let need = format!("[channels, height, width], each an integer from 1 to {MAX_EXTENT}");
        self.read(key, &need, |value| integers(value, 1)?.try_into().ok())?
            .ok_or(AttributeError::Missing(key))
    }

    /// A number.
    pub(crate) fn number(&self, key: &'static str) -> Result<Option<f32>, AttributeError> {
        self.read(key, "a number", number)
    }

    /// Factors `[vertical, horizontal]`, or one for both: finite and > 0.
    pub(crate) fn factors(&self, key: &'static str) -> Result<Option<[f64; 2]>, AttributeError> {
        let factor = |value: &Value| {
            let number = value.as_float().or_else(|| value.as_integer().map(|number| number as f64));
            number.filter(|number| number.is_finite() && *number > 0.0)
        };
        self.read(key, "a number > 0, or [vertical, horizontal]", |value| match value {
            Value::Array(values) => values.iter().map(factor).collect::<Option<Vec<_>>>()?.try_into().ok(),
            _ => factor(value).map(|factor| [factor; 2]),
        })
    }

    /// True or false.
    pub(crate) fn flag(&self, key: &'static str) -> Result<Option<bool>, AttributeError> {
        self.read(key, "true or false", Value::as_bool)
    }

    /// A string.
    pub(crate) fn string(&self, key: &'static str) -> Result<Option<&'a str>, AttributeError> {
        self.read(key, "a string", Value::as_str)
    }

    /// The name of the network or of a layer.
    pub(crate) fn required_name(&self, key: &'static str) -> Result<&'a str, AttributeError> {
        let need = "a string of at most 128 letters, digits, `_`, `-` and `.`";
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let possible = |text: &&str| (1..=128).contains(&text.len()) && text.chars().all(allowed);
        self.read(key, need, |value| value.as_str().filter(possible))?.ok_or(AttributeError::Missing(key))
    }

    /// A list of strings, or one string.
    pub(crate) fn strings(&self, key: &'static str) -> Result<Option<Vec<&'a str>>, AttributeError> {
        self.read(key, "a list of layer names", |value| match value {
            Value::String(text) => Some(vec![text.as_str()]),
            value => value.as_array()?.iter().map(Value::as_str).collect(),
        })
    }

    /// The initialisation of a parameter. `fan_out` is used by `"kaiming_normal"`; `dirac` and `whitening`
    /// are only for a convolution's weight.
    pub(crate) fn initialisation(
        &self,
        key: &'static str,
        fan_out: usize,
        convolution: Option<&Conv2d>,
    ) -> Result<Option<Initialisation>, AttributeError> {
        let mut need = "\"zeros\", \"ones\", \"kaiming_normal\", { constant = VALUE }, { normal = STD } or \
                        { uniform = BOUND }, with STD and BOUND at \
                        least 0"
            .to_owned();
        if convolution.is_some() {
            need += "; for a convolution's weight also \"dirac\" or \"whitening\"";
        }
        let need = need.as_str();
        self.read(key, need, |value| match value {
            Value::String(text) => match text.as_str() {
                "zeros" => Some(Initialisation::Zeros),
                "ones" => Some(Initialisation::Ones),
                "kaiming_normal" => Some(Initialisation::kaiming_normal(fan_out)),
                "dirac" => convolution.map(|conv| Initialisation::Dirac { bound: conv.bound() }),
                "whitening" => convolution.map(|_| Initialisation::Whitening),
                _ => None,
            },
            Value::Table(table) if table.len() == 1 => {
                let (kind, value) = table.iter().next()?;
                let value = number(value).filter(|value| value.is_finite())?;
                let spread = Some(value).filter(|spread| *spread >= 0.0);
                match kind.as_str() {
                    "constant" => Some(Initialisation::Constant { value }),
                    "normal" => spread.map(|std| Initialisation::Normal { std }),
                    "uniform" => spread.map(|bound| Initialisation::Uniform { bound }),
                    _ => None,
                }
            }
            _ => None,
        })
    }
}

fn integer(value: &Value, min: usize) -> Option<usize> {
    let number = usize::try_from(value.as_integer()?).ok()?;
    (min..=MAX_EXTENT).contains(&number).then_some(number)
}

fn integers(value: &Value, min: usize) -> Option<Vec<usize>> {
    value.as_array()?.iter().map(|value| integer(value, min)).collect()
}

fn number(value: &Value) -> Option<f32> {
    match value {
        Value::Integer(number) => Some(*number as f32),
        Value::Float(number) => Some(*number as f32),
        _ => None,
    }
}
