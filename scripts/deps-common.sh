# shellcheck shell=bash
# Shared by the scripts that install pinned wheels into .deps of this checkout; they source it with their
# arguments.
#
# Parses the only option, --best-effort. A script sets `consequence`: lines that explain the effect of a
# failure.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
script=$(basename "$0" .sh)
consequence=()

best_effort=no
case "${1-}" in
    '') ;;
    --best-effort) best_effort=yes ;;
    *) echo "usage: scripts/$script.sh [--best-effort]" >&2; exit 2 ;;
esac

say() { # line…
    local line
    for line in "$@"; do echo "$script: $line" >&2; done
}

give_up() { # problem
    say "$1" "${consequence[@]}"
    if [ "$best_effort" = yes ]; then exit 0; fi
    exit 1
}

need_python() {
    command -v python3 >/dev/null || give_up "python3 is missing"
}

need_pip() {
    python3 -m pip --version >/dev/null 2>&1 || give_up "pip is missing for python3 (install python3-pip)"
}

make_work() { # sets `work`: a temporary folder on the same file system, removed at exit
    mkdir -p "$root/.deps"
    work=$(mktemp -d "$root/.deps/install.XXXXXX")
    trap 'rm -rf "$work"' EXIT
}

pinned_pip() { # command argument…: accepts only wheels with the pinned hash
    python3 -m pip "$1" --quiet --disable-pip-version-check --no-deps --require-hashes \
        --only-binary=:all: "${@:2}" >&2
}

unpack() { # wheel sha256 folder member=path…: checks the hash once more, and extracts the members
    python3 - "$@" <<'PYTHON' || give_up "the wheel is invalid or has unexpected content"
import hashlib, pathlib, sys, zipfile

wheel, expected, target = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
found = hashlib.sha256(wheel.read_bytes()).hexdigest()
if found != expected:
    sys.exit(f"deps: {wheel} has SHA-256 {found}, expected {expected}")
with zipfile.ZipFile(wheel) as archive:
    names = set(archive.namelist())
    for member, path in (pair.split("=") for pair in sys.argv[4:]):
        if member not in names:
            sys.exit(f"deps: the wheel has no {member}")
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(archive.read(member))
PYTHON
    echo "$2" > "$3/installed"
}

install_as() { # folder target: moves it, so that the target is always complete
    rm -rf "$2"
    mv -T "$1" "$2"
}

# Installs pinned wheels into a separate folder, unless they are installed.
installed_packages() { # requirements target name
    need_python
    local stamp
    stamp=$(python3 -c 'import sys; print(*sys.version_info[:2], sys.platform)') \
        || give_up "python3 cannot be run"
    stamp="$stamp $(cksum < "$1")"
    [ "$(cat "$2/installed" 2>/dev/null)" != "$stamp" ] || return 0
    need_pip
    make_work
    say "fetching $3"
    pinned_pip install --target "$work/packages" --requirement "$1" \
        || give_up "$3 could not be fetched for this system and $(python3 --version)"
    echo "$stamp" > "$work/packages/installed"
    install_as "$work/packages" "$2"
    rm -rf "$work"
    trap - EXIT
}
