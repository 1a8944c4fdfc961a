#!/usr/bin/env bash
# Opens the pages of `stratus report` in headless Chromium, 400 and 1,280 pixels wide, light and dark: no
# console error, nothing wider than the page, charts drawn. Screenshots go to target/check-page.
#
# Playwright, from pinned wheels, drives it. The browser is that of STRATUS_CHROMIUM; else the one of this
# version of Playwright, fetched into .deps/check-page; else an installed one, which is reported.
#
#   scripts/check-page.sh                fails if there is no browser
#   scripts/check-page.sh --best-effort  only reports it; wrong pages still fail
set -euo pipefail
# shellcheck source=scripts/deps-common.sh
source "$(dirname "$0")/deps-common.sh"

packages=$root/.deps/check-page
requirements=$root/scripts/check-page.txt

consequence=("report pages are NOT opened in a browser")

installed_packages "$requirements" "$packages" "playwright"

export PLAYWRIGHT_BROWSERS_PATH=$packages/browsers
export PYTHONPATH=$packages
browser=${STRATUS_CHROMIUM-}
if [ -z "$browser" ]; then
    # At most half a minute for the first bytes, so that a network without access does not delay everything.
    if [ ! -e "$packages/browsers/installed" ] \
        && PLAYWRIGHT_DOWNLOAD_CONNECTION_TIMEOUT=10000 timeout 300 python3 -m playwright install \
            chromium-headless-shell >/dev/null 2>&1; then
        touch "$packages/browsers/installed"
    fi
    if [ ! -e "$packages/browsers/installed" ]; then
        for name in chromium chromium-browser google-chrome google-chrome-stable; do
            browser=$(command -v "$name") && break
        done
        [ -n "$browser" ] || give_up "Chromium could not be fetched, and none is installed"
        say "the pinned Chromium could not be fetched; $("$browser" --version 2>/dev/null) is used"
    fi
fi

cd "$root"
target=${CARGO_TARGET_DIR-target}
cargo=${CARGO-cargo}
# The whole workspace, as `make test` builds it.
"$cargo" test --quiet --locked --workspace --no-run
rm -rf "$target/check-page"
python3 scripts/check-page.py "$target/debug/stratus" "$target/check-page" "$browser"
