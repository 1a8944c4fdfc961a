#!/usr/bin/env bash
# Imports networks of torchvision as torch.onnx exports them (EfficientNet-B0, MobileNetV3, RegNetY-400MF,
# ShuffleNetV2, ConvNeXt-Tiny, DenseNet-121), and compares outputs with onnxruntime's and the gradients of an
# iteration with PyTorch's. Imports a network of every family of torchvision as both exporters write it, and
# compares outputs (not with NETWORKS). PyTorch is installed into .deps/check-imported of this checkout: from
# pinned wheels, checked by their hashes, without root. They are 3 GB to fetch and 6 GB on disk; if
# STRATUS_TORCH names a Python with torch, torchvision, onnx, onnxscript, onnxruntime and numpy, that is used
# instead.
#
#   scripts/check-imported.sh                fails if PyTorch cannot be installed
#   scripts/check-imported.sh --best-effort  only reports it; networks that disagree still fail
#
# NETWORKS='convnext_tiny' checks only these.
set -euo pipefail
# shellcheck source=scripts/deps-common.sh
source "$(dirname "$0")/deps-common.sh"

packages=$root/.deps/check-imported

consequence=("imported networks are NOT compared with PyTorch")

python=${STRATUS_TORCH-}
if [ -z "$python" ]; then
    installed_packages "$root/scripts/check-imported.txt" "$packages" "PyTorch"
    python=python3
    export PYTHONPATH=$packages
fi

cd "$root"
target=${CARGO_TARGET_DIR-target}
cargo=${CARGO-cargo}
# The whole workspace, as `make test` builds it.
"$cargo" test --quiet --locked --workspace --no-run
rm -rf "$target/check-imported"
# shellcheck disable=SC2086 # A list of names.
"$python" scripts/check-imported.py "$target/debug/examples/imported_step" "$target/check-imported" \
    ${NETWORKS-}
if [ -z "${NETWORKS-}" ]; then
    "$python" scripts/check-onnx-exporters.py "$target/debug/examples/reimport" \
        "$target/check-imported" --torch
fi
rm -rf "$target/check-imported"
