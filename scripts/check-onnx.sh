#!/usr/bin/env bash
# Exports every network of the zoo, and compares the results of onnxruntime with those of the reference
# backend. onnxruntime is installed into .deps/onnx-check of this checkout: from pinned wheels, checked by
# their hashes, without root.
#
#   scripts/check-onnx.sh                fails if onnxruntime cannot be installed
#   scripts/check-onnx.sh --best-effort  only says so; networks that disagree fail all the same
set -euo pipefail
# shellcheck source=scripts/deps-common.sh
source "$(dirname "$0")/deps-common.sh"

packages=$root/.deps/onnx-check
requirements=$root/scripts/check-onnx.txt

consequence=("exported networks are NOT compared with onnxruntime")

need_python
stamp=$(python3 -c 'import sys; print(*sys.version_info[:2], sys.platform)') || give_up "python3 does not run"
stamp="$stamp $(cksum < "$requirements")"
if [ "$(cat "$packages/installed" 2>/dev/null)" != "$stamp" ]; then
    need_pip
    make_work
    say "fetching onnxruntime"
    pinned_pip install --target "$work/packages" --requirement "$requirements" \
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
# The whole workspace, as `make test` has built it: a single package would be compiled again, as its
# dependencies have other features.
"$cargo" test --quiet --locked --workspace --no-run
rm -rf "$outputs"
"$target/debug/examples/zoo_outputs" "$outputs"
PYTHONPATH=$packages python3 scripts/check-onnx.py "$target/debug/stratus" "$outputs"
