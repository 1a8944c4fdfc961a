#!/usr/bin/env bash
# Checks Stratus on a machine with many cores, which needs only Python, and PyTorch for the baselines.
#
#   scripts/many-cores-check.sh pack FOLDER        builds the program into FOLDER, with its libraries
#   scripts/many-cores-check.sh run FOLDER [PART…] runs the parts on that machine; without PART: all of them
#
#   machine    the output of `stratus doctor`
#   threads    whole iterations and every kernel by number of threads, to find the limits of scaling
#   peers      the same iterations by PyTorch
#   busy       iterations of Stratus and PyTorch while other programs use half of the CPUs
#   loader     JPEG files by number of loader threads, if PHOTOS names a folder of them
#
# Environment: NETWORKS='resnet18:64 …' (name:batch); THREADS='1 2 4 …'; PRECISION=bf16; OUT is a folder for
# raw output; BASE names another `stratus`, which runs the part `busy` too.
set -uo pipefail
mode=${1:-} folder=${2:-}
[ -n "$mode" ] && [ -n "$folder" ] || { sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit 2; }
shift 2
case $folder in /*) ;; *) folder=$PWD/$folder ;; esac
cd "$(dirname "$0")/.." || exit
networks=${NETWORKS:-resnet18:64 digits:1024}
precision=${PRECISION:-bf16}
all=$(nproc)
if [ -z "${THREADS:-}" ]; then
    THREADS=1
    for ((threads = 2; threads < all; threads *= 2)); do THREADS+=" $threads"; done
    [ "$all" = 1 ] || THREADS+=" $all"
fi

pack() {
    set -e
    mkdir -p "$folder"
    cargo build --release --locked -q -p stratus --no-default-features
    strip -o "$folder/stratus" "${CARGO_TARGET_DIR:-target}/release/stratus"
    xz -T0 -3 -c .deps/onednn/lib/libdnnl.so.3 >"$folder/libdnnl.so.3.xz"
    cp .deps/libjpeg/lib/* "$folder/"
    du -sh "$folder"
}

settings() { # network batch threads: arguments that every command takes
    local data=(--set data.name=synthetic --set data.synthetic.classes=1000
        --set "data.synthetic.images=$(($2 * 24))" --set data.synthetic.validation_images=1)
    [ "$1" != digits ] || data=()
    printf '%s\0' "$1" "${data[@]}" --set "train.batch_size=$2" --set "train.precision=$precision" \
        --set train.device=onednn --set "train.threads=$3"
}

threads() {
    local entry status=0 arguments
    for entry in $networks; do
        mapfile -d '' arguments < <(settings "${entry%:*}" "${entry#*:}" 0)
        "$folder/stratus" bench kernels "${arguments[@]}" --threads "${THREADS// /,}" --rounds 2 \
            >"$out/${entry%:*}.txt" 2>"$out/errors.txt" || { tail -n 3 "$out/errors.txt"; status=1; }
        head -n 30 "$out/${entry%:*}.txt"
        tail -n 5 "$out/${entry%:*}.txt"
    done
    return $status
}

peer() { # network batch threads
    python3 - "$1" "$2" "$3" "$precision" <<'P'
import statistics, sys, time
import torch
from torch import nn
name, batch, threads, precision = sys.argv[1], *map(int, sys.argv[2:4]), sys.argv[4]
torch.set_num_threads(threads)
torch.manual_seed(0)
if name == "digits":
    layers, channels = [], 1
    for width in (8, 16, 32):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if width < 32 else []
        channels = width
    model, shape, classes = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 49, 10)), (1, 28, 28), 10
else:
    import torchvision
    model, shape, classes = getattr(torchvision.models, name)(), (3, 224, 224), 1000
best = 0.0
for layout in (torch.channels_last, torch.contiguous_format):
    model = model.to(memory_format=layout).train()
    x = torch.randn(batch, *shape).to(memory_format=layout)
    y = torch.randint(0, classes, (batch,))
    optimiser = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    times = []
    begun = time.perf_counter()
    while len(times) < 30 and (len(times) < 5 or time.perf_counter() - begun < 5):
        start = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step()
        loss.item()
        times.append(time.perf_counter() - start)
    best = max(best, batch / statistics.median(times[2:]))
print(f"pytorch {torch.__version__} {name} batch {batch} {precision} threads {threads}: {best:.0f} images/s")
P
}

peers() {
    local entry count status=0
    for entry in $networks; do
        for count in ${PEER_THREADS:-$THREADS}; do
            peer "${entry%:*}" "${entry#*:}" "$count" || status=1
        done
    done
    return $status
}

speed() { # program network batch threads: images/s of a short training run
    local arguments run
    run=$(mktemp -d)
    mapfile -d '' arguments < <(settings "$2" "$3" "$4")
    if timeout 240 "$1" train "${arguments[@]}" --set train.epochs=2 --out "$run/run" >"$run/log" 2>&1; then
        sed -n 's/^ *images.s */    /p' "$run/log" | tail -n 1
    else
        echo "    no result: $(tail -n 1 "$run/log")"
    fi
    rm -r "$run"
}

busy() {
    local entry neighbours programs=("$folder/stratus") program
    [ -z "${BASE:-}" ] || programs+=("$BASE")
    for neighbours in 0 1 $((all / 2 > 1 ? all / 2 : 2)); do
        local pids=() number
        for ((number = 0; number < neighbours; number++)); do
            # In a separate session, as those of another user.
            setsid sh -c 'exec yes >/dev/null' &
            pids+=($!)
        done
        for entry in $networks; do
            echo "$entry with $neighbours other programs"
            for program in "${programs[@]}"; do
                echo "  $program: $(speed "$program" "${entry%:*}" "${entry#*:}" "$all")"
            done
            [ -z "${BUSY_PEERS:-}" ] || peer "${entry%:*}" "${entry#*:}" "$all"
        done
        [ "$neighbours" = 0 ] || kill "${pids[@]}"
    done
}

loader() {
    [ -n "${PHOTOS:-}" ] || { echo "PHOTOS is not set"; return 0; }
    local workers
    for workers in $THREADS; do
        echo "workers $workers: $("$folder/stratus" bench data resnet18 --set data.name=folder \
            --set "data.path=$PHOTOS" --set "data.workers=$workers" --set train.batch_size=64 2>&1 |
            tail -n 2)"
    done
}

run() {
    [ -f "$folder/libdnnl.so.3" ] || xz -dk "$folder/libdnnl.so.3.xz"
    export STRATUS_ONEDNN=$folder STRATUS_LIBJPEG=$folder STRATUS_CACHE=${STRATUS_CACHE:-$folder/cache}
    out=${OUT:-$(mktemp -d)}
    mkdir -p "$out"
    [ $# -gt 0 ] || set -- machine threads peers busy loader
    local part begun failed=0
    for part; do
        begun=$SECONDS
        echo "## $part"
        case $part in
        machine) "$folder/stratus" doctor || failed=1 ;;
        threads | peers | busy | loader) $part || failed=1 ;;
        *) echo "unknown part $part" && exit 2 ;;
        esac
        echo "## $part took $((SECONDS - begun)) s"
    done
    return $failed
}

case $mode in
pack) pack ;;
run) run "$@" ;;
*) echo "unknown mode $mode" && exit 2 ;;
esac
