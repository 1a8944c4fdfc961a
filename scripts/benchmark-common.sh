# shellcheck shell=bash Shared by the benchmarks of this folder, which source it. Changes to the root of the
# checkout and builds Stratus; with FEATURES=all, with object stores, which take long to compile. The output
# is plain text: titles after `==`, commands after `$`. docs/benchmarks/README.md describes where it is stored
# and how the pages use it.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
if [ "${FEATURES:-}" = all ]; then
    cargo build --release --locked -q -p stratus
else
    cargo build --release --locked -q -p stratus --no-default-features
fi
stratus=${CARGO_TARGET_DIR:-target}/release/stratus
stratus() { "$stratus" "$@"; }

show() { # command…: prints the command and its output
    echo "\$ $*"
    "$@" 2>&1
    echo
}

head_of_page() { # title: prints the first lines, and the machine
    echo "$1, $(date -u +'%Y-%m-%d %H:%M') UTC"
    echo "scripts/$(basename "$0"), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
    echo
    echo "== Machine"
    echo
    show stratus doctor
    rustc --version | sed 's/^/Built with /'
    echo
}

peers() { # prints the output of the command in PEERS, if it is set
    if [ -n "${PEERS:-}" ]; then
        # A baseline that lacks a network must not end the benchmark.
        bash -c "$PEERS" 2>/dev/null || echo "(the last baseline ended with $?)"
        echo
    fi
}
