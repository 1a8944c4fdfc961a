#!/usr/bin/env bash
# Checks Stratus on a machine with an NVIDIA GPU that need not have a toolchain nor a network: with programs that were built elsewhere.
#
#   scripts/gpu-check.sh pack FOLDER       here: builds the programs, and our kernels' machine code where NVRTC is found, into FOLDER
#   scripts/gpu-check.sh run FOLDER PART…  there: libraries cases parity digits networks peers; all of them where none is named
#
# `run` prints what each part printed and a short table at the end, and fails where a part failed. OUT names a folder for raw output.
# NETWORKS='resnet50:256 …' (name:batch) says what is measured; PRECISIONS='bf16'; PEERS='eager compiled'.
set -uo pipefail
cd "$(dirname "$0")/.."
mode=${1:-} folder=${2:-}
[ -n "$mode" ] && [ -n "$folder" ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
shift 2

pack() {
    set -e
    mkdir -p "$folder"
    cargo build --release --locked -q -p stratus --no-default-features
    test=$(cargo test --release --locked -q -p stratus-train --test parity --no-run --message-format=json |
        python3 -c 'import json, sys
for line in sys.stdin:
    made = json.loads(line)
    if made.get("executable") and made["target"]["name"] == "parity":
        print(made["executable"])')
    strip -o "$folder/stratus" "${CARGO_TARGET_DIR:-target}/release/stratus"
    strip -o "$folder/parity" "$test"
    STRATUS_KERNELS_OUT=$PWD/$folder/cache/kernels cargo test --locked -q -p stratus-cuda --test compiles
    du -sh "$folder"
}

# Python's wheels of NVIDIA's libraries, where the system has none.
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
part() { # name command…: runs it, and notes how it ended and how long it took
    local name=$1 begun=$SECONDS rc
    shift
    echo "## $name"
    "$@" 2>&1
    rc=$?
    table+=("$(printf '%-24s %-10s %5d s' "$name" "$([ $rc = 0 ] && echo ok || echo "failed $rc")" $((SECONDS - begun)))")
    return 0
}

measured() { # network batch precision: whole steps and each kernel; the raw numbers go to OUT
    local settings=(--set train.device=cuda --set data.name=synthetic --set data.synthetic.classes=1000
        --set data.synthetic.images="$2" --set data.synthetic.validation_images=1 --set train.batch_size="$2" --set train.precision="$3")
    "$folder/stratus" bench kernels "$1" --rounds 3 --json "${settings[@]}" >"$out/$1-$3.json" || return 1
    python3 - "$out/$1-$3.json" <<'P'
import json, sys
floor = json.load(open(sys.argv[1]))
print(f"{floor['network']} {floor['precision']} batch {floor['batch']}: {1e3 * floor['step_s']:.2f} ms a step, "
      f"{floor['images_per_second']:.0f} images/s; kernels alone {1e3 * floor['floor_s']:.2f} ms")
kinds = {}
for kernel in floor["kernels"]:
    kind = kinds.setdefault(kernel["kernel"], [0, 0.0, 0.0, 0, 0])
    for position, value in enumerate([1, kernel["within_s"], kernel["alone_s"], kernel["flops"], kernel["bytes"]]):
        kind[position] += value
for name, (count, within, alone, flops, size) in sorted(kinds.items(), key=lambda kind: -kind[1][1])[:14]:
    print(f"  {name:34} {count:4} {1e3 * within:9.3f} ms within {1e3 * alone:9.3f} alone {flops / within / 1e12:7.1f} TFLOP/s {size / within / 1e9:7.0f} GB/s")
P
}

digits() {
    "$folder/stratus" train digits --set train.device=cuda --set train.epochs="${EPOCHS:-50}" --out "$out/digits"
}

run() {
    find_libraries
    out=${OUT:-$(mktemp -d)}
    folder=$(realpath "$folder")
    export STRATUS_CACHE=$folder/cache STRATUS_EXPECT_GPU=1 RUST_BACKTRACE=0
    [ $# -gt 0 ] || set -- libraries cases parity digits networks peers
    for name; do
        case $name in
        libraries) part "$name" "$folder/stratus" doctor --no-measure ;;
        cases) part "$name" timeout 120 "$folder/stratus" bench verify --set train.device=cuda --set train.tf32=false ;;
        parity) part "$name" timeout 240 "$folder/parity" on_a_gpu --test-threads 4 ;;
        digits) part "$name" timeout 120 bash -c "$(declare -f digits); folder='$folder' out='$out' digits" ;;
        networks)
            for network in ${NETWORKS:-resnet50:256 resnet18:256 vgg11:128 alexnet:512 googlenet:256}; do
                for precision in ${PRECISIONS:-bf16}; do
                    part "$network $precision" measured "${network%:*}" "${network#*:}" "$precision"
                done
            done
            ;;
        peers)
            part "$name" python3 scripts/gpu-peers.py --networks "${NETWORKS:-resnet50:256 resnet18:256 vgg11:128 alexnet:512 googlenet:256}" \
                --modes "${PEERS:-eager compiled}" --precisions "${PRECISIONS:-bf16}"
            ;;
        *) echo "there is no part $name" && exit 2 ;;
        esac
    done
    echo
    printf '%s\n' "${table[@]}"
    ! printf '%s\n' "${table[@]}" | grep -q failed
}

case $mode in
pack) pack ;;
run) run "$@" ;;
*) echo "there is no $mode" && exit 2 ;;
esac
