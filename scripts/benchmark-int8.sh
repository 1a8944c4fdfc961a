#!/usr/bin/env bash
# Measures trained networks in f32, bf16 and int8: accuracy or mean IoU on the validation images, and the
# latency of one image and of eight. Run nothing else on the machine meanwhile.
# A RUN is a finished run whose data are on this machine; it is not changed.
#
#   scripts/benchmark-int8.sh STRATUS RUN... > docs/benchmarks/raw/int8.txt
set -euo pipefail
[[ $# -ge 2 && $1 != -* ]] || { sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2; }
stratus=$(realpath "$1")
shift
root=$(realpath "$(dirname "$0")/..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "stratus optimise --int8, $(date -u +'%Y-%m-%d %H:%M') UTC"
echo "scripts/benchmark-int8.sh, commit $(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)"
echo
"$stratus" doctor 2>/dev/null | sed "s|$root/||g"
for run in "$@"; do
    echo
    echo "\$ stratus optimise $run --int8 --keep 100"
    "$stratus" optimise "$run" --int8 --keep 100 --calibration-images 32 --out "$work/int8" 2>/dev/null |
        sed "/^next:/,\$d; /^model /d"
    echo "\$ stratus bench infer: f32, bf16 and int8 in turn, twice"
    for _ in 1 2; do
        for precision in f32 bf16; do
            "$stratus" bench infer "$run" --runs 50 --batch 1 --set train.precision=$precision 2>/dev/null |
                sed -n 's/^1 /'"$precision"' /p'
        done
        "$stratus" bench infer "$work/int8" --runs 50 --batch 1 2>/dev/null | sed -n 's/^1 /int8 /p'
    done
    rm -rf "$work/int8"
done
