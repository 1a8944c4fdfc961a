#!/usr/bin/env bash
# Tests the AMX kernels on CPUs without AMX: tile instructions are emulated (emulate.c). AVX-512 is needed, as
# the kernels use it too. With --best-effort, exits with 0 if the tests cannot be run.
set -euo pipefail
cd "$(dirname "$0")/../.."

without() {
    echo "the kernels on AMX are not tested here: $1" >&2
    [ "$effort" = --best-effort ] || exit 1
    exit 0
}

effort=${1:-}
[ "$(uname -sm)" = "Linux x86_64" ] || without "they need x86-64 Linux"
for feature in avx512bw avx512_bf16; do
    grep -qw "$feature" /proc/cpuinfo || without "the processor has no $feature"
done
if grep -qw amx_bf16 /proc/cpuinfo; then
    echo "the processor has AMX: its kernels are tested with all others" >&2
    exit 0
fi
compiler=$(command -v "${CC:-cc}") || without "there is no C compiler"

library=$(mktemp -d)
trap 'rm -rf "$library"' EXIT
"$compiler" -O3 -mavx2 -mfma -Wall -Wextra -Werror -shared -fPIC \
    -o "$library/emulate.so" scripts/amx/emulate.c
# The workspace's tests, as `make test` builds them: for a single crate, dependencies would be compiled again
# with other features.
tests=$(${CARGO:-cargo} test --workspace --lib --locked --no-run --message-format=json 2> "$library/log" |
    sed -n '/"name":"stratus_onednn"/s/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1) || {
    cat "$library/log" >&2
    exit 1
}
[ -x "$tests" ] || { cat "$library/log" >&2; echo "no tests were built" >&2; exit 1; }
cd crates/stratus-onednn
STRATUS_EMULATED_AMX=1 LD_PRELOAD="$library/emulate.so" \
    "$tests" --nocapture native::conv::panel native::conv::tap_gradient 2>&1 | tee "$library/log"
if ! grep -q "^test result: ok" "$library/log" || grep -q "SKIPPED" "$library/log"; then
    echo "tests failed, or were skipped" >&2
    exit 1
fi
