//! Reading the attributes of one layer, of whatever type they were written.

use crate::Initialisation;
use crate::ops::Conv2d;
use toml::{Table, Value};

/// The largest count or extent that a layer file may give.
pub(crate) const LARGEST: usize = 1 << 20;

/// An attribute that is missing, or not what it should be.
#[derive(Debug)]
pub(crate) enum AttributeError {
    /// It has no default and is not there.
    Missing(&'static str),
    /// It is something else than `need`.
    Wrong { key: &'static str, need: String },
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
        read(value).map(Some).ok_or_else(|| AttributeError::Wrong { key, need: need.to_owned() })
    }

    /// A whole number, at least 1.
    pub(crate) fn count(&self, key: &'static str) -> Result<Option<usize>, AttributeError> {
        self.read(key, &format!("a whole number from 1 to {LARGEST}"), |value| whole(value, 1))
    }

    /// A [`count`](Self::count) that may be zero.
    pub(crate) fn offset(&self, key: &'static str) -> Result<Option<usize>, AttributeError> {
        self.read(key, &format!("a whole number from 0 to {LARGEST}"), |value| whole(value, 0))
    }

    /// A [`count`](Self::count) without default.
    pub(crate) fn needed_count(&self, key: &'static str) -> Result<usize, AttributeError> {
        self.count(key)?.ok_or(AttributeError::Missing(key))
    }

    /// `[height, width]`, or one whole number for both, at least 1.
    pub(crate) fn pair(&self, key: &'static str) -> Result<Option<[usize; 2]>, AttributeError> {
        self.pair_from(key, 1)
    }

    /// A [`pair`](Self::pair) without default.
    pub(crate) fn needed_pair(&self, key: &'static str) -> Result<[usize; 2], AttributeError> {
        self.pair(key)?.ok_or(AttributeError::Missing(key))
    }

    /// A [`pair`](Self::pair) that may be zero.
    pub(crate) fn padding(&self, key: &'static str) -> Result<Option<[usize; 2]>, AttributeError> {
        self.pair_from(key, 0)
    }

    fn pair_from(&self, key: &'static str, least: usize) -> Result<Option<[usize; 2]>, AttributeError> {
        let need = format!("a whole number from {least} to {LARGEST}, or two of them, [height, width]");
        self.read(key, &need, |value| match value {
            Value::Array(_) => wholes(value, least)?.try_into().ok(),
            _ => whole(value, least).map(|extent| [extent; 2]),
        })
    }

    /// `[channels, height, width]`.
    pub(crate) fn needed_image(&self, key: &'static str) -> Result<[usize; 3], AttributeError> {
        let need = format!("[channels, height, width], each a whole number from 1 to {LARGEST}");
        self.read(key, &need, |value| wholes(value, 1)?.try_into().ok())?.ok_or(AttributeError::Missing(key))
    }

    /// A number.
    pub(crate) fn number(&self, key: &'static str) -> Result<Option<f32>, AttributeError> {
        self.read(key, "a number", number)
    }

    /// Factors `[vertical, horizontal]`, or one for both: finite numbers, more than 0.
    pub(crate) fn factors(&self, key: &'static str) -> Result<Option<[f64; 2]>, AttributeError> {
        let factor = |value: &Value| {
            let number = value.as_float().or_else(|| value.as_integer().map(|number| number as f64));
            number.filter(|number| number.is_finite() && *number > 0.0)
        };
        self.read(key, "a number, more than 0, or two of them, [vertical, horizontal]", |value| match value {
            Value::Array(values) => values.iter().map(factor).collect::<Option<Vec<_>>>()?.try_into().ok(),
            _ => factor(value).map(|factor| [factor; 2]),
        })
    }

    /// True or false.
    pub(crate) fn flag(&self, key: &'static str) -> Result<Option<bool>, AttributeError> {
        self.read(key, "true or false", Value::as_bool)
    }

    /// A text.
    pub(crate) fn text(&self, key: &'static str) -> Result<Option<&'a str>, AttributeError> {
        self.read(key, "a text", Value::as_str)
    }

    /// The name of the network or of a layer.
    pub(crate) fn needed_name(&self, key: &'static str) -> Result<&'a str, AttributeError> {
        let need = "a text of at most 128 letters, digits, `_`, `-` and `.`";
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let possible = |text: &&str| (1..=128).contains(&text.len()) && text.chars().all(allowed);
        self.read(key, need, |value| value.as_str().filter(possible))?.ok_or(AttributeError::Missing(key))
    }

    /// A list of texts, or one.
    pub(crate) fn texts(&self, key: &'static str) -> Result<Option<Vec<&'a str>>, AttributeError> {
        self.read(key, "a list of names of layers", |value| match value {
            Value::String(text) => Some(vec![text.as_str()]),
            value => value.as_array()?.iter().map(Value::as_str).collect(),
        })
    }

    /// How a parameter begins. `fan_out` is what `"kaiming_normal"` depends on; `dirac` and `whitening` are
    /// of a convolution's weight.
    pub(crate) fn initialisation(
        &self,
        key: &'static str,
        fan_out: usize,
        convolution: Option<&Conv2d>,
    ) -> Result<Option<Initialisation>, AttributeError> {
        let mut need = "\"zeros\", \"ones\", \"kaiming_normal\", { constant = VALUE }, { normal = STD } or \
                        { uniform = BOUND }, these two at \
                        least 0"
            .to_owned();
        if convolution.is_some() {
            need += "; of a convolution's weight also \"dirac\" or \"whitening\"";
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

fn whole(value: &Value, least: usize) -> Option<usize> {
    let number = usize::try_from(value.as_integer()?).ok()?;
    (least..=LARGEST).contains(&number).then_some(number)
}

fn wholes(value: &Value, least: usize) -> Option<Vec<usize>> {
    value.as_array()?.iter().map(|value| whole(value, least)).collect()
}

fn number(value: &Value) -> Option<f32> {
    match value {
        Value::Integer(number) => Some(*number as f32),
        Value::Float(number) => Some(*number as f32),
        _ => None,
    }
}
