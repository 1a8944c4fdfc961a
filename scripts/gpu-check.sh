#!/usr/bin/env bash
# Checks Stratus on a machine with an NVIDIA GPU, without a toolchain or a network: the programs are built
# elsewhere.
#
#   scripts/gpu-check.sh pack FOLDER        builds the programs into FOLDER, and with NVRTC also the machine
#                                           code of the kernels
#   scripts/gpu-check.sh run FOLDER [PART…] runs the parts on the machine with the GPU; without PART:
#       libraries digits half resume trace startup overhead warm_up checks networks compare
#
# `run` prints the output of each part, and a table at the end; it fails if a part failed.
#
#   libraries  what `stratus doctor` finds         digits    trains digits
#   half       trains digits in f16                resume    kills a run and resumes it: bit-identical?
#   trace      times against those of CUPTI        overhead  the cost of timing
#   startup    startup times, with and without caches
#   warm_up    lets PyTorch compile its networks, which takes minutes, while the next parts run
#   checks     cases, tiles and parity at the same time
#   networks   the networks by Stratus only, planned for the first time
#   compare    waits for warm_up, then measures each network and its baselines in turn
#   sanitize   cases under compute-sanitizer; only when named
#   workers    NCCL with one GPU; two workers on one GPU: bit-identical to one process? the cost of parts;
#              only when named
#   gpus       1, 2, 4, … workers on as many GPUs, by NCCL and through host memory: bit-identical? images/s;
#              only when named
#
# Environment: NETWORKS='resnet50:256 …' (name:batch) and PRECISIONS='bf16 f16' are packed and measured;
# PEERS='eager compiled'; PARITY='on_a_gpu::vgg'; OUT is a folder for raw output.
set -uo pipefail
mode=${1:-} folder=${2:-}
[ -n "$mode" ] && [ -n "$folder" ] || { sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit 2; }
shift 2
absolute() { # path: as seen from the caller's folder
    case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac
}
folder=$(absolute "$folder")
[ -z "${OUT:-}" ] || OUT=$(absolute "$OUT")
cd "$(dirname "$0")/.." || exit
networks=${NETWORKS:-resnet50:256 resnet18:256 vgg11:128 alexnet:512 googlenet:256}
precisions=${PRECISIONS:-bf16}

built() { # crate: builds its integration tests and prints the program's path
    cargo test --release --locked -q -p "$1" --test it --no-run --message-format=json |
        python3 -c 'import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] == "it":
        print(message["executable"])'
}

pack() {
    set -e
    mkdir -p "$folder"
    cargo build --release --locked -q -p stratus --no-default-features
    strip -o "$folder/stratus" "${CARGO_TARGET_DIR:-target}/release/stratus"
    strip -o "$folder/parity" "$(built stratus-train)"
    strip -o "$folder/oracle" "$(built stratus-cuda)"
    bash scripts/deps-mpi.sh --best-effort
    [ ! -d .deps/mpich ] || cp -r .deps/mpich "$folder/"
    backtrace | cc -shared -fPIC -O1 -x c - -o "$folder/backtrace.so"
    local network precision entries=""
    for network in $networks; do
        for precision in $precisions; do
            entries+=" $network:$precision"
        done
    done
    STRATUS_KERNELS_OUT=$folder/cache/kernels STRATUS_KERNELS_FOR=$entries \
        cargo test --release --locked -q -p stratus-cuda --test it compiles
    du -sh "$folder"
}

backtrace() { # C: a library to preload, which shows where a program crashes
    cat <<'C'
#include <execinfo.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static char stack[1 << 16];

static void crashed(int signal) {
    void *frames[64];
    static const char text[] = "crashed:\n";
    if (write(2, text, sizeof text - 1) > 0) backtrace_symbols_fd(frames, backtrace(frames, 64), 2);
    _exit(128 + signal);
}

__attribute__((constructor)) static void install(void) {
    void *frame[1];
    stack_t memory = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = crashed, .sa_flags = SA_ONSTACK};
    backtrace(frame, 1); // loads its library now, not in the signal handler
    sigaltstack(&memory, 0);
    sigaction(SIGSEGV, &action, 0);
    sigaction(SIGBUS, &action, 0);
    unsetenv("LD_PRELOAD");
}
C
}

