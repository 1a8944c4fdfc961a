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

need_python
stamp=$(python3 -c 'import sys; print(*sys.version_info[:2], sys.platform)') || give_up "python3 does not run"
stamp="$stamp $(cksum < "$requirements")"
if [ "$(cat "$packages/installed" 2>/dev/null)" != "$stamp" ]; then
    need_pip
    make_work
    say "fetching polars, pandas and pyarrow"
    pinned_pip install --target "$work/packages" --requirement "$requirements" \
        || give_up "they could not be fetched for this system and $(python3 --version)"
    echo "$stamp" > "$work/packages/installed"
    rm -rf "$packages"
    mv -T "$work/packages" "$packages"
    rm -rf "$work"
    trap - EXIT
fi

cd "$root"
target=${CARGO_TARGET_DIR-target}
cargo=${CARGO-cargo}
# The whole workspace, as `make test` has built it.
"$cargo" test --quiet --locked --workspace --no-run
rm -rf "$target/check-tables"
PYTHONPATH=$packages python3 scripts/check-tables.py "$target/debug/stratus" "$target/check-tables"
