//! Numbers in annotation files, in every form that programs write.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A field that should be a number. Other values become an error once the annotation is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Scalar {
    /// The field is missing, or null.
    #[default]
    Missing,
    /// A number.
    Number(f64),
    /// A non-negative integer, possibly too large for a float. Booleans are 0 and 1.
    Whole(u64),
    /// Anything else, with its description.
    Other(String),
}

impl Scalar {
    /// The field as a non-negative integer: `1`, or `1.0`, which programs with floating-point tables write.
    ///
    /// # Errors
    ///
    /// If the field `name` is missing or anything else.
    pub(super) fn as_u64(&self, name: &str) -> Result<u64, String> {
        match self {
            Self::Whole(number) => Ok(*number),
            // Larger integers are not all representable as floats.
            Self::Number(number)
                if number.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(number) =>
            {
                Ok(*number as u64)
            }
            Self::Number(number) => Err(format!("`{name}` is {number}, expected a non-negative integer")),
            Self::Missing => Err(format!("missing `{name}`")),
            Self::Other(description) => {
                Err(format!("`{name}` is {description}, expected a non-negative integer"))
            }
        }
    }

    /// The field as any number; `None` if it is missing.
    pub(super) fn as_f64(&self, name: &str) -> Result<Option<f64>, String> {
        match self {
            Self::Missing => Ok(None),
            Self::Number(number) => Ok(Some(*number)),
            Self::Whole(number) => Ok(Some(*number as f64)),
            Self::Other(description) => Err(format!("`{name}` is {description}, expected a number")),
        }
    }

    /// The field as a boolean, or 0 or 1; false if it is missing.
    pub(super) fn as_bool(&self, name: &str) -> Result<bool, String> {
        match self.as_f64(name)? {
            None | Some(0.0) => Ok(false),
            Some(1.0) => Ok(true),
            Some(number) => Err(format!("`{name}` is {number}, expected 0 or 1")),
        }
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }

            fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
                Ok(Scalar::Whole(value.into()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
                Ok(Scalar::Whole(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
                Ok(Scalar::Number(value as f64))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar::Number(value))
            }

            fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
                Ok(Scalar::Other(format!("the text \"{}\"", stratus_base::printable(value))))
            }

            fn visit_unit<E>(self) -> Result<Scalar, E> {
                Ok(Scalar::Missing)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Scalar, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Scalar::Other("a list".to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Scalar::Other("an object".to_owned()))
            }
        }

        json.deserialize_any(Any)
    }
}