# Uses the libraries in NVIDIA's Python packages, unless STRATUS_CUDA names others.
find_libraries() {
    [ -z "${STRATUS_CUDA:-}" ] || return 0
    STRATUS_CUDA=$(python3 - <<'P' 2>/dev/null
import glob, os, sysconfig
root = os.path.join(sysconfig.get_paths()["purelib"], "nvidia")
print(os.pathsep.join(sorted(glob.glob(os.path.join(root, "*", "lib")))))
P
    )
    if [ -n "$STRATUS_CUDA" ]; then export STRATUS_CUDA; else unset STRATUS_CUDA; fi
}

table=()
part() { # name command…: runs it, and adds its status and time to the table
    local name=$1 begun=$SECONDS rc status=ok
    shift
    echo "## $name"
    "$@" 2>&1
    rc=$?
    [ $rc = 0 ] || status="failed $rc"
    table+=("$(printf '%-24s %-10s %5d s' "$name" "$status" $((SECONDS - begun)))")
    return 0
}

measure() { # network batch precision: whole steps and each kernel; the raw numbers go to OUT
    synthetic kernels "$1" "$2" "$3" --rounds 3 --json >"$out/$1-$3.json" || return 1
    python3 - "$out/$1-$3.json" <<'P'
import json, sys
floor = json.load(open(sys.argv[1]))
planned, taken = floor.get("device_bytes", [1, 1])
print(f"{floor['network']} {floor['precision']} batch {floor['batch']}: "
      f"{1e3 * floor['step_s']:.2f} ms per iteration, "
      f"{floor['images_per_second']:.0f} images/s; sum of isolated kernels {1e3 * floor['floor_s']:.2f} ms; "
      f"planned memory {planned >> 20} MiB, allocated {taken >> 20} MiB "
      f"({100 * (taken / planned - 1):+.2f} %)")
kinds = {}
for kernel in floor["kernels"]:
    kind = kinds.setdefault(kernel["kernel"], [0, 0.0, 0.0, 0, 0])
    values = [1, kernel["within_s"], kernel["alone_s"], kernel["flops"], kernel["bytes"]]
    for position, value in enumerate(values):
        kind[position] += value
for name, (count, within, alone, flops, size) in sorted(kinds.items(), key=lambda kind: -kind[1][1])[:14]:
    print(f"  {name:34} {count:4} {1e3 * within:9.3f} ms in step {1e3 * alone:9.3f} isolated "
          f"{flops / within / 1e12:7.1f} TFLOP/s {size / within / 1e9:7.0f} GB/s")
P
}

digits() {
    "$folder/stratus" train digits --set train.device=cuda --set train.epochs="${EPOCHS:-50}" \
        --out "$out/digits"
}

half() { # the printed table shows the loss scale, and the iterations that were spent on finding it
    "$folder/stratus" train digits --set train.device=cuda --set train.precision=f16 --set train.epochs=5 \
        --out "$out/half"
}

sanitize() { # invalid and uninitialised accesses, and races; 90 seconds for each kind of case
    command -v compute-sanitizer || return 1
    local failed=0 tool cases
    local all="loss_scale scaled softmax normalise_pixels batch_norm_gradients conv2d_backward_weights"
    for tool in memcheck initcheck racecheck; do
        for cases in ${SANITIZE:-$all}; do
            echo "== $tool $cases"
            timeout 90 compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 3 \
                "$folder/stratus" bench verify "$cases" --set train.device=cuda --set train.tf32=false \
                || failed=1
        done
    done
    return $failed
}

resume() { # a killed and resumed run must end bit-identical to an uninterrupted one
    local settings=(--set train.device=cuda --set train.epochs=20) pid
    "$folder/stratus" train digits "${settings[@]}" --out "$out/whole" >/dev/null 2>&1 || return 1
    "$folder/stratus" train digits "${settings[@]}" --out "$out/killed" >/dev/null 2>&1 &
    pid=$!
    until [ -e "$out/killed/epochs.csv" ] && [ "$(wc -l <"$out/killed/epochs.csv")" -gt 4 ]; do
        kill -0 $pid 2>/dev/null || return 1
        sleep 0.02
    done
    kill -9 $pid
    wait $pid 2>/dev/null
    "$folder/stratus" train "$out/killed" 2>&1 | grep -o 'resumed after iteration [0-9]*' || return 1
    weights "$out/whole" "$out/killed"
}

