//! Floating-point numbers as integers of their width that have their order, so that a register compares as many of them as it holds: twice as many of
//! bf16 as of the `f32` that other kernels compute with.

use crate::native::simd::{Bf16, Element};

/// An element and the integer that stands for it.
pub trait Ordered: Element {
    /// As wide as the element. Larger values have larger keys, both zeros the same, and any NaN the largest.
    type Key: Copy + Ord;
    /// The key of negative infinity.
    const LEAST: Self::Key;

    /// Its key.
    fn key(self) -> Self::Key;
    /// What a key stands for: a positive zero for both, a quiet NaN for all.
    fn of(key: Self::Key) -> Self;
    /// The number of an element of a window, as wide as a key.
    fn number(number: usize) -> Self::Key;
    /// The same as maps of indices have it.
    fn index(number: Self::Key) -> u8;
}

/// Sign and magnitude, which is what these bits are, as two's complement.
macro_rules! ordered {
    ($element:ty, $key:ty, $bits:expr, $of_bits:expr, $infinity:expr) => {
        impl Ordered for $element {
            type Key = $key;
            const LEAST: $key = -$infinity;

            #[inline(always)]
            fn key(self) -> $key {
                let bits = $bits(self).cast_signed();
                let sign = bits >> (<$key>::BITS - 1);
                let magnitude = bits & <$key>::MAX;
                let key = (magnitude ^ sign).wrapping_sub(sign);
                if magnitude > $infinity { <$key>::MAX } else { key }
            }

            #[inline(always)]
            fn of(key: $key) -> Self {
                let sign = key >> (<$key>::BITS - 1);
                let magnitude = (key ^ sign).wrapping_sub(sign);
                $of_bits((magnitude | sign & <$key>::MIN).cast_unsigned())
            }

            #[inline(always)]
            fn number(number: usize) -> $key {
                number as $key
            }

            #[inline(always)]
            fn index(number: $key) -> u8 {
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

    /// The order that pooling asks for.
    fn order(a: f32, b: f32) -> Ordering {
        a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
    }

    fn check<E: Ordered>(numbers: &[E]) {
        for a in numbers {
            let back = E::of(a.key()).load();
            assert!(back == a.load() || back.is_nan() && a.load().is_nan(), "{} {back}", a.load());
            for b in numbers {
                assert_eq!(a.key().cmp(&b.key()), order(a.load(), b.load()), "{} {}", a.load(), b.load());
            }
        }
    }

    #[test]
    fn keys_have_the_order_of_their_numbers() {
        let edges = [0u16, 1, 0x7f, 0x80, 0x3f80, 0x3f81, 0x7f7f, 0x7f80, 0x7f81, 0x7fc0, 0x7fff];
        let steps = (0..0x8000u16).step_by(331);
        let bits: Vec<u16> = edges.into_iter().chain(steps).flat_map(|bits| [bits, bits | 0x8000]).collect();
        check(&bits.iter().map(|&bits| Bf16(bits)).collect::<Vec<_>>());
        let wide = bits.iter().flat_map(|&bits| [0, 1, 0xffff].map(|low| u32::from(bits) << 16 | low));
        check(&wide.map(f32::from_bits).collect::<Vec<_>>());
    }

    #[test]
    fn numbers_of_a_window_come_back() {
        for number in 0..=255 {
            assert_eq!(usize::from(f32::index(f32::number(number))), number);
            assert_eq!(usize::from(Bf16::index(Bf16::number(number))), number);
        }
        assert_eq!([f32::of(f32::LEAST), Bf16::of(Bf16::LEAST).load()], [f32::NEG_INFINITY; 2]);
    }
}
