#!/usr/bin/env bash
# Checks that SkyPilot's own parser accepts the task files of launches as intended, and that its command has
# the options that launches use. SkyPilot is installed into .deps/check-sky of this checkout: from pinned
# wheels, checked by their hashes, without root. No account is needed.
#
#   scripts/check-sky.sh                fails if it cannot be installed
#   scripts/check-sky.sh --best-effort  only reports it; differences still fail
set -euo pipefail
# shellcheck source=scripts/deps-common.sh
source "$(dirname "$0")/deps-common.sh"

packages=$root/.deps/check-sky
requirements=$root/scripts/check-sky.txt

consequence=("task files are NOT read by SkyPilot")

installed_packages "$requirements" "$packages" "SkyPilot"

cd "$root"
target=${CARGO_TARGET_DIR-target}
cargo=${CARGO-cargo}
# The whole workspace, as `make test` builds it.
"$cargo" test --quiet --locked --workspace --no-run
rm -rf "$target/check-sky"
mkdir -p "$target/check-sky"
# Uses a temporary home, so that no user settings are read.
HOME=$(cd "$target/check-sky" && pwd) PYTHONPATH=$packages \
    python3 scripts/check-sky.py "$target/debug/stratus" "$target/check-sky"
