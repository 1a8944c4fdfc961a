#!/usr/bin/env bash
# Compares a run's event file, as TensorBoard reads it, with the run's own tables, also after a resume.
# TensorBoard is installed into .deps/check-tensorboard of this checkout: from pinned wheels, checked by their
# hashes, without root.
#
#   scripts/check-tensorboard.sh                fails if it cannot be installed
#   scripts/check-tensorboard.sh --best-effort  only reports it; events that differ still fail
set -euo pipefail
# shellcheck source=scripts/deps-common.sh
source "$(dirname "$0")/deps-common.sh"

packages=$root/.deps/check-tensorboard
requirements=$root/scripts/check-tensorboard.txt

consequence=("event files are NOT read by TensorBoard")

installed_packages "$requirements" "$packages" "TensorBoard"

cd "$root"
target=${CARGO_TARGET_DIR-target}
cargo=${CARGO-cargo}
# The whole workspace, as `make test` builds it.
"$cargo" test --quiet --locked --workspace --no-run
rm -rf "$target/check-tensorboard"
PYTHONPATH=$packages python3 scripts/check-tensorboard.py "$target/debug/stratus" "$target/check-tensorboard"
