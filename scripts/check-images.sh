#!/usr/bin/env bash
# Mutates the headers of valid JPEG and PNG files, and compares the pixels that Stratus decodes with those of
# Pillow, libjpeg-turbo and libpng. The libraries are installed into .deps/check-images of this checkout: from
# pinned wheels, checked by their hashes, without root.
#
#   scripts/check-images.sh                fails if they cannot be installed
#   scripts/check-images.sh --best-effort  only reports it; files that differ still fail
#
# COUNT=10000 sets the number of files of each format, SEED=1 the seed that they are generated from.
set -euo pipefail
# shellcheck source=scripts/deps-common.sh
source "$(dirname "$0")/deps-common.sh"

packages=$root/.deps/check-images
requirements=$root/scripts/check-images.txt

consequence=("decoded files are NOT compared with those of other decoders")

installed_packages "$requirements" "$packages" "Pillow, simplejpeg and OpenCV"

cd "$root"
target=${CARGO_TARGET_DIR-target}
cargo=${CARGO-cargo}
# The whole workspace, as `make test` builds it.
"$cargo" test --quiet --locked --workspace --no-run
rm -rf "$target/check-images"
PYTHONPATH=$packages python3 scripts/check-images.py "$target/debug/examples/decode_files" \
    "$target/check-images" "${COUNT-10000}" "${SEED-1}"
rm -rf "$target/check-images"