weights() { # run…: the checksums of the weights; succeeds if they are equal
    local sums
    sums=$(python3 -c 'import json, sys
for run in sys.argv[1:]:
    print(json.load(open(run + "/summary.json"))["weights_sha256"])' "$@")
    echo "$sums"
    [ "$(echo "$sums" | sort -u | wc -l)" = 1 ]
}

use_mpi() {
    export STRATUS_MPIEXEC=$folder/mpich/bin/mpiexec STRATUS_MPI=$folder/mpich/lib
    [ -x "$STRATUS_MPIEXEC" ] || { echo "no MPI was packed"; return 1; }
}

workers() { # four parts on one process and on two that share the GPU; the time of a step in two parts
    local settings=(--set train.device=cuda --set train.epochs=3 --set train.parts=4) plain divided status=0
    # NCCL with one GPU: joining, sums, recorded graphs.
    STRATUS_EXPECT_GPU=1 "$folder/oracle" group_of_one_gpu --nocapture || status=1
    use_mpi || return 1
    "$folder/stratus" train digits "${settings[@]}" --out "$out/parts-1" || return 1
    "$folder/stratus" train digits "${settings[@]}" --workers 2 --out "$out/parts-2" || return 1
    weights "$out/parts-1" "$out/parts-2" || status=1
    plain=$(synthetic kernels resnet50 256 bf16 --rounds 3 --json) || return 1
    divided=$(synthetic kernels resnet50 256 bf16 --set train.parts=2 --rounds 3 --json) || return 1
    python3 - "$plain" "$divided" <<'P' || status=1
import json, sys
plain, divided = (json.loads(text)["step_s"] for text in sys.argv[1:])
print(f"resnet50 bf16 batch 256: {1e3 * plain:.2f} ms, in two parts {1e3 * divided:.2f} ms: "
      f"{divided / plain:.3f} times, at most 1.08")
sys.exit(divided > 1.08 * plain)
P
    return $status
}

gpus() { # the same run on 1, 2, 4, … GPUs
    local count run runs=() status=0
    use_mpi || return 1
    local found
    found=$(nvidia-smi --list-gpus | wc -l)
    for ((count = 1; 2 * count <= found; count *= 2)); do :; done
    for ((run = 1; run <= count; run *= 2)); do
        many_gpus "$count" "$run" "$out/gpus-$run" || return 1
        runs+=("$out/gpus-$run")
    done
    if [ "$count" -gt 1 ]; then
        uses "$out/gpus-$count" NCCL || status=1
        # The same through host memory. NCCL is also found in an active Python environment and on the system's
        # path; with it, this run would compare NCCL with itself.
        (
            unset VIRTUAL_ENV CONDA_PREFIX
            STRATUS_CUDA=$(tr : '\n' <<<"${STRATUS_CUDA:-}" | grep -v nccl | paste -sd: -)
            export STRATUS_CUDA
            many_gpus "$count" "$count" "$out/gpus-host"
        ) || return 1
        uses "$out/gpus-host" 'through host memory' || status=1
        runs+=("$out/gpus-host")
        many_gpus "$count" "$count" "$out/gpus-bf16" --set train.exchange_type=bf16 || status=1
        many_gpus "$count" "$count" "$out/gpus-fast" --set train.exchange=fast || status=1
    fi
    weights "${runs[@]}" || status=1
    return $status
}

uses() { # run path: checks the path of the exchange that the run printed
    grep -q "^exchange  *$2" "$1.txt" && return
    echo "$1 did not exchange by '$2', so it proves nothing about that path"
    return 1
}

many_gpus() { # parts workers run argument…: an epoch of 20 iterations of 256 images a part
    local ran
    ran=$("$folder/stratus" train resnet50 --set train.device=cuda --set data.name=synthetic \
        --set data.synthetic.classes=1000 --set data.synthetic.images=$((256 * $1 * 20)) \
        --set data.synthetic.validation_images=$((8 * $1)) --set validation.batch_size=8 \
        --set train.batch_size=$((256 * $1)) --set train.parts="$1" --set train.precision=bf16 \
        --set train.epochs=1 --set data.drop_last=true --workers "$2" --out "$3" "${@:4}" 2>&1) ||
        { echo "$ran"; return 1; }
    echo "$ran" >"$3.txt"
    grep -E '^exchange' "$3.txt" || true
    "$folder/stratus" collect "$3" | grep -i -E 'images|exchange' || true
}

synthetic() { # command network batch precision argument…
    "$folder/stratus" bench "$1" "$2" --set train.device=cuda --set data.name=synthetic \
        --set data.synthetic.classes=1000 --set data.synthetic.images="$3" \
        --set data.synthetic.validation_images=1 --set train.batch_size="$3" \
        --set train.precision="$4" "${@:5}"
}

trace() { # compares times with CUPTI's, which must not crash; prints the ends of the tables
    local status=0 traced
    for traced in digits vgg11; do
        if [ $traced = digits ]; then
            set -- "$folder/stratus" bench trace digits --set train.device=cuda --runs 10
        else
            set -- synthetic trace vgg11 128 bf16 --runs 10
        fi
        LD_PRELOAD=$folder/backtrace.so "$@" >"$out/trace-$traced.txt" 2>&1 || status=1
        tail -n 24 "$out/trace-$traced.txt"
    done
    return $status
}

overhead() { # the cost of timing for each network
    local status=0 network
    for network in ${OVERHEAD:-resnet50:256 resnet18:256 googlenet:256}; do
        echo "$network"
        synthetic overhead "${network%:*}" "${network#*:}" bf16 --pairs 40 || status=1
    done
    return $status
}

startup() { # times until the first step, phase by phase: without any cache, then with both
    local status=0 network cache
    for network in ${STARTUP:-resnet50:256 digits:1024}; do
        cache=$(mktemp -d)
        for state in cold cached; do
            echo "$network, $state"
            if [ "${network%:*}" = digits ]; then
                STRATUS_CACHE=$cache "$folder/stratus" bench overhead digits --set train.device=cuda --pairs 2
            else
                STRATUS_CACHE=$cache synthetic overhead "${network%:*}" "${network#*:}" bf16 --pairs 2
            fi || status=1
        done
        rm -r "$cache"
    done
    return $status
}

await() { # process log: waits for the process, prints its log, returns its exit status
    wait "$1"
    local rc=$?
    cat "$2"
    return $rc
}

peers() { # network:batch precision
    python3 scripts/gpu-peers.py --networks "$1" --modes "${PEERS:-eager compiled}" --precisions "$2" \
        2>/dev/null | tee -a "$out/peers.jsonl"
}

warm_up() { # PyTorch caches compiled networks on disk
    case ${PEERS:-eager compiled} in *compiled*) ;; *) return ;; esac
    for network in $networks; do
        timeout 240 python3 scripts/gpu-peers.py --networks "$network" --modes compiled \
            --precisions "$precisions" --steps 1 >/dev/null 2>&1 &
    done
}

