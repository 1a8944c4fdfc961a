#!/usr/bin/env bash
# Links a program against the symbols of glibc 2.28, with zig. Cargo calls it as the linker of `make dist`.
#
# zig knows no --export-dynamic-symbol, by which the program exports its OpenMP functions. Its linker exports
# what a shared library on the command line imports: STRATUS_DIST_EXPORTS is one that imports these functions.
#
# rustc takes a linker of this name for a C compiler.
set -euo pipefail

arguments=()
for argument in "$@"; do
    case $argument in
        -Wl,--export-dynamic-symbol=*) arguments+=(-Wl,--as-needed "$STRATUS_DIST_EXPORTS") ;;
        *) arguments+=("$argument") ;;
    esac
done
exec cargo-zigbuild zig cc -- -target x86_64-linux-gnu.2.28 "${arguments[@]}"
