#!/usr/bin/env bash
# Moves the debug information of a program into PROGRAM.debug next to it, and names that file in the program,
# so that backtraces find it. A program without debug information is not changed.
#
#   scripts/split-debug.sh [--best-effort] PROGRAM
#
# With --best-effort it only prints a note if objcopy (binutils) is missing.
set -euo pipefail

best_effort=
if [ "${1-}" = --best-effort ]; then
    best_effort=1
    shift
fi
program=$1
if ! command -v objcopy > /dev/null || ! command -v readelf > /dev/null; then
    echo "note: $program keeps its debug information: objcopy (binutils) not found" >&2
    [ -n "$best_effort" ]
    exit
fi
sections=$(readelf --section-headers --wide "$program")
[[ $sections = *" .debug_line "* ]] || exit 0

cd "$(dirname "$program")"
name=$(basename "$program")
temporary=$(mktemp -d .split-debug.XXXXXX)
trap 'rm -rf "$temporary"' EXIT
objcopy --only-keep-debug --compress-debug-sections=zlib "$name" "$temporary/$name.debug"
# The link holds the debug file's name and checksum, so it must exist under its name.
(cd "$temporary" && objcopy --strip-all --add-gnu-debuglink="$name.debug" "../$name" "$name")
mv "$temporary/$name.debug" "$name.debug"
# Cargo keeps a hard link to the program: a new file takes its place.
mv "$temporary/$name" "$name"
megabytes() {
    echo "$(($(stat -c %s "$1") / 1000000)) MB"
}
echo "$name: $(megabytes "$name"); debug information in $name.debug: $(megabytes "$name.debug")"
