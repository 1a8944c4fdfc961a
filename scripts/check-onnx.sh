#!/usr/bin/env bash
# Exports every network of the zoo and compares what onnxruntime makes of it with what the reference backend made.
# onnxruntime comes into .deps/onnx-check of this checkout: pinned wheels, checked by their hashes, without root.
#
#   scripts/check-onnx.sh                fails where onnxruntime cannot be had
#   scripts/check-onnx.sh --best-effort  says so and goes on; networks that disagree fail it all the same
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
packages=$root/.deps/onnx-check
requirements=$root/scripts/check-onnx.txt

best_effort=no
case "${1-}" in
    '') ;;
    --best-effort) best_effort=yes ;;
    *) echo "usage: scripts/check-onnx.sh [--best-effort]" >&2; exit 2 ;;
esac

give_up() {
    echo "check-onnx: $1" >&2
    echo "check-onnx: exported networks are NOT compared with onnxruntime" >&2
    if [ "$best_effort" = yes ]; then exit 0; fi
    exit 1
}

command -v python3 >/dev/null || give_up "python3 is missing"
stamp=$(python3 -c 'import sys; print(*sys.version_info[:2], sys.platform)') || give_up "python3 does not run"
stamp="$stamp $(cksum < "$requirements")"
if [ "$(cat "$packages/installed" 2>/dev/null)" != "$stamp" ]; then
    python3 -m pip --version >/dev/null 2>&1 || give_up "pip is missing for python3 (install python3-pip)"
    mkdir -p "$root/.deps"
    work=$(mktemp -d "$root/.deps/install.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    echo "check-onnx: fetching onnxruntime" >&2
    python3 -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
        --target "$work/packages" --requirement "$requirements" >&2 \
        || give_up "onnxruntime could not be fetched for this system and $(python3 --version)"
    echo "$stamp" > "$work/packages/installed"
    rm -rf "$packages"
    mv -T "$work/packages" "$packages"
    rm -rf "$work"
    trap - EXIT
fi

cd "$root"
target=${CARGO_TARGET_DIR-target}
outputs=$target/onnx-check
cargo=${CARGO-cargo}
"$cargo" build --quiet --locked -p stratus
rm -rf "$outputs"
"$cargo" run --quiet --locked -p stratus-onnx --example zoo_outputs "$outputs"
PYTHONPATH=$packages python3 scripts/check-onnx.py "$target/debug/stratus" "$outputs"
