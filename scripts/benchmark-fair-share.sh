#!/usr/bin/env bash
# Images per second of `digits` beside 0, 1 and 2 busy loops, with and without the scheduler's autogroups,
# with the default threads and with one thread, in turn. The loops run in sessions of their own, as those of
# another user.
#
#   scripts/benchmark-fair-share.sh STRATUS [ROUNDS]
#
# Autogroups are switched only if /proc/sys/kernel/sched_autogroup_enabled can be written; it is restored.
set -euo pipefail
stratus=$(realpath "${1:?usage: benchmark-fair-share.sh STRATUS [ROUNDS]}")
rounds=${2:-3}
switch=/proc/sys/kernel/sched_autogroup_enabled
folder=$(mktemp -d)
before=$(cat "$switch" 2>/dev/null || echo)
loops=()
stop_loops() {
    for loop in "${loops[@]}"; do kill "$loop" 2>/dev/null || true; done
    loops=()
}
finish() {
    stop_loops
    [ -z "$before" ] || [ ! -w "$switch" ] || echo "$before" > "$switch"
    rm -rf "$folder"
}
trap finish EXIT

run() { # LABEL [ARGUMENTS…]
    local out="$folder/$1"
    rm -rf "$out"
    setsid --wait "$stratus" train digits --epochs "${EPOCHS:-6}" --out "$out" -q "${@:2}" \
        > /dev/null 2> "$folder/errors" < /dev/null || { cat "$folder/errors" >&2; exit 1; }
    python3 -c 'import json, sys
print(round(json.load(open(sys.argv[1] + "/summary.json"))["images_per_second"]["median"]))' "$out"
}

states=("${before:-none}")
if [ -w "$switch" ]; then
    states=(1 0)
else
    echo "autogroups cannot be switched here" >&2
fi
echo "autogroups,busy_loops,round,default_threads,one_thread"
for state in "${states[@]}"; do
    [ ! -w "$switch" ] || echo "$state" > "$switch"
    for busy in 0 1 2; do
        for _ in $(seq "$busy"); do
            setsid sh -c 'while :; do :; done' & loops+=($!)
        done
        for round in $(seq "$rounds"); do
            default=$(run default)
            one=$(run one --set train.threads=1)
            echo "$state,$busy,$round,$default,$one"
        done
        stop_loops
    done
done
