#!/usr/bin/env bash
# Damages every file of runs that `stratus ui` shows, and kills the server (SIGKILL) while a run trains. Every
# page must be answered and name what is damaged, no byte of a run may change, and the trained runs must have
# the weights and losses of one without a server.
#
#   scripts/ui-faults.sh [--kills 100] [--seed 1]
#
# STRATUS names the program; without it, the debug build of the tests is made first.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR-target}
if [ -z "${STRATUS:-}" ]; then
    # The whole workspace, as `make test` builds it.
    "${CARGO-cargo}" test --quiet --locked --workspace --no-run
    STRATUS=$target/debug/stratus
fi
python3 scripts/ui/faults.py "$STRATUS" "$target/ui-faults" "$@"
