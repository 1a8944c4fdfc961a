#!/usr/bin/env bash
# Formats the source. `cargo fmt` follows only modules that a file declares itself, so the files of
# `with_operations!` are passed to rustfmt by name.
#
#   scripts/format.sh            formats
#   scripts/format.sh --check    fails if a file is not formatted, and shows the differences
set -euo pipefail
cd "$(dirname "$0")/.."

"${CARGO-cargo}" fmt --all -- "$@"
names=$(sed -n 's/^ *\([a-z0-9_]*\): [A-Za-z0-9]* \[.*\];$/\1/p' crates/stratus-graph/src/ops/mod.rs)
[ -n "$names" ] || { echo "error: found no operations in with_operations!" >&2; exit 1; }
files=()
for name in $names; do
    found=$(find crates/*/src -name "$name.rs")
    # The operation, its kernels, cases, on two devices, and in ONNX.
    [ "$(wc -l <<< "$found")" -ge 6 ] || { echo "error: $name has less than six files" >&2; exit 1; }
    mapfile -t -O "${#files[@]}" files <<< "$found"
done
rustfmt --edition 2024 "$@" "${files[@]}"
