#!/usr/bin/env bash
# Checks that the scripts of pages can be parsed: a page whose script cannot does nothing. It needs Node.js.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v node >/dev/null; then
    echo "scripts of pages are not checked: Node.js (node) is not installed" >&2
    exit 0
fi
count=0
while IFS= read -r -d '' file; do
    node --check "$file"
    count=$((count + 1))
done < <(git ls-files -z 'crates/*/src/*assets/*.js')
[ "$count" -gt 10 ] || { echo "error: found only $count scripts" >&2; exit 1; }
echo "$count scripts can be parsed"
