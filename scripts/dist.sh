#!/usr/bin/env bash
# Packs the program with oneDNN, libjpeg-turbo, MNIST, licences, completions and manual pages into dist/, for
# Linux on x86-64 with glibc 2.28 or newer (RHEL 8, Debian 10, Ubuntu 20.04).
#
#   scripts/dist.sh archive      dist/stratus-VERSION-x86_64-linux.tar.gz
#   scripts/dist.sh wheel        dist/stratus-VERSION-py3-none-manylinux_2_28_x86_64.whl
#
# Needs Cargo and a C compiler for build scripts; zig and maturin come from pinned wheels.
set -euo pipefail

kind=${1-}
case $kind in
    archive | wheel) ;;
    *) echo "usage: scripts/dist.sh archive|wheel" >&2; exit 2 ;;
esac
shift
# shellcheck source=scripts/deps-common.sh
source "$(dirname "$0")/deps-common.sh"

if [ "$(uname -s)" != Linux ] || [ "$(uname -m)" != x86_64 ]; then
    give_up "packages are built on Linux on x86-64, and this is $(uname -s) on $(uname -m)"
fi
cd "$root"
bash scripts/deps.sh
bash scripts/deps-jpeg.sh
tools=$root/.deps/dist
installed_packages "$root/scripts/dist/requirements.txt" "$tools" "zig, cargo-zigbuild and maturin"

target=$root/target/dist
triple=x86_64-unknown-linux-gnu
cargo=${CARGO-cargo}
zig="$tools/ziglang/zig"
zig_cc=("$zig" cc -target x86_64-linux-gnu.2.28 -O2 -s -shared -fPIC)
mkdir -p "$target"
export PATH=$tools/bin:$PATH PYTHONPATH=$tools CARGO_ZIGBUILD_ZIG_PATH=$zig
export ZIG_GLOBAL_CACHE_DIR=$target/zig ZIG_LOCAL_CACHE_DIR=$target/zig

# The OpenMP functions of the program, from their list.
functions=$(sed -n '/^pub const PROVIDED_SYMBOLS/,/^];/s/^ *"\(.*\)",$/\1/p' \
    crates/stratus-threads/src/gomp.rs)
{
    for name in $functions; do echo "void $name(void);"; done
    echo "void *imports[] = {"
    for name in $functions; do echo "    $name,"; done
    echo "};"
} > "$target/exports.c"
"${zig_cc[@]}" -o "$target/libexports.so" "$target/exports.c"

# oneDNN names libgomp.so.1 as its dependency, but calls the program's functions. Not every system has it.
{
    echo "#include <stdlib.h>"
    for name in $functions; do echo "void $name(void) { abort(); }"; done
} > "$target/gomp.c"
printf 'GOMP_1.0 { global: GOMP_*; };\nOMP_1.0 { global: omp_*; local: *; };\n' > "$target/gomp.map"
"${zig_cc[@]}" -o "$target/libgomp.so.1" "$target/gomp.c" -Wl,-soname,libgomp.so.1 \
    "-Wl,--version-script=$target/gomp.map"

export STRATUS_DIST_EXPORTS=$target/libexports.so
export CARGO_TARGET_DIR=$target CARGO_PROFILE_RELEASE_STRIP=symbols
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER=$root/scripts/dist/zig-cc.sh
"$cargo" build --release --locked --target "$triple" -p stratus
program=$target/$triple/release/stratus
version=$("$program" --version | cut -d ' ' -f 2)

stage=$target/stage
rm -rf "$stage"
share=$stage/share
licences=$share/licenses/stratus
mkdir -p "$stage/lib/stratus" "$share/stratus/mnist" "$licences"/{onednn,libjpeg-turbo} \
    "$share/bash-completion/completions" "$share/zsh/site-functions" "$share/fish/vendor_completions.d"
cp .deps/onednn/lib/libdnnl.so.3 .deps/libjpeg/lib/libjpeg.so.62 "$target/libgomp.so.1" "$stage/lib/stratus/"
cp data/mnist/* "$share/stratus/mnist/"
cp LICENSE-MIT LICENSE-APACHE "$licences/"
cp .deps/onednn/{LICENSE,THIRD-PARTY-PROGRAMS} "$licences/onednn/"
cp .deps/libjpeg/LICENSE "$licences/libjpeg-turbo/"
# Of the font of contact sheets.
cp crates/stratus-data/src/contact_sheet/font-licence.txt "$licences/SOURCE-SANS-PRO"
python3 scripts/dist/crate-licences.py "$triple" > "$licences/CRATES"
"$program" --quiet man "$share/man/man1"
"$program" completions bash > "$share/bash-completion/completions/stratus"
"$program" completions zsh > "$share/zsh/site-functions/_stratus"
"$program" completions fish > "$share/fish/vendor_completions.d/stratus.fish"
chmod -R u=rwX,go=rX "$stage"

mkdir -p dist
if [ "$kind" = archive ]; then
    name=stratus-$version-x86_64-linux
    install -D "$program" "$stage/bin/stratus"
    # The same content gives the same bytes: the date is that of the commit.
    date=$(git log -1 --format=%ct 2>/dev/null || echo 0)
    tar --create --directory "$stage" --sort=name --mtime="@$date" --owner=0 --group=0 --numeric-owner \
        --transform="s,^\.,$name," . | gzip -9n > "dist/$name.tar.gz.new"
    mv "dist/$name.tar.gz.new" "dist/$name.tar.gz"
    package=dist/$name.tar.gz
else
    rm -rf "$target/wheel"
    mkdir -p "$target/wheel"
    mv "$stage" "$target/wheel/data"
    maturin build --quiet --release --locked --target "$triple" --compatibility manylinux_2_28 \
        --manifest-path crates/stratus/Cargo.toml --out dist
    package=$(echo "dist/stratus-$version"-*.whl)
fi
megabytes() { # file
    echo "$(($(stat -c %s "$1") / 1000000)) MB"
}
say "$package: $(megabytes "$package"); the program: $(megabytes "$program")"
