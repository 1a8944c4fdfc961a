#!/usr/bin/env bash
# Runs the tests of workers with each supported MPI: MPICH's wheel with the standard binary interface and with
# MPICH's own, and Debian's mpich and openmpi, which are installed with apt-get as root.
#
#   scripts/check-mpi.sh                fails if one of them is missing
#   scripts/check-mpi.sh --best-effort  only reports missing ones
set -euo pipefail
# shellcheck source=scripts/deps-common.sh
source "$(dirname "$0")/deps-common.sh"

consequence=("workers were NOT tested with it")
library=/usr/lib/$(uname -m)-linux-gnu
# Open MPI needs two variables to start as root.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

bash "$root/scripts/deps-mpi.sh" ${1+"$1"}
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    for package in mpich=4.0.2* openmpi-bin=4.1.4*; do
        dpkg -s "${package%%=*}" >/dev/null 2>&1 && continue
        DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1 \
            || say "${package%%=*} could not be installed"
    done
fi

checked=0
check() { # name library mpiexec
    if [ ! -e "$2" ] || [ ! -x "$3" ]; then
        say "$1 is missing: workers were NOT tested with it"
        [ "$best_effort" = yes ] || exit 1
        return
    fi
    say "workers on $1"
    STRATUS_MPI=$2 STRATUS_MPIEXEC=$3 \
        "${CARGO:-cargo}" test --quiet --locked -p stratus --test it -- workers:: >&2
    checked=$((checked + 1))
}

wheel=$root/.deps/mpich
check "MPICH's wheel, the standard interface" "$wheel/lib/libmpi_abi.so.1" "$wheel/bin/mpiexec"
check "MPICH's wheel, MPICH's interface" "$wheel/lib/libmpi.so.12" "$wheel/bin/mpiexec"
check "Debian's mpich" "$library/libmpich.so.12" /usr/bin/mpiexec.mpich
check "Debian's openmpi" "$library/libmpi.so.40" /usr/bin/mpiexec.openmpi
say "workers are bit-identical with $checked MPIs"
