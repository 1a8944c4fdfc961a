# shellcheck shell=bash
# Shared by the scripts that open pages in headless Chromium; they source it with their arguments.
#
# Playwright, from pinned wheels, drives it. The browser is that of STRATUS_CHROMIUM; else the one of this
# version of Playwright, fetched into .deps/check-page; else an installed one, which is reported.

# shellcheck source=scripts/deps-common.sh
source "$(dirname "${BASH_SOURCE[0]}")/deps-common.sh"

find_browser() { # sets `browser`: its path, empty for Playwright's own
    local packages=$root/.deps/check-page
    installed_packages "$root/scripts/check-page.txt" "$packages" "playwright"
    export PLAYWRIGHT_BROWSERS_PATH=$packages/browsers
    export PYTHONPATH=$packages
    browser=${STRATUS_CHROMIUM-}
    if [ -z "$browser" ]; then
        # At most half a minute for the first bytes, so that a network without access does not delay all.
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
}

check_in_browser() { # runs the Python script of the same name, with the program, a new folder and the browser
    find_browser
    cd "$root"
    local target=${CARGO_TARGET_DIR-target}
    # The whole workspace, as `make test` builds it.
    "${CARGO-cargo}" test --quiet --locked --workspace --no-run
    rm -rf "${target:?}/$script"
    python3 "scripts/$script.py" "$target/debug/stratus" "$target/$script" "$browser"
}
