#!/usr/bin/env bash
# Fuzzes the parsers of untrusted bytes with libFuzzer, on stable Rust. It needs a C++ compiler.
#
#   scripts/fuzz.sh [--seconds N] [--jobs N] [--best-effort] [TARGET…]
#                                     all targets if none is named, 1800 s each, N of them at the same time
#   scripts/fuzz.sh --list
#
# An input fails if a parser panics, overflows a number, holds more than 256 MiB, or takes more than a second
# per KiB. The input is then in target/fuzz/findings; the same command with its path repeats it:
#
#   scripts/fuzz.sh TARGET target/fuzz/findings/…
#
# Corpora are kept in target/fuzz/corpus. A line per target is added to target/fuzz/results.txt.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=1800 jobs=1 best_effort='' names=() inputs=()
while (($#)); do
    case $1 in
        --seconds) seconds=${2:?--seconds needs a number}; shift ;;
        --jobs) jobs=${2:?--jobs needs a number}; shift ;;
        --best-effort) best_effort=1 ;;
        --list) names=(list) ;;
        -*) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 2 ;;
        */*) inputs+=("$1") ;;
        *) names+=("$1") ;;
    esac
    shift
done

# Coverage without a sanitizer: only passes of LLVM, which stable Rust has.
flags=-Cpasses=sancov-module
for part in level=4 inline-8bit-counters pc-table trace-compares; do
    flags+=" -Cllvm-args=-sanitizer-coverage-$part"
done
flags+=" --cfg fuzzing"
host=$(rustc -vV | sed -n 's/^host: //p')
out=$PWD/target/fuzz
program=$out/$host/release/stratus-fuzz
mkdir -p "$out/findings"

# With --target, the flags do not reach build scripts and procedural macros.
if ! RUSTFLAGS=$flags CARGO_TARGET_DIR=$out \
    nice -n 10 cargo build --quiet --release --locked --manifest-path fuzz/Cargo.toml --target "$host"; then
    [[ -n $best_effort ]] || exit 1
    echo "SKIPPED fuzzing: the fuzzer cannot be built; it needs a C++ compiler"
    exit 0
fi
mapfile -t all < <(STRATUS_FUZZ=list "$program")
[[ ${names[0]:-} != list ]] || { printf '%s\n' "${all[@]}"; exit; }
((${#names[@]})) || names=("${all[@]}")

STRATUS_FUZZ_SEEDS=$out/seeds "$program" > /dev/null
# Symbols of allocations and signals; the store's answer of the target sftp.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export STRATUS_SSH=$PWD/fuzz/sftp-answer.sh STRATUS_FUZZ_ANSWER=$scratch/answer TMPDIR=$scratch

# Fuzzes a target, and adds its line to the results.
fuzz() {
    local name=$1 log=$out/$1.log code=0 dictionary=() coverage peak line
    mkdir -p "$out/corpus/$name"
    [[ ! -s $out/seeds/$name.dict ]] || dictionary=(-dict="$out/seeds/$name.dict")
    STRATUS_FUZZ=$name nice -n 10 "$program" "$out/corpus/$name" "$out/seeds/$name" "${dictionary[@]}" \
        -max_total_time="$seconds" -max_len="$(< "$out/seeds/$name.max")" -timeout=25 -rss_limit_mb=2048 \
        -artifact_prefix="$out/findings/$name-" -print_final_stats=1 -verbosity=1 > "$log" 2>&1 || code=$?
    coverage=$(sed -n 's/.* cov: \([0-9]*\).*/\1/p' "$log" | tail -n 1)
    stat() { sed -n "s/^stat::$1: *//p" "$log" | tail -n 1; }
    peak=$(sed -n 's/^peak_input_bytes //p' "$log" | sort -n | tail -n 1)
    row='%-16s seconds %5s executions %9s edges %6s corpus %5s peak_input_bytes %10s rss_mb %5s %s'
    # shellcheck disable=SC2059 # the row is a constant
    line=$(printf "$row" "$name" "$seconds" "$(stat number_of_executed_units)" "${coverage:-0}" \
        "$(find "$out/corpus/$name" -type f | wc -l)" "${peak:-0}" "$(stat peak_rss_mb)" \
        "$( ((code)) && echo FAILED || echo ok)")
    echo "$line" | tee -a "$out/results.txt"
    ((code == 0)) || { grep -m 3 -E 'panicked|ERROR|exceeds' -A 2 "$log" | head -n 8; return 1; }
}

failed=0 running=0
if ((${#inputs[@]})); then
    for name in "${names[@]}"; do
        STRATUS_FUZZ=$name "$program" "${inputs[@]}" || failed=1
    done
    exit "$failed"
fi
for name in "${names[@]}"; do
    if ((running == jobs)); then
        wait -n || failed=1
        running=$((running - 1))
    fi
    fuzz "$name" &
    running=$((running + 1))
done
while ((running)); do
    wait -n || failed=1
    running=$((running - 1))
done
exit "$failed"
