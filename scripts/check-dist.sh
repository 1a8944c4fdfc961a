#!/usr/bin/env bash
# Checks the packages of `make dist` and `make wheel`: their sizes, their symbols of glibc, and that each
# trains `digits` for an epoch, without network, toolchain, libgomp and checkout, to the weights of
# `make build`'s program. Uses a root file system of its own: needs root, or user namespaces.
#
#   scripts/check-dist.sh              builds all three; the file system contains the C and C++ runtime
#   scripts/check-dist.sh --no-build   the same without building
#   scripts/check-dist.sh ROOT         in the root file system ROOT of an older system with Python, such as
#                                      `debootstrap --include=python3-venv bullseye ROOT` makes; no building
set -euo pipefail
# Without the libraries.
MAX_PACKED_BYTES=35000000
MAX_GLIBC=2.28

cd "$(dirname "$0")/.."
root=$PWD
given=${1-}
if [ -z "$given" ]; then
    make dist wheel build
fi
work=$(mktemp -d "$root/target/check-dist.XXXXXX")
trap 'rm -rf "$work"' EXIT
fail() {
    echo "check-dist: $1" >&2
    exit 1
}

archive=$(ls "$root"/dist/stratus-*-x86_64-linux.tar.gz)
wheel=$(ls "$root"/dist/stratus-*.whl)
mkdir "$work/archive"
tar -xzf "$archive" -C "$work/archive" --strip-components=1
for file in lib/stratus/{libdnnl.so.3,libgomp.so.1,libjpeg.so.62} share/man/man1/stratus.1 \
    share/licenses/stratus/{LICENSE-MIT,CRATES,onednn/LICENSE,libjpeg-turbo/LICENSE} \
    share/bash-completion/completions/stratus share/stratus/mnist/README.md; do
    [ -s "$work/archive/$file" ] || fail "$archive has no $file"
done

for file in "$work"/archive/bin/stratus "$work"/archive/lib/stratus/*; do
    newest=$(objdump -T "$file" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
    [ "$(printf '%s\n' "GLIBC_$MAX_GLIBC" "$newest" | sort -V | tail -n 1)" = "GLIBC_$MAX_GLIBC" ] ||
        fail "${file#"$work/"} needs $newest"
    echo "check-dist: ${file#"$work/archive/"}: $(stat -c %s "$file") bytes, $newest"
done
objdump -T "$work/archive/bin/stratus" | grep ' GOMP_parallel$' > /dev/null ||
    fail "the program exports no OpenMP functions"
small=$(tar -cz -C "$work/archive" --exclude=./lib . | wc -c)
((small <= MAX_PACKED_BYTES)) || fail "without libraries the archive has $small bytes, over $MAX_PACKED_BYTES"

# All programs use one set of plans: timings choose kernels, whose results differ in the last bits.
settings=(train digits --set train.epochs=1 --out /tmp/run --quiet)
mkdir -p "$work/cache"

# A root file system with the packages in /opt.
system=$work/root
if [ -n "$given" ] && [ "$given" != --no-build ]; then
    system=$given
    [ -x "$system/usr/bin/python3" ] || fail "$system has no Python"
    rm -rf "$system/opt/stratus" "$system/opt/venv" "$system/opt/cache"
else
    mkdir -p "$system"/{proc,sys,dev,opt}
    ldd "$work/archive/bin/stratus" "$work/archive/lib/stratus/libdnnl.so.3" |
        grep -oE '/[^ ]*\.so[.0-9]*' | grep -v libgomp | sort -u | while read -r library; do
            cp --parents -L "$library" "$system"
        done
fi
mkdir -p "$system/tmp"
cp -r "$work/archive" "$system/opt/stratus"

user=()
[ "$(id -u)" = 0 ] || user=(--map-root-user)
in_system() { # command…: runs it without network in the root file system, with an empty environment
    unshare "${user[@]}" --mount --net --pid --fork sh -c '
        mount -t proc proc "$0/proc" && { mount --bind /sys "$0/sys" || true; } &&
        exec env -i HOME=/tmp STRATUS_CACHE=/opt/cache "$(command -v chroot)" "$0" "$@"' "$system" "$@"
}

train() { # name command…: trains in the root file system, and prints the hash of the weights
    local name=$1
    shift
    rm -rf "$system/tmp/run"
    local start=$SECONDS
    in_system "$@" "${settings[@]}" 2> "$work/$name.log" > "$work/$name.txt" ||
        { cat "$work/$name.log" >&2; fail "$name: training failed"; }
    ! grep -i 'reference backend' "$work/$name.log" || fail "$name: oneDNN was not loaded"
    weights "$system/tmp/run"
    echo "check-dist: $name: trained in $((SECONDS - start)) s" >&2
}
weights() { # run: the hash of its newest weights
    cat "$(ls -d "$1"/checkpoints/* | sort | tail -n 1)"/weights.safetensors | sha256sum | cut -c -64
}

expected=$(train archive /opt/stratus/bin/stratus)

# The program of `make build`, in this system, with the plans of the packages.
cp -r "$system/opt/cache" "$work/build-cache"
rm -rf "$work/run"
(cd "$work" && STRATUS_CACHE=$work/build-cache "$root/target/release/stratus" train digits \
    --set train.epochs=1 --set "data.path=$root/data/mnist" --out "$work/run" --quiet > /dev/null)
[ "$(weights "$work/run")" = "$expected" ] || fail "the archive's weights differ from those of make build"

if [ "$system" = "$work/root" ]; then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-index --no-deps "$wheel"
    # The environment alone, without Python, in the root file system: nothing else is needed to run.
    cp -r "$work/venv" "$system/opt/venv"
else
    cp "$wheel" "$system/opt/"
    in_system /usr/bin/python3 -m venv /opt/venv
    in_system /opt/venv/bin/python -m pip install --quiet --no-index --no-deps "/opt/$(basename "$wheel")"
fi
[ "$(train wheel /opt/venv/bin/stratus)" = "$expected" ] || fail "the wheel's weights are others"
echo "check-dist: $(du -h "$archive" | cut -f 1) archive, $(du -h "$wheel" | cut -f 1) wheel: same weights"
