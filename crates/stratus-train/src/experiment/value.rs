//! What a key can hold, and the Rust types that keys have.

use serde::{Serialize, Serializer};
use std::fmt;
use toml::de::DeValue;

/// A configuration value, as it stands in a file or after `--set`.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A string.
    Text(String),
    /// A whole number.
    Whole(i64),
    /// A number with a fraction.
    Number(f64),
    /// True or false.
    Flag(bool),
    /// A list of numbers.
    Numbers(Vec<f64>),
    /// A list of texts.
    Texts(Vec<String>),
    /// A list of whole numbers.
    Wholes(Vec<i64>),
}

/// What a key accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any string.
    Text,
    /// A whole number.
    Whole,
    /// A number.
    Number,
    /// `true` or `false`.
    Flag,
    /// A list of numbers.
    Numbers,
    /// A list of texts.
    Texts,
    /// A list of whole numbers.
    Wholes,
    /// One of these words.
    Choice(&'static [&'static str]),
}

impl Kind {
    /// What the key accepts, as it reads in a message: "a whole number".
    pub fn describe(self) -> String {
        match self {
            Kind::Text => "a text".into(),
            Kind::Whole => "a whole number".into(),
            Kind::Number => "a number".into(),
            Kind::Flag => "true or false".into(),
            Kind::Numbers => "a list of numbers like [0.5, 0.25]".into(),
            Kind::Texts => "a list of texts like [\"a\", \"b\"]".into(),
            Kind::Wholes => "a list of whole numbers like [3, 224, 224]".into(),
            Kind::Choice(words) => {
                let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
                format!("one of {}", quoted.join(", "))
            }
        }
    }
}

/// A type that a key can have.
pub trait Setting: Sized {
    /// What the key accepts.
    const KIND: Kind;
    /// Whether the key may stay without a value.
    const OPTIONAL: bool = false;
    /// The value as the key's type; `None` if it is of another type.
    fn from_value(value: &Value) -> Option<Self>;
    /// The value to write; `None` if it is not set.
    fn to_value(&self) -> Option<Value>;
}

impl Setting for String {
    const KIND: Kind = Kind::Text;
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Text(text) = value { Some(text.clone()) } else { None }
    }
    fn to_value(&self) -> Option<Value> {
        Some(Value::Text(self.clone()))
    }
}

impl Setting for bool {
    const KIND: Kind = Kind::Flag;
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Flag(flag) = value { Some(*flag) } else { None }
    }
    fn to_value(&self) -> Option<Value> {
        Some(Value::Flag(*self))
    }
}

impl Setting for f64 {
    const KIND: Kind = Kind::Number;
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Number(number) => Some(*number),
            Value::Whole(number) => Some(*number as f64),
            _ => None,
        }
    }
    fn to_value(&self) -> Option<Value> {
        Some(Value::Number(*self))
    }
}

impl Setting for Vec<f64> {
    const KIND: Kind = Kind::Numbers;
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Numbers(numbers) => Some(numbers.clone()),
            Value::Wholes(numbers) => Some(numbers.iter().map(|&number| number as f64).collect()),
            _ => None,
        }
    }
    fn to_value(&self) -> Option<Value> {
        Some(Value::Numbers(self.clone()))
    }
}

impl Setting for Vec<String> {
    const KIND: Kind = Kind::Texts;
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Texts(texts) => Some(texts.clone()),
            // The type of an empty list is unknown.
            Value::Wholes(wholes) if wholes.is_empty() => Some(Vec::new()),
            _ => None,
        }
    }
    fn to_value(&self) -> Option<Value> {
        Some(Value::Texts(self.clone()))
    }
}

impl Setting for Vec<usize> {
    const KIND: Kind = Kind::Wholes;
    fn from_value(value: &Value) -> Option<Self> {
        let Value::Wholes(numbers) = value else { return None };
        numbers.iter().map(|&number| usize::try_from(number).ok()).collect()
    }
    fn to_value(&self) -> Option<Value> {
        Some(Value::Wholes(self.iter().map(|&number| i64::try_from(number).unwrap_or(i64::MAX)).collect()))
    }
}

macro_rules! whole_number_settings {
    ($($type:ty),*) => {$(
        impl Setting for $type {
            const KIND: Kind = Kind::Whole;
            fn from_value(value: &Value) -> Option<Self> {
                if let Value::Whole(number) = value { <$type>::try_from(*number).ok() } else { None }
            }
            fn to_value(&self) -> Option<Value> {
                // Keys are limited to what TOML can write, so nothing is ever cut here.
                Some(Value::Whole(i64::try_from(*self).unwrap_or(i64::MAX)))
            }
        }
    )*};
}
whole_number_settings!(usize, u64);

impl<T: Setting> Setting for Option<T> {
    const KIND: Kind = T::KIND;
    const OPTIONAL: bool = true;
    fn from_value(value: &Value) -> Option<Self> {
        T::from_value(value).map(Some)
    }
    fn to_value(&self) -> Option<Value> {
        self.as_ref().and_then(T::to_value)
    }
}

