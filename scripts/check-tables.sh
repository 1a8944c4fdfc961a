#!/usr/bin/env bash
# Compares the tables of `stratus collect --out`, as polars and pandas read them, and its traces with each
# other and with the run. The libraries are installed into .deps/check-tables of this checkout: from pinned
# wheels, checked by their hashes, without root.
#
#   scripts/check-tables.sh                fails if they cannot be installed
#   scripts/check-tables.sh --best-effort  only reports it; tables that differ still fail
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
# The whole workspace, as `make test` builds it.
"$cargo" test --quiet --locked --workspace --no-run
rm -rf "$target/check-tables"
PYTHONPATH=$packages python3 scripts/check-tables.py "$target/debug/stratus" "$target/check-tables"
