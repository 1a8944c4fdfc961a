//! Properties of oneDNN's implementations, derived from their names (`impl_info_str`).

/// The prefix of the names of oneDNN's kernels followed by a native pass over their output.
pub(crate) const SEPARATE: &str = "separate:";

/// Returns whether oneDNN fell back to a reference kernel, which no hot layer should run on.
pub(crate) fn is_fallback(implementation: &str) -> bool {
    implementation.trim_start_matches(SEPARATE).starts_with("ref")
}

/// Returns whether it runs on AMX.
pub(crate) fn runs_on_amx(implementation: &str) -> bool {
    implementation.contains("amx")
}

/// Returns whether it multiplies bf16 without converting to f32 first, at least twice as fast as f32.
pub(crate) fn multiplies_bf16(implementation: &str) -> bool {
    runs_on_amx(implementation) || implementation.contains("avx512_core_bf16")
}

/// Returns whether it is the general convolution of a family whose 1×1 variant is `other`. A 1×1 convolution
/// is a matrix product, at which the general variant has never been measured to be faster.
pub(crate) fn is_generalised(implementation: &str, other: &str) -> bool {
    const POINTWISE: &str = "_1x1:";
    if implementation.starts_with(SEPARATE) != other.starts_with(SEPARATE) {
        return false;
    }
    let [implementation, other] = [implementation, other].map(|name| name.trim_start_matches(SEPARATE));
    other.starts_with("jit")
        && other.contains(POINTWISE)
        && other.replacen(POINTWISE, ":", 1) == implementation
}

/// The width in bytes of its vector registers, if its name contains it. Implementations with narrower
/// registers than another's are skipped.
pub(crate) fn register_bytes(implementation: &str) -> Option<u8> {
    let widths = [("avx512", 64), ("avx2", 32), ("sse41", 16)];
    widths.into_iter().find_map(|(name, bytes)| implementation.contains(name).then_some(bytes))
}

/// Returns whether the input and output channels of a product fill the tiles of AMX.
pub(super) fn fill_amx_tiles(channels: [usize; 2]) -> bool {
    // A row of a tile holds 32 numbers of two bytes, and a tile has 16 rows.
    const AMX_TILE_CHANNELS: usize = 32;
    channels.iter().all(|channels| channels.is_multiple_of(AMX_TILE_CHANNELS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_before_a_separate_pass_have_the_properties_of_the_others() {
        assert!(
            is_fallback("ref:any") && is_fallback("separate:ref:any") && !is_fallback("separate:jit:avx2")
        );
        assert!(is_generalised("jit:avx2", "jit_1x1:avx2"));
        assert!(is_generalised("separate:jit:avx2", "separate:jit_1x1:avx2"));
        assert!(!is_generalised("separate:jit:avx2", "jit_1x1:avx2"));
        assert_eq!(register_bytes("separate:jit_1x1:sse41"), Some(16));
    }
}