/// Declares an enum whose variants are the words that a key accepts.
macro_rules! choices {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vmeta])* $variant),* }

        impl $name {
            /// The word as it stands in a file.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str(self.as_str())
            }
        }

        impl $crate::experiment::value::Setting for $name {
            const KIND: $crate::experiment::value::Kind =
                $crate::experiment::value::Kind::Choice(&[$($word),*]);
            fn from_value(value: &$crate::experiment::value::Value) -> Option<Self> {
                let $crate::experiment::value::Value::Text(text) = value else { return None };
                match text.as_str() { $($word => Some($name::$variant),)* _ => None }
            }
            fn to_value(&self) -> Option<$crate::experiment::value::Value> {
                Some($crate::experiment::value::Value::Text(self.as_str().to_owned()))
            }
        }
    };
}
pub(crate) use choices;

impl Value {
    /// Converts a TOML value; an error describes a value that no key can hold.
    pub(crate) fn from_toml(value: &DeValue<'_>) -> Result<Value, &'static str> {
        match value {
            DeValue::String(text) => Ok(Value::Text(text.to_string())),
            DeValue::Boolean(flag) => Ok(Value::Flag(*flag)),
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
                .map(Value::Whole)
                .map_err(|_| "a number too large to hold"),
            DeValue::Float(number) => {
                number.as_str().parse().map(Value::Number).map_err(|_| "a number that cannot be read")
            }
            DeValue::Array(items) if items.iter().any(|item| item.get_ref().is_str()) => items
                .iter()
                .map(|item| item.get_ref().as_str().map(str::to_owned))
                .collect::<Option<_>>()
                .map(Value::Texts)
                .ok_or("a list of texts and of something else"),
            DeValue::Array(items) => {
                let values: Vec<Value> =
                    items.iter().filter_map(|item| Value::from_toml(item.get_ref()).ok()).collect();
                let whole = |value: &Value| if let Value::Whole(whole) = value { Some(*whole) } else { None };
                let number = |value: &Value| match value {
                    Value::Whole(whole) => Some(*whole as f64),
                    Value::Number(number) => Some(*number),
                    _ => None,
                };
                if values.len() < items.len() {
                    return Err("a list with something else than numbers");
                }
                if let Some(wholes) = values.iter().map(whole).collect() {
                    return Ok(Value::Wholes(wholes));
                }
                let numbers: Option<_> = values.iter().map(number).collect();
                numbers.map(Value::Numbers).ok_or("a list with something else than numbers")
            }
            DeValue::Datetime(_) => Err("a date"),
            DeValue::Table(_) => Err("a section"),
        }
    }

    /// Reads what stands after `key=` on the command line. Texts need no quotes there, lists of texts no
    /// brackets.
    pub(crate) fn from_argument(kind: Kind, text: &str) -> Result<Value, String> {
        let parsed = DeValue::parse(text);
        match (kind, parsed) {
            (Kind::Text | Kind::Choice(_), Ok(value)) if matches!(value.get_ref(), DeValue::String(_)) => {
                Value::from_toml(value.get_ref()).map_err(str::to_owned)
            }
            (Kind::Text | Kind::Choice(_), _) => Ok(Value::Text(text.to_owned())),
            (Kind::Texts, _) if !text.starts_with('[') => {
                Ok(Value::Texts(text.split(',').map(|part| part.trim().to_owned()).collect()))
            }
            (_, Ok(value)) => Value::from_toml(value.get_ref()).map_err(str::to_owned),
            (_, Err(_)) => Err(format!("`{text}`")),
        }
    }

    /// The numbers that a limit is checked against.
    pub(crate) fn numbers(&self) -> Vec<f64> {
        match self {
            Value::Whole(number) => vec![*number as f64],
            Value::Number(number) => vec![*number],
            Value::Numbers(numbers) => numbers.clone(),
            Value::Wholes(numbers) => numbers.iter().map(|&number| number as f64).collect(),
            Value::Text(_) | Value::Texts(_) | Value::Flag(_) => Vec::new(),
        }
    }
}

/// As TOML writes it.
impl fmt::Display for Value {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => write!(out, "{}", toml::Value::String(text.clone())),
            Value::Whole(number) => write!(out, "{number}"),
            Value::Number(number) => write!(out, "{}", toml::Value::Float(*number)),
            Value::Flag(flag) => write!(out, "{flag}"),
            Value::Numbers(numbers) => {
                let items: Vec<String> =
                    numbers.iter().map(|number| toml::Value::Float(*number).to_string()).collect();
                write!(out, "[{}]", items.join(", "))
            }
            Value::Wholes(numbers) => {
                let items: Vec<String> = numbers.iter().map(i64::to_string).collect();
                write!(out, "[{}]", items.join(", "))
            }
            Value::Texts(texts) => {
                let items: Vec<String> =
                    texts.iter().map(|text| toml::Value::String(text.clone()).to_string()).collect();
                write!(out, "[{}]", items.join(", "))
            }
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Text(text) => serializer.serialize_str(text),
            Value::Whole(number) => serializer.serialize_i64(*number),
            Value::Number(number) => serializer.serialize_f64(*number),
            Value::Flag(flag) => serializer.serialize_bool(*flag),
            Value::Numbers(numbers) => numbers.serialize(serializer),
            Value::Texts(texts) => texts.serialize(serializer),
            Value::Wholes(numbers) => numbers.serialize(serializer),
        }
    }
}
