#!/usr/bin/env bash
# Installs libjpeg-turbo into .deps/libjpeg of this checkout: from a pinned wheel of Pillow, checked by its
# hash, without root. The library depends only on the C library, so the wheel may be for any Python version.
#
#   scripts/deps-jpeg.sh                fails if it cannot be installed
#   scripts/deps-jpeg.sh --best-effort  only reports it: Stratus also runs with a system libjpeg-turbo, or
#                                       without any
set -euo pipefail
# shellcheck source=scripts/deps-common.sh
source "$(dirname "$0")/deps-common.sh"

version=13.0.0
wheel=pillow-$version-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl
sha256=42d63be3af4f9b951b199b0a9d23365d37ab14687e6d77b74940432c8515c4ca
library=pillow.libs/libjpeg-6dc8d115.so.62.4.0
target=$root/.deps/libjpeg
stamp=$target/installed

consequence=(
    "install libjpeg-turbo with your system's packages instead (Debian: libjpeg62-turbo; Ubuntu:"
    "libjpeg-turbo8; Homebrew: jpeg-turbo; conda-forge: libjpeg-turbo). Without it JPEG files are decoded"
    "more slowly."
)

if [ "$(uname -s)" != Linux ] || [ "$(uname -m)" != x86_64 ]; then
    give_up "the pinned libjpeg-turbo is built for Linux on x86-64, and this is $(uname -s) on $(uname -m)"
fi
if [ "$(cat "$stamp" 2>/dev/null)" = "$sha256" ] && [ -e "$target/lib/libjpeg.so.62" ]; then
    exit 0
fi
need_python
need_pip
make_work

say "fetching libjpeg-turbo ($wheel)"
echo "pillow==$version --hash=sha256:$sha256" > "$work/requirements.txt"
pinned_pip download --platform manylinux_2_28_x86_64 --python-version 3.12 --implementation cp --abi cp312 \
    --dest "$work" --requirement "$work/requirements.txt" || give_up "the wheel could not be fetched"
unpack "$work/$wheel" "$sha256" "$work/libjpeg" \
    "$library=lib/libjpeg.so.62" "pillow-$version.dist-info/licenses/LICENSE=LICENSE"
install_as "$work/libjpeg" "$target"
say "libjpeg-turbo is in .deps/libjpeg/lib"
