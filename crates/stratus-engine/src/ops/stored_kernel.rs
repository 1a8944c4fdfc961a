//! The stored form of kernels in plans: `{"name": attributes}`. The names of activations are those of
//! [`activation`]; serde derives the others from the types.

use super::{Kernel, activation};
use serde::de::value::EnumAccessDeserializer;
use serde::de::{DeserializeSeed, EnumAccess, IntoDeserializer, VariantAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

impl Serialize for Kernel {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::ActivationBackward(kernel) => kernel.serialize(serializer),
            Self::ActivationForward(kernel) => kernel.serialize(serializer),
            _ => Self::serialize(self, serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Kernel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_enum("Kernel", &[], StoredKernel)
    }
}

/// Reads a kernel by its name.
struct StoredKernel;

impl<'de> Visitor<'de> for StoredKernel {
    type Value = Kernel;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a kernel with its attributes")
    }

    fn visit_enum<A: EnumAccess<'de>>(self, stored: A) -> Result<Kernel, A::Error> {
        let (name, content) = stored.variant::<String>()?;
        activation::read_kernel(&name, content).unwrap_or_else(|content| {
            Kernel::deserialize(EnumAccessDeserializer::new(NamedVariant { name, content }))
        })
    }
}

/// A stored kernel whose name has been read.
struct NamedVariant<V> {
    name: String,
    content: V,
}

impl<'de, V: VariantAccess<'de>> EnumAccess<'de> for NamedVariant<V> {
    type Error = V::Error;
    type Variant = V;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, V), V::Error> {
        Ok((seed.deserialize(self.name.into_deserializer())?, self.content))
    }
}
