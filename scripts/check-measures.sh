#!/usr/bin/env bash
# Compares the metrics of labels and of numbers with scikit-learn's, for a thousand random tables. The
# libraries are installed into .deps/check-measures of this checkout: from pinned wheels, checked by their
# hashes, without root.
#
#   scripts/check-measures.sh                fails if they cannot be installed
#   scripts/check-measures.sh --best-effort  only reports it; metrics that differ still fail
#   scripts/check-measures.sh --write        writes a few tables as the fixtures of the tests
set -euo pipefail
write=()
if [ "${1-}" = --write ]; then
    write=(--write)
    shift
fi
# shellcheck source=scripts/deps-common.sh
source "$(dirname "$0")/deps-common.sh"

packages=$root/.deps/check-measures
requirements=$root/scripts/check-measures.txt

consequence=("metrics are NOT compared with scikit-learn's")

installed_packages "$requirements" "$packages" "scikit-learn"

cd "$root"
target=${CARGO_TARGET_DIR-target}
cargo=${CARGO-cargo}
"$cargo" build --quiet --locked -p stratus-measures --example measure_tables
PYTHONPATH=$packages python3 scripts/check-measures.py "$target/debug/examples/measure_tables" "${write[@]}"
