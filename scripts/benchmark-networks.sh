#!/usr/bin/env bash
# Measures training iterations of the classification networks on this machine and prints every command and its
# raw output.
#
#   scripts/benchmark-networks.sh > docs/benchmarks/raw/networks.txt
#   PEERS='command that prints baselines of $NETWORK as JSON lines' NETWORKS='alexnet:64 resnet18:32' \
#       ROUNDS=1 PRECISIONS=bf16 scripts/benchmark-networks.sh > …
#
# A network is `name:batch size`. Baselines and Stratus are measured in turn, in the same hour: compare
# medians. Nothing else should run. Images are synthetic (1000 classes, 224×224), so that nothing has to be
# fetched and no decoding is measured.
set -euo pipefail
# shellcheck source=scripts/benchmark-common.sh
source "$(dirname "$0")/benchmark-common.sh"
networks=${NETWORKS:-alexnet:64 vgg11:12 googlenet:32 resnet18:32 resnet50:16}

head_of_page "Training iterations of classification networks"
for round in $(seq "${ROUNDS:-3}"); do
    for entry in $networks; do
        network=${entry%:*} batch=${entry#*:}
        echo "== Round $round, $network, batch $batch"
        echo
        NETWORK=$network peers
        for precision in ${PRECISIONS:-f32 bf16}; do
            show stratus bench kernels "$network" --rounds "${STEPS:-5}" --set data.name=synthetic \
                --set data.synthetic.classes=1000 \
                --set train.batch_size="$batch" --set train.precision="$precision"
        done
    done
done
