#!/usr/bin/env bash
# Trains, sweeps, launches and infers N times, each time under one random fault: a kill at a system call, a
# full disk, failing, short or interrupted reads and writes, too few descriptors, a read-only disk, little
# memory, a jumping clock, a slow disk, signals, a faulty HTTP server, two processes at once; some while a
# killed command is resumed. Afterwards the command is resumed. It fails unless each case ends with the same
# weights and rows as without the fault, no other file has changed, and a command that failed named the cause
# and the file; without a panic, an abort, a hang or a lost checkpoint.
#
#   scripts/faults.sh N [--seed S] [--only K] [--jobs J] [--keep] [KIND…]
#
# `--only K` repeats case K, and `--keep` keeps the folders of all cases, else only those of findings, in
# target/faults. The kinds are in scripts/faults/kinds.py. Those that need something missing (a C compiler,
# strace, root, a cgroup) are reported as SKIPPED. STRATUS names the program; without it, the release build is
# made first.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ ${1:-} =~ ^[0-9]+$ ]] || { sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 2; }
target=${CARGO_TARGET_DIR-target}
if [ -z "${STRATUS:-}" ]; then
    "${CARGO-cargo}" build --quiet --release --locked -p stratus
    STRATUS=$target/release/stratus
fi
python3 scripts/faults "$STRATUS" "$target/faults" "$@"
