#!/usr/bin/env bash
# Compares what polars and pandas read of the tables that `stratus collect --out` writes, and what a trace
# says, with each other and with the run. The libraries are installed into .deps/check-tables of this
# checkout: from pinned wheels, checked by their hashes, without root.
#
#   scripts/check-tables.sh                fails if they cannot be installed
#   scripts/check-tables.sh --best-effort  only says so; tables that differ fail all the same
set -euo pipefail
# shellcheck source=scripts/deps-common.sh
source "$(dirname "$0")/deps-common.sh"

packages=$root/.deps/check-tables
requirements=$root/scripts/check-tables.txt

consequence=("tables are NOT read by polars and pandas")

installed_packages "$requirements" "$packages" "polars, pandas and pyarrow"

cd "$root"
target=${CARGO_TARGET_DIR-target}
cargo=${CARGO-cargo}
# The whole workspace, as `make test` has built it.
"$cargo" test --quiet --locked --workspace --no-run
rm -rf "$target/check-tables"
PYTHONPATH=$packages python3 scripts/check-tables.py "$target/debug/stratus" "$target/check-tables"
