#!/usr/bin/env bash
# Installs MPICH into .deps/mpich of this checkout: from a pinned wheel, checked by its hash, without root.
# Its library has the standard binary interface of MPI 5, and its mpiexec starts workers on this machine.
#
#   scripts/deps-mpi.sh                fails if it cannot be installed
#   scripts/deps-mpi.sh --best-effort  only reports it: one process trains without MPI
set -euo pipefail
# shellcheck source=scripts/deps-common.sh
source "$(dirname "$0")/deps-common.sh"

version=5.0.2
wheel=mpich-$version-py3-none-manylinux_2_28_x86_64.whl
sha256=8fed465ebff269ea2ebac179a25de02671ddf8df476e0f115be089015015cfd4
target=$root/.deps/mpich
stamp=$target/installed

consequence=(
    "install MPI with your system's packages instead (Debian and Ubuntu: mpich, or libopenmpi-dev and"
    "openmpi-bin). Without it one process trains; \`--workers\` needs it."
)

if [ "$(uname -s)" != Linux ] || [ "$(uname -m)" != x86_64 ]; then
    give_up "the pinned MPICH is built for Linux on x86-64, and this is $(uname -s) on $(uname -m)"
fi
if [ "$(cat "$stamp" 2>/dev/null)" = "$sha256" ] && [ -x "$target/bin/mpiexec" ]; then
    exit 0
fi
need_python
need_pip
make_work

say "fetching MPICH ($wheel)"
echo "mpich==$version --hash=sha256:$sha256" > "$work/requirements.txt"
pinned_pip download --platform manylinux_2_28_x86_64 --dest "$work" --requirement "$work/requirements.txt" \
    || give_up "the wheel could not be fetched"

data=mpich-$version.data/data
members=()
for file in bin/mpiexec bin/hydra_pmi_proxy lib/libmpi_abi.so.1 lib/libmpi.so.12 lib/mpich/libfabric.so.1 \
    lib/mpich/libucp.so.0 lib/mpich/libuct.so.0 lib/mpich/libucs.so.0 lib/mpich/libucm.so.0 \
    lib/mpich/libucs_signal.so.0 lib/mpich/ucx/libuct_cma.so.0; do
    members+=("$data/$file=$file")
done
for licence in LICENSE LICENSE.hwloc LICENSE.json-c LICENSE.ofi LICENSE.ucx; do
    members+=("mpich-$version.dist-info/licenses/$licence=$licence")
done
unpack "$work/$wheel" "$sha256" "$work/mpich" "${members[@]}"
chmod +x "$work/mpich/bin/mpiexec" "$work/mpich/bin/hydra_pmi_proxy"
install_as "$work/mpich" "$target"
say "MPICH is in .deps/mpich"
