#!/usr/bin/env bash
# Fails if a line of a tracked text file is wider than 110 columns, and names each as file:line.
#
#   scripts/check-width.sh [PATH…]      only files under these paths; the whole tree if none is named
#
# A column is a character, not a byte. Not checked: fixtures and snapshots of tests, minified libraries,
# fenced blocks of raw output in docs/benchmarks/, rows of Markdown tables, and lines with a long address.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ ${1:-} != -* ]] || { sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2; }
git ls-files -z -- "$@" | PYTHONUTF8=1 python3 -c '
import os, re, sys

WIDTH = 110
KINDS = (".rs", ".cu", ".h", ".c", ".md", ".toml", ".sh", ".py", ".yml", ".yaml", ".js", ".css")
NAMES = ("Makefile", ".ci/run")
FIXTURES = re.compile(r"crates/[^/]+/tests/(.*/)?fixtures/")
MINIFIED = re.compile(r".*\.min\.(js|css)$")
# An address this long cannot share a line with much else.
ADDRESS = re.compile(r"\w+://\S{50,}")
FENCE = re.compile(r"\s*(```|~~~)")


def too_wide(path):
    raw_output = path.startswith("docs/benchmarks/")
    markdown = path.endswith(".md")
    fenced = False
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            line = line.rstrip("\n").expandtabs(8)
            if markdown and FENCE.match(line):
                fenced = not fenced
            if len(line) <= WIDTH or len(ADDRESS.sub("", line)) <= WIDTH and ADDRESS.search(line):
                continue
            if markdown and (line.lstrip().startswith("|") or fenced and raw_output):
                continue
            yield number, len(line)


count = files = 0
for path in filter(None, sys.stdin.read().split("\0")):
    checked = path.endswith(KINDS) or path in NAMES
    if not checked or FIXTURES.match(path) or MINIFIED.match(path) or not os.path.isfile(path):
        continue
    files += 1
    for number, width in too_wide(path):
        count += 1
        print(f"{path}:{number}: {width} columns")
print(f"{count} lines of {files} files are wider than {WIDTH} columns")
sys.exit(count > 0)
'
