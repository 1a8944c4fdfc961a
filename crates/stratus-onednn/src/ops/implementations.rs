//! What the names of oneDNN's implementations (`impl_info_str`) say about them.

/// Whether the library fell back to a reference kernel, which no hot layer should run on.
pub(crate) fn is_fallback(implementation: &str) -> bool {
    implementation.starts_with("ref")
}

/// Whether it runs on AMX.
pub(crate) fn runs_on_amx(implementation: &str) -> bool {
    implementation.contains("amx")
}

/// Whether it multiplies bf16 without converting to f32 first, at least twice as fast as f32.
pub(crate) fn multiplies_bf16(implementation: &str) -> bool {
    runs_on_amx(implementation) || implementation.contains("avx512_core_bf16")
}

/// Whether it is the general convolution of a family whose 1×1 variant is `other`. A 1×1 convolution is a
/// matrix product, and the general variant has never been found to be faster at it.
pub(crate) fn is_generalised(implementation: &str, other: &str) -> bool {
    const POINTWISE: &str = "_1x1:";
    other.starts_with("jit")
        && other.contains(POINTWISE)
        && other.replacen(POINTWISE, ":", 1) == implementation
}

/// Bytes of the vector registers it computes in, where its name says so. Where one implementation has wider
/// registers, the others are not worth a try.
pub(crate) fn register_bytes(implementation: &str) -> Option<u8> {
    let widths = [("avx512", 64), ("avx2", 32), ("sse41", 16)];
    widths.into_iter().find_map(|(name, bytes)| implementation.contains(name).then_some(bytes))
}

/// Whether the summed and the made channels of a product fill the tiles of AMX.
pub(super) fn fill_amx_tiles(channels: [usize; 2]) -> bool {
    // A row of a tile holds 32 numbers of two bytes, and a tile has 16 rows.
    const FULL: usize = 32;
    channels.iter().all(|channels| channels.is_multiple_of(FULL))
}
