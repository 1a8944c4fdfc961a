#!/usr/bin/env python3
"""Checks the crates that Cargo.lock pins: licences, sources, checksums and duplicate versions.

    scripts/check-dependencies.py        the workspace and fuzz/

It needs no network. It replaces `cargo deny check licenses bans sources`, which takes minutes to install.
Advisories need a network: `cargo audit`, where it is installed.
"""

import json
import pathlib
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"
# A program may contain crates of these licences whatever its own licence.
LICENCES = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0",
    "CC0-1.0", "CDLA-Permissive-2.0", "IJG", "ISC", "MIT", "MIT-0", "NCSA", "Unicode-3.0", "Unlicense",
    "Zlib",
}
# Crates that occur in several versions because their dependents have not all been updated.
DUPLICATES = set("""
    block-buffer const-oid cpufeatures crypto-common digest getrandom hashbrown hmac miniz_oxide rand
    rand_core sha2 spin syn windows-sys
""".split())


def allowed(expression):
    """Evaluates an SPDX expression; `/` is the old spelling of OR."""
    words = expression.replace("/", " OR ").replace("(", " ( ").replace(")", " ) ").split()

    def either():
        result = both()
        while words and words[0] == "OR":
            words.pop(0)
            result = both() or result
        return result

    def both():
        result = one()
        while words and words[0] == "AND":
            words.pop(0)
            result = one() and result
        return result

    def one():
        word = words.pop(0)
        if word == "(":
            result = either()
            words.pop(0)
            return result
        if words and words[0] == "WITH":
            word += f" WITH {words[1]}"
            del words[:2]
        return word in LICENCES

    return either()


def problems(manifest):
    lock = tomllib.loads((manifest.parent / "Cargo.lock").read_text())
    versions = {}
    for package in lock["package"]:
        name, source = package["name"], package.get("source")
        if source is None:
            continue
        if source != REGISTRY:
            yield f"{name}: comes from {source}, expected crates.io"
        elif len(package.get("checksum", "")) != 64:
            yield f"{name}: no checksum"
        versions.setdefault(name, []).append(package["version"])
    for name, several in versions.items():
        if len(several) > 1 and name not in DUPLICATES:
            yield f"{name}: {len(several)} versions ({', '.join(several)}); unify, or list in DUPLICATES"
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--manifest-path", str(manifest)]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    for package in metadata["packages"]:
        licence = package["license"]
        if not licence:
            yield f"{package['name']}: no licence"
        elif not allowed(licence):
            yield f"{package['name']}: licence {licence}"
    print(f"{manifest.relative_to(ROOT)}: {len(metadata['packages'])} crates checked")


found = [problem for folder in ("", "fuzz") for problem in problems(ROOT / folder / "Cargo.toml")]
print("\n".join(found))
sys.exit(bool(found))
