//! Values of keys, and the Rust types of keys.

use serde::{Serialize, Serializer};
use std::fmt;
use toml::de::DeValue;

/// A configuration value, as written in a file or after `--set`.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A string.
    String(String),
    /// An integer.
    Integer(i64),
    /// A floating-point number.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// A list of numbers.
    FloatList(Vec<f64>),
    /// A list of strings.
    StringList(Vec<String>),
    /// A list of integers.
    IntegerList(Vec<i64>),
}

/// The type of values that a key accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// Any string.
    String,
    /// An integer.
    Integer,
    /// A number.
    Float,
    /// `true` or `false`.
    Bool,
    /// A list of numbers.
    FloatList,
    /// A list of strings.
    StringList,
    /// A list of integers.
    IntegerList,
    /// One of these words.
    Choice(&'static [&'static str]),
}

impl ValueKind {
    /// The phrase for messages, such as "an integer".
    pub fn describe(self) -> String {
        match self {
            ValueKind::String => "a string".into(),
            ValueKind::Integer => "an integer".into(),
            ValueKind::Float => "a number".into(),
            ValueKind::Bool => "true or false".into(),
            ValueKind::FloatList => "a list of numbers like [0.5, 0.25]".into(),
            ValueKind::StringList => "a list of strings like [\"a\", \"b\"]".into(),
            ValueKind::IntegerList => "a list of integers like [3, 224, 224]".into(),
            ValueKind::Choice(words) => {
                let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
                format!("one of {}", quoted.join(", "))
            }
        }
    }
}

/// A type that a key can have.
pub trait Setting: Sized {
    /// The type of values that the key accepts.
    const KIND: ValueKind;
    /// True if the key may be unset.
    const OPTIONAL: bool = false;
    /// The value as the key's type; `None` if it is of another type.
    fn from_value(value: &Value) -> Option<Self>;
    /// The value to write; `None` if it is not set.
    fn to_value(&self) -> Option<Value>;
}

impl Setting for String {
    const KIND: ValueKind = ValueKind::String;
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::String(text) = value { Some(text.clone()) } else { None }
    }
    fn to_value(&self) -> Option<Value> {
        Some(Value::String(self.clone()))
    }
}

impl Setting for bool {
    const KIND: ValueKind = ValueKind::Bool;
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Bool(flag) = value { Some(*flag) } else { None }
    }
    fn to_value(&self) -> Option<Value> {
        Some(Value::Bool(*self))
    }
}

impl Setting for f64 {
    const KIND: ValueKind = ValueKind::Float;
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Float(number) => Some(*number),
            Value::Integer(number) => Some(*number as f64),
            _ => None,
        }
    }
    fn to_value(&self) -> Option<Value> {
        Some(Value::Float(*self))
    }
}

impl Setting for Vec<f64> {
    const KIND: ValueKind = ValueKind::FloatList;
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::FloatList(numbers) => Some(numbers.clone()),
            Value::IntegerList(numbers) => Some(numbers.iter().map(|&number| number as f64).collect()),
            _ => None,
        }
    }
    fn to_value(&self) -> Option<Value> {
        Some(Value::FloatList(self.clone()))
    }
}

impl Setting for Vec<String> {
    const KIND: ValueKind = ValueKind::StringList;
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::StringList(texts) => Some(texts.clone()),
            // The type of an empty list is unknown.
            Value::IntegerList(wholes) if wholes.is_empty() => Some(Vec::new()),
            _ => None,
        }
    }
    fn to_value(&self) -> Option<Value> {
        Some(Value::StringList(self.clone()))
    }
}

impl Setting for Vec<usize> {
    const KIND: ValueKind = ValueKind::IntegerList;
    fn from_value(value: &Value) -> Option<Self> {
        let Value::IntegerList(numbers) = value else { return None };
        numbers.iter().map(|&number| usize::try_from(number).ok()).collect()
    }
    fn to_value(&self) -> Option<Value> {
        Some(Value::IntegerList(
            self.iter().map(|&number| i64::try_from(number).unwrap_or(i64::MAX)).collect(),
        ))
    }
}

macro_rules! whole_number_settings {
    ($($type:ty),*) => {$(
        impl Setting for $type {
            const KIND: ValueKind = ValueKind::Integer;
            fn from_value(value: &Value) -> Option<Self> {
                if let Value::Integer(number) = value { <$type>::try_from(*number).ok() } else { None }
            }
            fn to_value(&self) -> Option<Value> {
                // Keys are constrained to the integers of TOML, so this never saturates.
                Some(Value::Integer(i64::try_from(*self).unwrap_or(i64::MAX)))
            }
        }
    )*};
}
whole_number_settings!(usize, u64);

impl<T: Setting> Setting for Option<T> {
    const KIND: ValueKind = T::KIND;
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
            /// The word in files.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str(self.as_str())
            }
        }

        impl $crate::value::Setting for $name {
            const KIND: $crate::value::ValueKind =
                $crate::value::ValueKind::Choice(&[$($word),*]);
            fn from_value(value: &$crate::value::Value) -> Option<Self> {
                let $crate::value::Value::String(text) = value else { return None };
                match text.as_str() { $($word => Some($name::$variant),)* _ => None }
            }
            fn to_value(&self) -> Option<$crate::value::Value> {
                Some($crate::value::Value::String(self.as_str().to_owned()))
            }
        }
    };
}
pub(crate) use choices;

