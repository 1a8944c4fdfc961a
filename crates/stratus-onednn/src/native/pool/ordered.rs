//! Floats as integers of the same width and order: maxima of bf16 are then taken over 16-bit integers, 32 per
//! register, instead of converted `f32`.

use crate::native::simd::{Bf16, Element};

/// An element with an integer key.
pub trait Ordered: Element {
    /// An integer as wide as the element. Larger values have larger keys, both zeros the same, and every NaN
    /// the largest.
    type Key: Copy + Ord;
    /// The key of negative infinity.
    const MIN_KEY: Self::Key;

    /// The element's key.
    fn key(self) -> Self::Key;
    /// The element of a key: positive zero for both zeros, a quiet NaN for all.
    fn from_key(key: Self::Key) -> Self;
    /// The index of a window's element, as wide as a key.
    fn index_key(number: usize) -> Self::Key;
    /// The index as a byte.
    fn key_index(number: Self::Key) -> u8;
}

/// Converts between sign-magnitude and two's complement.
macro_rules! ordered {
    ($element:ty, $key:ty, $bits:expr, $bits_to_element:expr, $infinity:expr) => {
        impl Ordered for $element {
            type Key = $key;
            const MIN_KEY: $key = -$infinity;

            #[inline(always)]
            fn key(self) -> $key {
                let bits = $bits(self).cast_signed();
                let sign = bits >> (<$key>::BITS - 1);
                let magnitude = bits & <$key>::MAX;
                let key = (magnitude ^ sign).wrapping_sub(sign);
                if magnitude > $infinity { <$key>::MAX } else { key }
            }

            #[inline(always)]
            fn from_key(key: $key) -> Self {
                let sign = key >> (<$key>::BITS - 1);
                let magnitude = (key ^ sign).wrapping_sub(sign);
                $bits_to_element((magnitude | sign & <$key>::MIN).cast_unsigned())
            }

            #[inline(always)]
            fn index_key(number: usize) -> $key {
                number as $key
            }

            #[inline(always)]
            fn key_index(number: $key) -> u8 {
                number as u8
            }
        }
    };
}

ordered!(f32, i32, f32::to_bits, f32::from_bits, 0x7f80_0000);
ordered!(Bf16, i16, |bf16: Bf16| bf16.0, Bf16, 0x7f80);

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Ordering;

    /// The order that pooling requires.
    fn order(a: f32, b: f32) -> Ordering {
        a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
    }

    fn check<E: Ordered>(numbers: &[E]) {
        for a in numbers {
            let back = E::from_key(a.key()).load();
            assert!(back == a.load() || back.is_nan() && a.load().is_nan(), "{} {back}", a.load());
            for b in numbers {
                assert_eq!(a.key().cmp(&b.key()), order(a.load(), b.load()), "{} {}", a.load(), b.load());
            }
        }
    }

    #[test]
    fn keys_are_ordered_like_their_values() {
        let edges = [0u16, 1, 0x7f, 0x80, 0x3f80, 0x3f81, 0x7f7f, 0x7f80, 0x7f81, 0x7fc0, 0x7fff];
        let steps = (0..0x8000u16).step_by(331);
        let bits: Vec<u16> = edges.into_iter().chain(steps).flat_map(|bits| [bits, bits | 0x8000]).collect();
        check(&bits.iter().map(|&bits| Bf16(bits)).collect::<Vec<_>>());
        let wide = bits.iter().flat_map(|&bits| [0, 1, 0xffff].map(|low| u32::from(bits) << 16 | low));
        check(&wide.map(f32::from_bits).collect::<Vec<_>>());
    }

    #[test]
    fn window_indices_round_trip() {
        for number in 0..=255 {
            assert_eq!(usize::from(f32::key_index(f32::index_key(number))), number);
            assert_eq!(usize::from(Bf16::key_index(Bf16::index_key(number))), number);
        }
        assert_eq!(
            [f32::from_key(f32::MIN_KEY), Bf16::from_key(Bf16::MIN_KEY).load()],
            [f32::NEG_INFINITY; 2]
        );
    }
}
