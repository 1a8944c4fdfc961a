#!/usr/bin/env bash
# Whether SkyPilot's own parser takes the task files of launches and understands them as they are meant, and
# whether its command knows the options that launches use. SkyPilot is installed into .deps/check-sky of this
# checkout: from pinned wheels, checked by their hashes, without root. No account is needed or asked.
#
#   scripts/check-sky.sh                fails if it cannot be installed
#   scripts/check-sky.sh --best-effort  only says so; what differs fails all the same
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
# The whole workspace, as `make test` has built it.
"$cargo" test --quiet --locked --workspace --no-run
rm -rf "$target/check-sky"
mkdir -p "$target/check-sky"
# Its folder of settings is nobody's home.
HOME=$(cd "$target/check-sky" && pwd) PYTHONPATH=$packages \
    python3 scripts/check-sky.py "$target/debug/stratus" "$target/check-sky"
