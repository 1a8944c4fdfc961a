#!/usr/bin/env bash
# Measures the digits network on this machine and prints every command and its raw output.
#
#   scripts/benchmark-digits.sh > docs/benchmarks/raw/digits.txt
#   PEERS='command that prints the baselines as JSON lines' scripts/benchmark-digits.sh > …
#
# Baselines and Stratus are measured in turn, three rounds, in the same hour: compare medians. Nothing else
# should run.
set -euo pipefail
# shellcheck source=scripts/benchmark-common.sh
source "$(dirname "$0")/benchmark-common.sh"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

head_of_page digits
for round in 1 2 3; do
    echo "== Round $round"
    echo
    peers
    for precision in f32 bf16; do
        show stratus bench kernels digits --rounds 20 --set train.precision=$precision
    done
done
echo "== The cost of timestamps"
echo
for precision in f32 bf16; do
    show stratus bench overhead digits --pairs 500 --set train.precision=$precision
done
echo "== 50 epochs with the default settings"
echo
show stratus train digits --out "$out/default" --quiet
echo "== 50 epochs in f32"
echo
show stratus train digits --out "$out/f32" --quiet --set train.precision=f32
