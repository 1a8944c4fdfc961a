#!/usr/bin/env bash
# Builds the release program and checks its size, and that its line tables are in the file that it names.
#
#   scripts/check-release.sh
set -euo pipefail
MAX_BYTES=40000000

cd "$(dirname "$0")/.."
make build
program=${CARGO_TARGET_DIR-target}/release/stratus

bytes=$(stat -c %s "$program")
if ((bytes > MAX_BYTES)); then
    echo "$program has $bytes bytes, more than $MAX_BYTES" >&2
    exit 1
fi
# A backtrace finds the lines of a function through the link and the tables.
link=$(readelf --string-dump=.gnu_debuglink "$program")
[[ $link = *stratus.debug* ]] || {
    echo "$program does not name stratus.debug" >&2
    exit 1
}
address=$(nm --demangle --defined-only "$program.debug" |
    awk '$3 == "stratus::main" { found = $1 } END { print found }')
found=$(addr2line --functions --demangle --exe "$program.debug" "0x$address")
[[ $found =~ crates/stratus/src/(main|lib)\.rs:[0-9]+ ]] || {
    echo "$program.debug has no line for main: $found" >&2
    exit 1
}
echo "check-release: $program has $bytes bytes; $program.debug has its lines"
