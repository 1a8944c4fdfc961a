#!/usr/bin/env bash
# Measures `stratus ui` in headless Chromium on 1,000 generated runs of 10,000 iterations and 125 layers: time
# to the table, a run, a comparison; memory; TensorBoard and trackio with the same scalars; the delay from a
# row to the screen; digits beside an open page; memory while a run grows. Prints lines of CSV. Run nothing
# else on the machine meanwhile: it takes about half an hour, without --no-peers also 3 GB for trackio.
#
#   scripts/benchmark-ui.sh STRATUS [--no-peers] [OPTION…] > docs/benchmarks/raw/ui.txt
#
# Options of scripts/ui, such as --minutes 60, --runs 100, --only speed. Generated runs are kept in
# target/benchmark-ui, or in the folder of STRATUS_BENCHMARK_UI. Packages are fetched into .deps, pinned.
set -euo pipefail
[[ ${1:--} != -* ]] || { sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2; }
stratus=$(realpath "$1")
shift
# shellcheck source=scripts/browser-common.sh
source "$(dirname "$0")/browser-common.sh" ''

consequence=("\`stratus ui\` is NOT measured")
peers=yes
options=()
for option in "$@"; do
    if [ "$option" = --no-peers ]; then peers=no; else options+=("$option"); fi
done
find_browser
if [ "$peers" = yes ]; then
    installed_packages "$root/scripts/benchmark-ui.txt" "$root/.deps/benchmark-ui" "TensorBoard and trackio"
    options+=(--packages "$root/.deps/benchmark-ui")
fi
cd "$root"
target=${CARGO_TARGET_DIR-target}
folder=${STRATUS_BENCHMARK_UI:-$target/benchmark-ui}

echo "stratus ui, $(date -u +'%Y-%m-%d %H:%M') UTC"
echo "scripts/benchmark-ui.sh, commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
echo
echo "== Machine"
echo
"$stratus" doctor
echo
echo "== Figures"
echo
echo "\$ scripts/benchmark-ui.sh STRATUS $*"
python3 scripts/ui "$stratus" "$folder" --browser "$browser" "${options[@]}"
