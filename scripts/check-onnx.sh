#!/usr/bin/env bash
# Exports every network of the zoo, and compares the results of onnxruntime with those of the reference
# backend. Imports small models of every operator, and networks as converters of other programs write them,
# and compares their results with those of the original models; classifies images with a quantised network.
# onnxruntime is installed into .deps/onnx-check of this checkout, OpenVINO into .deps/openvino-check: from
# pinned wheels, checked by their hashes, without root.
#
#   scripts/check-onnx.sh                fails if onnxruntime cannot be installed
#   scripts/check-onnx.sh --best-effort  only reports it; networks that disagree still fail
#   scripts/check-onnx.sh --all          more models of operators, and OpenVINO; before --best-effort
set -euo pipefail
models=()
openvino=()
if [ "${1-}" = --all ]; then
    models=(--all)
    openvino=(--openvino)
    shift
fi
# shellcheck source=scripts/deps-common.sh
source "$(dirname "$0")/deps-common.sh"

packages=$root/.deps/onnx-check
requirements=$root/scripts/check-onnx.txt

consequence=("exported networks and imported operators are NOT compared with onnxruntime")

installed_packages "$requirements" "$packages" "onnxruntime"
if [ ${#openvino[@]} -gt 0 ]; then
    consequence=("quantised networks are NOT compared with OpenVINO")
    installed_packages "$root/scripts/check-openvino.txt" "$root/.deps/openvino-check" "OpenVINO"
fi

cd "$root"
target=${CARGO_TARGET_DIR-target}
outputs=$target/onnx-check
cargo=${CARGO-cargo}
# The whole workspace, as `make test` builds it: for a single package, dependencies would be compiled again
# with other features.
"$cargo" test --quiet --locked --workspace --no-run
rm -rf "$outputs"
"$target/debug/examples/zoo_outputs" "$outputs"
PYTHONPATH=$packages python3 scripts/check-onnx.py "$target/debug/stratus" "$outputs"
PYTHONPATH=$packages:$root/.deps/openvino-check python3 scripts/check-onnx-int8.py "${openvino[@]}" \
    "$target/debug/stratus" "$outputs/int8"
rm -rf "$outputs/int8"
PYTHONPATH=$packages python3 scripts/check-onnx-operators.py "${models[@]}" \
    "$target/debug/examples/reimport" "$outputs/operators"
rm -rf "$outputs/operators"
PYTHONPATH=$packages python3 scripts/check-onnx-exporters.py "$target/debug/examples/reimport" \
    "$outputs/exporters"
rm -rf "$outputs/exporters"
