//! The names of a CPU's instruction sets.

/// Flags of `/proc/cpuinfo` that matter for kernels, and their common names, weakest first.
const INSTRUCTION_SETS: &[(&str, &str)] = &[
    ("sse4_2", "SSE4.2"),
    ("avx", "AVX"),
    ("avx2", "AVX2"),
    ("fma", "FMA"),
    ("avx_vnni", "AVX-VNNI"),
    ("avx512f", "AVX-512"),
    ("avx512_vnni", "AVX512-VNNI"),
    ("avx512_bf16", "AVX512-BF16"),
    ("avx512_fp16", "AVX512-FP16"),
    ("amx_tile", "AMX"),
    ("amx_int8", "AMX-INT8"),
    ("amx_bf16", "AMX-BF16"),
    ("asimd", "NEON"),
    ("sve", "SVE"),
    ("sve2", "SVE2"),
    ("bf16", "BF16"),
    ("i8mm", "I8MM"),
];

/// The names of the instruction sets among a CPU's flags, weakest first.
pub(super) fn names(flags: &[String]) -> Vec<&'static str> {
    let present = |flag: &str| flags.iter().any(|other| other == flag);
    INSTRUCTION_SETS.iter().filter(|(flag, _)| present(flag)).map(|(_, name)| *name).collect()
}

/// Returns whether a CPU with these instruction sets multiplies bf16 numbers natively.
#[must_use]
pub fn native_bf16(instruction_sets: &[&str]) -> bool {
    ["AVX512-BF16", "AMX-BF16", "BF16"].iter().any(|name| instruction_sets.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_flags_become_instruction_set_names() {
        let flags = ["amx_bf16", "avx2", "avx512f", "fpu"].map(String::from);
        assert_eq!(names(&flags), ["AVX2", "AVX-512", "AMX-BF16"]);
        assert!(native_bf16(&names(&flags)));
        assert!(!native_bf16(&[]));
    }
}
