#!/usr/bin/env bash
# Opens the pages of `stratus report` in headless Chromium, 400 and 1,280 pixels wide, light and dark: no
# console error, nothing wider than the page, charts drawn. Screenshots go to target/check-page.
#
# scripts/browser-common.sh finds the browser.
#
#   scripts/check-page.sh                fails if there is no browser
#   scripts/check-page.sh --best-effort  only reports it; wrong pages still fail
set -euo pipefail
# shellcheck source=scripts/browser-common.sh
source "$(dirname "$0")/browser-common.sh"

consequence=("report pages are NOT opened in a browser")
check_in_browser
