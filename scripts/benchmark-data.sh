#!/usr/bin/env bash
# Measures the data pipeline on one core of this machine, together with libjpeg-turbo and torchvision, and
# prints every command and its raw output.
#
#   PYTHON=/path/to/python scripts/benchmark-data.sh FOLDER > docs/benchmarks/raw/data.txt
#
# FOLDER holds `<class>/<image>`, JPEG; PYTHON has torch and torchvision; libturbojpeg is installed. Stratus
# and the baselines run in turn in each round: compare the medians of the same page. Nothing else should run.
set -euo pipefail
folder=$(realpath "$1")
# shellcheck source=scripts/benchmark-common.sh
source "$(dirname "$0")/benchmark-common.sh"
layout=$(mktemp -d)
trap 'rm -rf "$layout"' EXIT
ln -s "$folder" "$layout/train"
ln -s "$folder" "$layout/val"
core=$(($(nproc) - 1))

head_of_page "From JPEG files to batches"
echo "One core (\`taskset -c $core\`), $(find -L "$folder" -type f | wc -l) files:"
echo "random resized crop of 224×224, mirrored, normalised; bf16, channels last."
echo
for round in $(seq "${ROUNDS:-5}"); do
    echo "== Round $round"
    echo
    echo "\$ scripts/benchmark-data-peers.py FOLDER --rounds 1"
    taskset -c "$core" "${PYTHON:-python3}" scripts/benchmark-data-peers.py "$folder" --rounds 1
    echo "\$ stratus bench data resnet50 --rounds 1 --set data.path=FOLDER --set train.batch_size=50"
    taskset -c "$core" "$stratus" bench data resnet50 --rounds 1 --set data.path="$layout" \
        --set train.batch_size=50 2>&1
    echo
done
