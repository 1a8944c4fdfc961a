# shellcheck shell=bash
# What the benchmarks of this folder share; they source it. It goes to the root of the checkout and builds
# Stratus: with FEATURES=all with object stores, which take long to compile. What is printed is plain text:
# titles behind `==`, commands behind `$`. docs/benchmarks/README.md says where it goes and how the pages
# are made of it.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
if [ "${FEATURES:-}" = all ]; then
    cargo build --release --locked -q -p stratus
else
    cargo build --release --locked -q -p stratus --no-default-features
fi
stratus=${CARGO_TARGET_DIR:-target}/release/stratus
stratus() { "$stratus" "$@"; }

show() { # command…: the command and what it prints
    echo "\$ $*"
    "$@" 2>&1
    echo
}

head_of_page() { # title: the first lines, and the machine
    echo "$1, $(date -u +'%Y-%m-%d %H:%M') UTC"
    echo "scripts/$(basename "$0"), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
    echo
    echo "== Machine"
    echo
    show stratus doctor
    rustc --version | sed 's/^/Built with /'
    echo
}

peers() { # what the command in PEERS prints; nothing without it
    if [ -n "${PEERS:-}" ]; then
        # A peer that has not every network must not end what is measured.
        bash -c "$PEERS" 2>/dev/null || echo "(the last peer ended with $?)"
        echo
    fi
}
