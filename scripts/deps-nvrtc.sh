#!/usr/bin/env bash
# Installs NVRTC, the compiler of CUDA C, into .deps/nvrtc of this checkout: from a pinned wheel, checked by
# its hash, without root. It needs no GPU: tests compile the GPU kernels with it. Training on a GPU prefers
# the NVRTC of an installed CUDA.
#
#   scripts/deps-nvrtc.sh                fails if it cannot be installed
#   scripts/deps-nvrtc.sh --best-effort  only reports it
set -euo pipefail
# shellcheck source=scripts/deps-common.sh
source "$(dirname "$0")/deps-common.sh"

version=13.0.88
wheel=nvidia_cuda_nvrtc-$version-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl
sha256=ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575
target=$root/.deps/nvrtc
stamp=$target/installed

consequence=("Without it, the tests do not compile the GPU kernels. Nothing else needs it here.")

if [ "$(uname -s)" != Linux ] || [ "$(uname -m)" != x86_64 ]; then
    give_up "the pinned NVRTC is built for Linux on x86-64, and this is $(uname -s) on $(uname -m)"
fi
if [ "$(cat "$stamp" 2>/dev/null)" = "$sha256" ] && [ -e "$target/lib/libnvrtc.so.13" ]; then
    exit 0
fi
need_python
need_pip
make_work

say "fetching NVRTC ($wheel)"
echo "nvidia-cuda-nvrtc==$version --hash=sha256:$sha256" > "$work/requirements.txt"
pinned_pip download --platform manylinux2010_x86_64 --dest "$work" --requirement "$work/requirements.txt" \
    || give_up "the wheel could not be fetched"
unpack "$work/$wheel" "$sha256" "$work/nvrtc" nvidia/cu13/lib/libnvrtc.so.13=lib/libnvrtc.so.13 \
    nvidia/cu13/lib/libnvrtc-builtins.so.13.0=lib/libnvrtc-builtins.so.13.0 \
    "nvidia_cuda_nvrtc-$version.dist-info/licenses/License.txt=LICENSE"
install_as "$work/nvrtc" "$target"
say "NVRTC is in .deps/nvrtc/lib"
