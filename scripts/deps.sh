#!/usr/bin/env bash
# Installs oneDNN into .deps/onednn of this checkout: from a pinned wheel, checked by its hash, without root.
#
#   scripts/deps.sh                fails if it cannot be installed
#   scripts/deps.sh --best-effort  only reports it: Stratus also runs with a system oneDNN 3.x, or without any
set -euo pipefail
# shellcheck source=scripts/deps-common.sh
source "$(dirname "$0")/deps-common.sh"

version=2023.2.0
wheel=onednn_cpu_gomp-$version-py2.py3-none-manylinux1_x86_64.whl
sha256=2f22a54d6a890ed14bfa185d42a4be65d8b5b1df85dc1f0f3a9abe31620416fb
target=$root/.deps/onednn
stamp=$target/installed

consequence=(
    "install oneDNN with your system's packages instead (Debian and Ubuntu: libdnnl-dev, if it is"
    "3.x; Homebrew and conda-forge: onednn). Without it the slow reference backend computes."
)

has_gomp() {
    { ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null; } | grep 'libgomp\.so\.1' >/dev/null && return
    for file in /usr/lib*/libgomp.so.1 /usr/lib/*/libgomp.so.1; do
        if [ -e "$file" ]; then return; fi
    done
    # gcc prints the path of its own library, or the bare name if it has none.
    case "$(gcc -print-file-name=libgomp.so.1 2>/dev/null)" in /*) return ;; esac
    return 1
}

if [ "$(uname -s)" != Linux ] || [ "$(uname -m)" != x86_64 ]; then
    give_up "the pinned oneDNN is built for Linux on x86-64, and this is $(uname -s) on $(uname -m)"
fi
has_gomp || say "libgomp.so.1 is missing and oneDNN needs it: install libgomp1 (it comes with gcc)"

if [ "$(cat "$stamp" 2>/dev/null)" = "$sha256" ] && [ -e "$target/lib/libdnnl.so.3" ]; then
    exit 0
fi
need_python
need_pip
make_work

say "fetching oneDNN ($wheel)"
echo "onednn-cpu-gomp==$version --hash=sha256:$sha256" > "$work/requirements.txt"
pinned_pip download --platform manylinux1_x86_64 --dest "$work" --requirement "$work/requirements.txt" \
    || give_up "the wheel could not be fetched"

data=onednn_cpu_gomp-$version.data/data
unpack "$work/$wheel" "$sha256" "$work/onednn" "$data/lib/libdnnl.so.3=lib/libdnnl.so.3" \
    "$data/share/doc/onednn/LICENSE=LICENSE" \
    "$data/share/doc/onednn/THIRD-PARTY-PROGRAMS=THIRD-PARTY-PROGRAMS"
install_as "$work/onednn" "$target"
say "oneDNN is in .deps/onednn/lib"
