# shellcheck shell=bash
# What the benchmarks of this folder share; they source it. It goes to the root of the checkout and builds Stratus; stores of objects take long
# to compile, and only who says FEATURES=all gets them.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ "${FEATURES:-}" = all ]; then
    cargo build --release --locked -q -p stratus
else
    cargo build --release --locked -q -p stratus --no-default-features
fi
stratus=${CARGO_TARGET_DIR:-target}/release/stratus
stratus() { "$stratus" "$@"; }

show() { # command…: the command and what it prints, as a code block
    echo '```'
    echo "\$ $*"
    "$@" 2>&1
    echo '```'
    echo
}

head_of_page() { # title: the page's first lines, and the machine
    echo "# $1, $(date -u +%Y-%m-%d)"
    echo
    echo "Made by \`scripts/$(basename "$0")\` at $(date -u +%H:%M) UTC, commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)."
    echo
    echo "## Machine"
    echo
    show stratus doctor
    rustc --version | sed 's/^/Built with /'
    echo
}

peers() { # what the command in PEERS prints, as a code block; nothing without it
    if [ -n "${PEERS:-}" ]; then
        echo "Peers:"
        echo
        echo '```'
        # A peer that has not every network must not end what is measured.
        bash -c "$PEERS" 2>/dev/null || echo "(the last peer ended with $?)"
        echo '```'
        echo
    fi
}
