#!/usr/bin/env python3
"""Fails if a relative link in a tracked Markdown file does not resolve, and names each as file:line.

    scripts/check-links.py

A link resolves if its file or folder exists and is tracked (or not ignored), and its #anchor is a heading of
that page, by GitHub's rules. Links to other sites are not opened. Code is skipped.
"""

import functools
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(\s*<?([^()\s<>]*(?:\([^()\s]*\)[^()\s<>]*)*)>?(?:\s+\"[^\"]*\")?\s*\)")
DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?([^\s>]+)", re.M)
FENCE = re.compile(r"^\s*(```+|~~~+)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")
ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.S)


def prose(path):
    """The text of a page, with fenced blocks blanked so that lines keep their numbers."""
    fence, lines = None, []
    for line in path.read_text(encoding="utf-8").splitlines():
        found = FENCE.match(line)
        if fence:
            if found and found[1].startswith(fence):
                fence = None
            line = ""
        elif found:
            fence, line = found[1], ""
        lines.append(line)
    return "\n".join(lines)


def slug(heading):
    """The anchor that GitHub gives a heading."""
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")


@functools.cache
def anchors(path):
    found, counts = set(), {}
    for line in prose(path).splitlines():
        found.update(ANCHOR.findall(line))
        heading = HEADING.match(line)
        if heading:
            name = slug(heading[1])
            count = counts.get(name, 0)
            counts[name] = count + 1
            found.add(f"{name}-{count}" if count else name)
    return found


def problem(page, target, files):
    """The reason why a link does not resolve; `None` if it does."""
    target, _, anchor = target.partition("#")
    path = (page.parent / target).resolve() if target else page
    if target.startswith("/") or not path.is_relative_to(ROOT):
        return "is outside the repository"
    if path not in files and not any(path in file.parents for file in files):
        return "does not exist" if not path.exists() else "is not tracked"
    if anchor and (path.suffix != ".md" or anchor not in anchors(path)):
        return f"has no heading #{anchor}"
    return None


def main():
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    files = {ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()}
    pages = sorted(file for file in files if file.suffix == ".md")
    count = failures = 0
    for page in pages:
        # Code keeps its length and its line breaks, so that links keep their places.
        text = CODE.sub(lambda code: re.sub(r"[^\n]", "x", code[0]), prose(page))
        for pattern in (LINK, DEFINITION):
            for link in pattern.finditer(text):
                target = link[1]
                if re.match(r"[a-z][a-z0-9+.-]*:", target):
                    continue
                count += 1
                reason = problem(page, target, files)
                if reason:
                    failures += 1
                    line = text.count("\n", 0, link.start()) + 1
                    print(f"{page.relative_to(ROOT)}:{line}: {target} {reason}")
    print(f"{failures} of {count} links in {len(pages)} pages do not resolve")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
