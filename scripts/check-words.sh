#!/usr/bin/env bash
# Fails if a tracked source file or page uses a retired word, and names each as file:line.
#
#   scripts/check-words.sh [PATH…]      only files under these paths; the whole tree if none is named
#
# Retired are constants like MOST_BYTES (MAX_BYTES), tests named `what_…`, doc comments that begin with a
# noun clause ("What …", "Who …", "Whether …"), words that have a plain equivalent, and documentation examples
# in crates whose Cargo.toml turns documentation tests off.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ ${1:-} != -* ]] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
git ls-files -z --cached --others --exclude-standard -- "$@" | PYTHONUTF8=1 python3 -c '
import os, re, sys

KINDS = (".rs", ".cu", ".h", ".c", ".md", ".sh", ".py")
SKIPPED = re.compile(r"crates/[^/]+/tests/(.*/)?fixtures/|\.min\.|^scripts/check-words\.sh$|^CHANGELOG\.md$")
# Former names of types, which gave way to terms of the field.
PRIVATE = "|".join("""
    Asked Begun Behind Board Brief Brought Chosen Declared Ended Foreseen Framer Goods Judged Kept Learnt Left
    LeftOut Listed Noted Outlook Parcel Place Places Pretender Ran Seen Shown Sketch Stands Stretch Tally Told
    Turn Wanted Way Ways What Which Whose Wish
""".split())
CODE = [
    (re.compile(r"\b(MOST|LEAST|LONGEST|SHORTEST|FEWEST|SELDOMEST|DEEPEST|NARROWEST)(_|\b)"),
     "name it MAX_… or MIN_… with its unit"),
    (re.compile(r"\bfn what_"), "name a test by the behaviour that breaks"),
    (re.compile(r"\b(struct|enum|trait|type) (" + PRIVATE + r")\b"), "name a type by a noun of the field"),
    (re.compile(r"^\s*//[/!] (What|Who|Whose|Whom|Whether|Where)\b"), "begin with the thing itself"),
]
TEXT = [
    (re.compile(r"\b(goes|go|going|gone|went) on\b"), "resume, continue"),
    (re.compile(r"\b(is|are|was|were) (told|said)\b"), "is printed, is reported"),
    (re.compile(r"\bso many\b"), "name the number"),
    (re.compile(r"\bfor want of\b"), "without, lacking"),
    (re.compile(r"\bbut for\b"), "except"),
    (re.compile(r"\bpassed over\b"), "skipped, ignored"),
    (re.compile(r"\banew\b"), "again"),
]
FENCE = re.compile(r"^\s*//[/!] ```(.*)$")
TESTED = ("", "rust", "no_run", "should_panic", "compile_fail", "ignore")


def without_doctests(crate, known={}):
    if crate not in known:
        with open(f"crates/{crate}/Cargo.toml", encoding="utf-8") as manifest:
            known[crate] = "doctest = false" in manifest.read()
    return known[crate]


def findings(path):
    rules = TEXT + (CODE if path.endswith((".rs", ".cu", ".h", ".c")) else [])
    crate = re.match(r"crates/([^/]+)/src/.*\.rs$", path)
    fenced = False
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            for pattern, advice in rules:
                found = pattern.search(line)
                if found:
                    yield number, f"`{found[0].strip()}`: {advice}"
            fence = FENCE.match(line) if crate else None
            if fence:
                fenced = not fenced
                if fenced and fence[1].strip() in TESTED and without_doctests(crate[1]):
                    yield number, "a documentation example in a crate with `doctest = false` is not tested"


count = files = 0
for path in filter(None, sys.stdin.read().split("\0")):
    if not path.endswith(KINDS) or SKIPPED.search(path) or not os.path.isfile(path):
        continue
    files += 1
    for number, problem in findings(path):
        count += 1
        print(f"{path}:{number}: {problem}")
print(f"{count} retired words in {files} files")
sys.exit(count > 0)
'
