#!/usr/bin/env bash
# Measures training from shards in an S3 store, in OpenStack Swift and on the local disk, and prints every
# command and its raw output.
#
#   scripts/benchmark-stores.sh FOLDER > docs/benchmarks/raw/stores.txt
#
# FOLDER holds `<class>/<image>`, JPEG; each image becomes COPIES samples (20) in shards of SHARD_MIB (16).
# The server is a real Swift on this machine, which also implements S3 (`scripts/store-servers.sh install`).
# It uses some of the measured CPU time, so its share is printed. Every run starts with an empty cache. ROUNDS
# (5) measure the loader on each of the three in turn, TRAIN_ROUNDS (3) training: compare the medians of the
# same page. Nothing else should run.
set -euo pipefail
folder=$(realpath "$1")
FEATURES=all
# shellcheck source=scripts/benchmark-common.sh
source "$(dirname "$0")/benchmark-common.sh"
work=$(mktemp -d)
trap 'bash scripts/store-servers.sh stop "$work/node"; rm -rf "$work"' EXIT
node=$work/node
bash scripts/store-servers.sh start "$node"

server=http://127.0.0.1:$(cat "$node/port")
export ST_AUTH=$server/auth/v1.0 ST_USER=test:tester ST_KEY=testing
export AWS_ENDPOINT_URL=$server AWS_REGION=us-east-1 AWS_EC2_METADATA_DISABLED=true
export AWS_ACCESS_KEY_ID=test:tester AWS_SECRET_ACCESS_KEY=testing
python3 - "$ST_AUTH" <<'PYTHON'
import sys
from urllib.request import Request, urlopen

with urlopen(Request(sys.argv[1], headers={"X-Auth-User": "test:tester", "X-Auth-Key": "testing"})) as answer:
    storage, token = answer.headers["X-Storage-Url"], answer.headers["X-Auth-Token"]
for container in ["bucket", "container"]:
    urlopen(Request(f"{storage}/{container}", method="PUT", headers={"X-Auth-Token": token})).close()
PYTHON

# The benchmark uses one image of each class.
while IFS= read -r image; do
    class=$(basename "$(dirname "$image")")
    mkdir -p "$work/set/train/$class" "$work/set/val/$class"
    [ -n "$(ls "$work/set/val/$class")" ] || ln -s "$image" "$work/set/val/$class"
    for copy in $(seq "${COPIES:-20}"); do
        ln -s "$image" "$work/set/train/$class/$copy-$(basename "$image")"
    done
done < <(find -L "$folder" -type f | sort)
names=("local disk" S3 Swift)
addresses=("$work/shards" s3://bucket/set swift://container/set)

# The CPU time of the servers so far, in ticks.
server_ticks() {
    local file ticks=0
    for file in "$node"/run/*.pid; do
        # After the name, which may contain anything, the 12th and 13th field: user and system time.
        ticks=$((ticks + $(sed 's/.*) //' "/proc/$(cat "$file")/stat" | awk '{ print $12 + $13 }')))
    done
    echo "$ticks"
}

# label, pattern of the lines to print, command…: runs it; prints these lines, its wall and CPU time, and the
# CPU time of the servers
measured() {
    local label=$1 shown=$2 before began output
    shift 2
    before=$(server_ticks) began=$EPOCHREALTIME
    output=$({ TIMEFORMAT='%U %S' && time "$@" 2>&1; } 2> "$work/time") || { echo "$output" >&2 && exit 1; }
    grep -E "$shown" <<< "$output" | sed "s|^|$label: |"
    awk -v label="$label" -v began="$began" -v ended="$EPOCHREALTIME" -v hertz="$(getconf CLK_TCK)" \
        -v ticks=$(($(server_ticks) - before)) \
        '{ printf "%s: %.1f s; CPU time: stratus %.1f s, servers %.1f s\n",
            label, ended - began, $1 + $2, ticks / hertz }' "$work/time"
}

places() { # label, pattern, command…: `measured` for each place in turn, from an empty cache
    local label=$1 shown=$2 place
    shift 2
    for place in "${!names[@]}"; do
        rm -rf "$work/cache" "$work/run"
        sync
        measured "$label, ${names[$place]}" "$shown" "$@" \
            --set data.name=shards --set data.path="${addresses[$place]}" \
            --set data.cache="$work/cache" --set train.batch_size=32
    done
}

head_of_page "Training from object stores"
for place in "${!names[@]}"; do
    echo "\$ stratus data shard SET ${addresses[$place]//"$work/"/} --shard-mib ${SHARD_MIB:-16}"
    measured "${names[$place]}" . \
        stratus data shard "$work/set" "${addresses[$place]}" --shard-mib "${SHARD_MIB:-16}"
    echo
done
settings=(--set data.name=shards --set data.path=PLACE --set data.cache=EMPTY --set train.batch_size=32)
echo "== Epochs of the loader without training"
echo
echo "All shards of a window must be fetched before the first batch: windows of 8 (the default) and of 2."
echo
for round in $(seq "${ROUNDS:-5}"); do
    for together in 8 2; do
        loader=(stratus bench data resnet18 --epochs --rounds 1 --set data.shuffle_shards="$together")
        echo "\$ ${loader[*]} ${settings[*]}"
        places "$together, round $round" '^(round|1) ' "${loader[@]}"
    done
    echo
done
echo "== Training"
echo
# Creates the plans.
stratus plan resnet18 --set data.name=shards --set data.path="$work/shards" --set train.batch_size=32 \
    > /dev/null 2>&1
for round in $(seq "${TRAIN_ROUNDS:-3}"); do
    echo "\$ stratus train resnet18 --quiet --set train.epochs=1 --set schedule.name=constant ${settings[*]}"
    places "training, round $round" '^ +(images/s|seconds) ' \
        stratus train resnet18 --quiet --out "$work/run" --set train.epochs=1 --set schedule.name=constant
    echo
done
