#!/usr/bin/env bash
# Trains a tiny network on synthetic images for a million iterations, with validation and a checkpoint after
# every epoch, and fails if anything grows with the number of iterations: memory, descriptors, the time of an
# epoch, bytes per epoch of the files, the number of checkpoints. Then it times the commands that read the
# run.
#
#   scripts/long-run.sh [ITERATIONS] [FOLDER]   FOLDER: default target/long-run; it is replaced
#
# STRATUS names the program; without it, the release build is made first.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ ${1:-} != -* ]] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
target=${CARGO_TARGET_DIR-target}
if [ -z "${STRATUS:-}" ]; then
    "${CARGO-cargo}" build --quiet --release --locked -p stratus
    STRATUS=$target/release/stratus
fi
python3 scripts/long-run.py "$STRATUS" "${1:-1000000}" "${2:-$target/long-run}"