impl Value {
    /// The bytes of a text or list, besides those of the value itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::String(text) => text.len(),
            Self::FloatList(numbers) => size_of_val(numbers.as_slice()),
            Self::IntegerList(numbers) => size_of_val(numbers.as_slice()),
            Self::StringList(texts) => texts.iter().map(|text| size_of::<String>() + text.len()).sum(),
            Self::Integer(_) | Self::Float(_) | Self::Bool(_) => 0,
        }
    }

    /// Converts a TOML value; an error describes a value that no key can hold.
    pub(crate) fn from_toml(value: &DeValue<'_>) -> Result<Value, &'static str> {
        match value {
            DeValue::String(text) => Ok(Value::String(text.to_string())),
            DeValue::Boolean(flag) => Ok(Value::Bool(*flag)),
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
                .map(Value::Integer)
                .map_err(|_| "a number that is too large"),
            DeValue::Float(number) => {
                number.as_str().parse().map(Value::Float).map_err(|_| "an invalid number")
            }
            DeValue::Array(items) if items.iter().any(|item| item.get_ref().is_str()) => items
                .iter()
                .map(|item| item.get_ref().as_str().map(str::to_owned))
                .collect::<Option<_>>()
                .map(Value::StringList)
                .ok_or("a list of mixed types"),
            DeValue::Array(items) => {
                let values: Vec<Value> =
                    items.iter().filter_map(|item| Value::from_toml(item.get_ref()).ok()).collect();
                let integer =
                    |value: &Value| if let Value::Integer(number) = value { Some(*number) } else { None };
                let float = |value: &Value| match value {
                    Value::Integer(number) => Some(*number as f64),
                    Value::Float(number) => Some(*number),
                    _ => None,
                };
                if values.len() < items.len() {
                    return Err("a list that is not all numbers");
                }
                if let Some(integers) = values.iter().map(integer).collect() {
                    return Ok(Value::IntegerList(integers));
                }
                let floats: Option<_> = values.iter().map(float).collect();
                floats.map(Value::FloatList).ok_or("a list that is not all numbers")
            }
            DeValue::Datetime(_) => Err("a date"),
            DeValue::Table(_) => Err("a section"),
        }
    }

    /// Parses the text after `key=` on the command line. Strings need no quotes there, lists of strings no
    /// brackets.
    pub(crate) fn from_argument(kind: ValueKind, text: &str) -> Result<Value, String> {
        let parsed = DeValue::parse(text);
        match (kind, parsed) {
            (ValueKind::String | ValueKind::Choice(_), Ok(value))
                if matches!(value.get_ref(), DeValue::String(_)) =>
            {
                Value::from_toml(value.get_ref()).map_err(str::to_owned)
            }
            (ValueKind::String | ValueKind::Choice(_), _) => Ok(Value::String(text.to_owned())),
            (ValueKind::StringList, _) if !text.starts_with('[') => {
                Ok(Value::StringList(text.split(',').map(|part| part.trim().to_owned()).collect()))
            }
            (_, Ok(value)) => Value::from_toml(value.get_ref()).map_err(str::to_owned),
            (_, Err(_)) => Err(format!("`{text}`")),
        }
    }

    /// The numbers that a constraint applies to.
    pub(crate) fn numbers(&self) -> Vec<f64> {
        match self {
            Value::Integer(number) => vec![*number as f64],
            Value::Float(number) => vec![*number],
            Value::FloatList(numbers) => numbers.clone(),
            Value::IntegerList(numbers) => numbers.iter().map(|&number| number as f64).collect(),
            Value::String(_) | Value::StringList(_) | Value::Bool(_) => Vec::new(),
        }
    }
}

/// Writes the value as TOML.
impl fmt::Display for Value {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::String(text) => write!(out, "{}", toml::Value::String(text.clone())),
            Value::Integer(number) => write!(out, "{number}"),
            Value::Float(number) => write!(out, "{}", toml::Value::Float(*number)),
            Value::Bool(flag) => write!(out, "{flag}"),
            Value::FloatList(numbers) => {
                let items: Vec<String> =
                    numbers.iter().map(|number| toml::Value::Float(*number).to_string()).collect();
                write!(out, "[{}]", items.join(", "))
            }
            Value::IntegerList(numbers) => {
                let items: Vec<String> = numbers.iter().map(i64::to_string).collect();
                write!(out, "[{}]", items.join(", "))
            }
            Value::StringList(texts) => {
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
            Value::String(text) => serializer.serialize_str(text),
            Value::Integer(number) => serializer.serialize_i64(*number),
            Value::Float(number) => serializer.serialize_f64(*number),
            Value::Bool(flag) => serializer.serialize_bool(*flag),
            Value::FloatList(numbers) => numbers.serialize(serializer),
            Value::StringList(texts) => texts.serialize(serializer),
            Value::IntegerList(numbers) => numbers.serialize(serializer),
        }
    }
}
