#!/usr/bin/env bash
# Opens the pages of `stratus ui` in headless Chromium, 390 and 1,400 pixels wide, light and dark: no console
# error, nothing that the content security policy refuses, nothing wider than the page; live rows, filters in
# the address, the comparison. Screenshots go to target/check-ui. scripts/browser-common.sh finds the browser.
#
#   scripts/check-ui.sh                fails if there is no browser
#   scripts/check-ui.sh --best-effort  only reports it; wrong pages still fail
set -euo pipefail
# shellcheck source=scripts/browser-common.sh
source "$(dirname "$0")/browser-common.sh"

consequence=("pages of \`stratus ui\` are NOT opened in a browser")
check_in_browser
