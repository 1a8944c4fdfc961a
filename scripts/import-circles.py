#!/usr/bin/env python3
"""Prints the circles of source files that import each other, crate by crate, and the lines of source.

    scripts/import-circles.py [FOLDER] [--edges]

FOLDER contains `crates`; the default is this repository. An older commit is measured by unpacking it:

    mkdir OLD && git archive COMMIT crates | tar x -C OLD && scripts/import-circles.py OLD

A circle is a strongly connected component of the graph of imports: each of its files reaches all others. An
import is a path that begins with `crate`, `self`, `super` or a child module, in `use` or in an expression. It
leads to the file that defines the name: re-exports are followed. Imports between a module and its own parts
(`a` and `a::b`) do not count. Methods that are called without a path, and tests, are not seen.

The lines are those of all `.rs` files in `crates/*/src` except tests: `tests.rs`, folders called `tests`, and
what follows `#[cfg(test)] mod tests {` in a file. Comments and empty lines count.
"""

import argparse
import collections
import pathlib
import re

TESTS = "#[cfg(test)]\nmod tests {"
VISIBILITY = r"(?:pub(?:\([^)]*\))?\s+)?"
USE = re.compile(rf"^\s*({VISIBILITY})use\s+([^;]+);", re.M)
PATH = re.compile(r"\b(?:crate|super|self)(?:::\w+)+")
# Re-exports of re-exports; more would be a circle of re-exports.
MAX_REEXPORTS = 6


def sources(crate):
    """The text of each module of a crate, without tests, by the module's path as a tuple."""
    texts = {}
    for file in sorted((crate / "src").rglob("*.rs")):
        path = file.relative_to(crate / "src").with_suffix("").parts
        if "tests" in path:
            continue
        if path[-1] == "mod" or path in (("lib",), ("main",)):
            path = path[:-1]
        texts[path] = file.read_text().split(TESTS)[0]
    return texts


def expand(text):
    """The paths of a `use` declaration: `a::{b, c::{d, e}}` becomes `a::b`, `a::c::d`, `a::c::e`."""
    text = text.strip()
    start = text.find("{")
    if start < 0:
        return [text.split(" as ")[0].strip()] if text else []
    prefix, depth, item, found = text[:start], 0, "", []
    for letter in text[start + 1:text.rindex("}")]:
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            found += expand(item)
            item = ""
        else:
            item += letter
    return [prefix + path for path in found + expand(item)]


def absolute(module, path, modules):
    """The path from the root of the crate as a tuple, or None if it leads out of the crate."""
    parts = path.split("::")
    if parts[0] == "crate":
        return tuple(parts[1:])
    if parts[0] in ("self", "super"):
        base = module
        while parts and parts[0] in ("self", "super"):
            base = base[:-1] if parts[0] == "super" else base
            parts = parts[1:]
        return base + tuple(parts)
    return module + tuple(parts) if module + (parts[0],) in modules else None


def imports(texts):
    """The modules that each module imports."""
    uses = {module: [(visibility, re.sub(r"\s+", " ", paths)) for visibility, paths in USE.findall(text)]
            for module, text in texts.items()}
    reexports = collections.defaultdict(dict)
    for module, declarations in uses.items():
        for visibility, paths in declarations:
            for path in expand(paths) if visibility else []:
                target = absolute(module, path, texts)
                if target:
                    reexports[module][target[-1]] = target

    def definition(path, depth=0):
        for length in range(len(path), -1, -1):
            module, rest = path[:length], path[length:]
            if module in texts:
                if rest and rest[0] in reexports[module] and depth < MAX_REEXPORTS:
                    return definition(reexports[module][rest[0]] + rest[1:], depth + 1)
                return module
        return None

    graph = {module: set() for module in texts}
    for module, text in texts.items():
        paths = [path for _, declaration in uses[module] for path in expand(declaration)]
        paths += PATH.findall(re.sub(r"//.*", "", USE.sub("", text)))
        for path in paths:
            target = absolute(module, path, texts)
            other = None if target is None else definition(target)
            if other is not None and other[:len(module)] != module and module[:len(other)] != other:
                graph[module].add(other)
    return graph


def reachable(graph, start):
    """The modules that a module imports, directly or through others."""
    found, left = set(), [start]
    while left:
        for other in graph[left.pop()] - found:
            found.add(other)
            left.append(other)
    return found


def circles(graph):
    """The strongly connected components of at least two modules, the largest first."""
    reached = {module: reachable(graph, module) for module in graph}
    found = {frozenset(other for other in reached[module] if module in reached[other])
             for module in graph if module in reached[module]}
    return sorted(found, key=lambda circle: (-len(circle), sorted(circle)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent,
                        metavar="FOLDER", help="the folder that contains `crates`")
    parser.add_argument("--edges", action="store_true", help="print the imports within each circle")
    arguments = parser.parse_args()

    def name(module):
        return "::".join(module) or "lib"

    lines, sizes = 0, []
    for crate in sorted(arguments.folder.glob("crates/*/src")):
        texts = sources(crate.parent)
        lines += sum(text.count("\n") for text in texts.values())
        graph = imports(texts)
        for circle in circles(graph):
            sizes.append(len(circle))
            print(crate.parent.name, len(circle), *(name(module) for module in sorted(circle)))
            for module in sorted(circle) if arguments.edges else []:
                print("   ", name(module), "->", ", ".join(map(name, sorted(graph[module] & circle))))
    print(f"{len(sizes)} circles, the largest of {max(sizes, default=0)} files; {lines} lines of source")


if __name__ == "__main__":
    main()
