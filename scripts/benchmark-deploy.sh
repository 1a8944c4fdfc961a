#!/usr/bin/env bash
# Measures inference: the latency of networks at batch sizes 1 and 8 in f32 and bf16, with initial weights;
# and what `stratus optimise` makes of `digits`. Run nothing else on the machine meanwhile: it takes about
# five minutes.
#
#   scripts/benchmark-deploy.sh STRATUS > docs/benchmarks/raw/deploy.txt
set -euo pipefail
[[ ${1:--} != -* ]] || { sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2; }
stratus=$(realpath "$1")
cd "$(dirname "$0")/.."
data=$PWD/data/mnist
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "stratus bench infer and stratus optimise, $(date -u +'%Y-%m-%d %H:%M') UTC"
echo "scripts/benchmark-deploy.sh, commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
echo
echo "== Machine"
echo
"$stratus" doctor 2>/dev/null | sed "s|$PWD/||g"
echo
echo "== Latency, milliseconds of a batch"
for network in resnet18 resnet50 erfnet deeplabv3plus_resnet18; do
    for precision in f32 bf16; do
        echo
        echo "\$ stratus bench infer $network --runs 50 --set train.precision=$precision"
        "$stratus" bench infer "$network" --runs 50 --set train.precision=$precision 2>/dev/null |
            sed '/^$/,$d'
    done
done
echo
echo "== digits: 5 epochs, then pruned and fine-tuned for 2"
cd "$work"
for seed in 1 2 3; do
    "$stratus" train digits --epochs 5 --seed $seed --data "$data" --out "run-$seed" >/dev/null 2>&1
    echo
    echo "\$ stratus optimise run-$seed --prune 0.5 --granularity 4 --epochs 2    (--seed $seed)"
    "$stratus" optimise "run-$seed" --prune 0.5 --granularity 4 --epochs 2 2>/dev/null | sed '/^next:/,$d'
done