run() {
    find_libraries
    out=${OUT:-$(mktemp -d)}
    mkdir -p "$out"
    export STRATUS_CACHE=$folder/cache STRATUS_EXPECT_GPU=1 RUST_BACKTRACE=0
    checks=()
    [ $# -gt 0 ] || set -- libraries digits half resume trace startup overhead warm_up checks networks compare
    for name; do
        case $name in
        libraries) part "$name" "$folder/stratus" doctor --no-measure ;;
        cases)
            part "$name" timeout 120 "$folder/stratus" bench verify --set train.device=cuda \
                --set train.tf32=false
            ;;
        parity) part "$name" timeout 240 "$folder/parity" "${PARITY:-on_a_gpu}" --test-threads 4 ;;
        tiles) part "$name" timeout 120 "$folder/oracle" on_a_gpu ;;
        half) part "$name" half ;;
        sanitize) part "$name" sanitize ;;
        workers) part "$name" workers ;;
        gpus) part "$name" gpus ;;
        resume) part "$name" resume ;;
        overhead) part "$name" overhead ;;
        startup) part "$name" startup ;;
        trace) part "$name" trace ;;
        digits) part "$name" digits ;;
        warm_up) warm_up ;;
        checks)
            for check in cases tiles parity; do
                bash scripts/gpu-check.sh run "$folder" "$check" >"$out/$check.log" 2>&1 &
                checks+=("$check:$!")
            done
            for check in "${checks[@]}"; do
                part "${check%:*}" await "${check#*:}" "$out/${check%:*}.log"
            done
            ;;
        compare)
            wait
            echo "## baselines compiled after $SECONDS s"
            for network in $networks; do
                for precision in $precisions; do
                    part "$network $precision" measure "${network%:*}" "${network#*:}" "$precision"
                    part "$network baselines" peers "$network" "$precision"
                done
            done
            ;;
        networks)
            for network in $networks; do
                for precision in $precisions; do
                    part "$network $precision" measure "${network%:*}" "${network#*:}" "$precision"
                done
            done
            ;;
        *) echo "unknown part $name" && exit 2 ;;
        esac
    done
    echo
    printf '%s\n' "${table[@]}"
    ! printf '%s\n' "${table[@]}" | grep -q failed
}

case $mode in
pack) pack ;;
run) run "$@" ;;
*) echo "unknown mode $mode" && exit 2 ;;
esac
