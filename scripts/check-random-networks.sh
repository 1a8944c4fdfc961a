#!/usr/bin/env bash
# Compares random networks: training steps of oneDNN and of the emulated GPU with those of the reference
# backend, and inference of onnxruntime, for the exported models, with the reference's. onnxruntime is
# installed into .deps/onnx-check of this checkout, as by scripts/check-onnx.sh.
#
#   scripts/check-random-networks.sh N       the first N networks; a hundredth of them on the emulated GPU
#   scripts/check-random-networks.sh A..B    those of the seeds A to B - 1
#   scripts/check-random-networks.sh N --onnx  only onnxruntime; the option comes before --best-effort
set -euo pipefail
seeds=${1:?"usage: check-random-networks.sh N|A..B [--onnx] [--best-effort]"}
shift
only_onnx=no
if [ "${1-}" = --onnx ]; then
    only_onnx=yes
    shift
fi
# shellcheck source=scripts/deps-common.sh
source "$(dirname "$0")/deps-common.sh"

packages=$root/.deps/onnx-check
requirements=$root/scripts/check-onnx.txt

cd "$root"
target=${CARGO_TARGET_DIR-target}
cargo=${CARGO-cargo}
# Each network has its own primitives; finding the oldest of a thousand takes longer than making one.
export ONEDNN_PRIMITIVE_CACHE_CAPACITY=32
if [ "$only_onnx" = no ]; then
    STRATUS_NETWORKS=$seeds "$cargo" test --locked -p stratus-onednn --test it random_networks -- --nocapture
    case $seeds in
        *..*) few=${seeds%..*}..$((${seeds%..*} + (${seeds#*..} - ${seeds%..*} + 99) / 100)) ;;
        *) few=$(((seeds + 99) / 100)) ;;
    esac
    STRATUS_NETWORKS=$few "$cargo" test --locked -p stratus-cuda --test it random_networks -- --nocapture
fi
consequence=("exported random networks are NOT compared with onnxruntime")
installed_packages "$requirements" "$packages" "onnxruntime"
"$cargo" build --quiet --locked -p stratus-onnx --example random_networks
PYTHONPATH=$packages python3 scripts/check-random-networks.py "$target/debug/examples/random_networks" \
    "$target/random-networks" "$seeds"
