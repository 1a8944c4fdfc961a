//! Numbers of a file of annotations, in every form that programs write them in.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A field that should be a number. What else it is becomes an error where the annotation is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Scalar {
    /// The field is missing, or null.
    #[default]
    Missing,
    /// A number; truth values are 0 and 1.
    Number(f64),
    /// A whole number that is not negative, which a floating-point number may not hold.
    Whole(u64),
    /// Something else: what.
    Other(String),
}

impl Scalar {
    /// A whole number: `1`, and `1.0` as programs with floating-point tables write it.
    ///
    /// # Errors
    ///
    /// What the field `name` is instead.
    pub(super) fn whole(&self, name: &str) -> Result<u64, String> {
        match self {
            Self::Whole(number) => Ok(*number),
            // Beyond this not every whole number has a floating-point number of its own.
            Self::Number(number)
                if number.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(number) =>
            {
                Ok(*number as u64)
            }
            Self::Number(number) => Err(format!("its {name} is {number}, and a whole number is needed")),
            Self::Missing => Err(format!("it has no {name}")),
            Self::Other(what) => Err(format!("its {name} is {what}, and a whole number is needed")),
        }
    }

    /// Any number; `None` where the field is missing.
    pub(super) fn number(&self, name: &str) -> Result<Option<f64>, String> {
        match self {
            Self::Missing => Ok(None),
            Self::Number(number) => Ok(Some(*number)),
            Self::Whole(number) => Ok(Some(*number as f64)),
            Self::Other(what) => Err(format!("its {name} is {what}, and a number is needed")),
        }
    }

    /// A truth value, or a number that stands for one; no where the field is missing.
    pub(super) fn flag(&self, name: &str) -> Result<bool, String> {
        match self.number(name)? {
            None | Some(0.0) => Ok(false),
            Some(1.0) => Ok(true),
            Some(number) => Err(format!("its {name} is {number}, and 0 or 1 is needed")),
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
