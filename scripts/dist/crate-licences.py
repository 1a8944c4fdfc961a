#!/usr/bin/env python3
"""Prints the crates that the program contains, with their licences and the texts of these, for distribution.

    scripts/dist/crate-licences.py TRIPLE

It needs no network: the sources of crates are in Cargo's registry folder after a build.
"""

import json
import pathlib
import subprocess
import sys

NAMES = ("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE")


def main(triple):
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--filter-platform", triple]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    program = next(id for id, package in packages.items() if package["name"] == "stratus")
    linked, pending = set(), [program]
    while pending:
        id = pending.pop()
        if id not in linked:
            linked.add(id)
            for dependency in nodes[id]["deps"]:
                # Neither build scripts' nor tests' dependencies.
                if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                    pending.append(dependency["pkg"])

    # Most crates share the text of a licence: each text is printed once.
    crates_of_text = {}
    for package in sorted((packages[id] for id in linked if packages[id]["source"]), key=lambda p: p["name"]):
        name = f"{package['name']} {package['version']}"
        print(f"{name}: {package['license'] or 'see its licence file'}")
        folder = pathlib.Path(package["manifest_path"]).parent
        for path in sorted(folder.iterdir()):
            if path.is_file() and path.name.upper().startswith(NAMES):
                text = path.read_text(encoding="utf-8", errors="replace").strip()
                crates_of_text.setdefault(text, []).append(name)
    for text, crates in crates_of_text.items():
        print(f"\n{'=' * 100}\n{', '.join(crates)}\n{'=' * 100}\n\n{text}")


main(sys.argv[1])
