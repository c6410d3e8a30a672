#!/usr/bin/env bash
# Finds Chromium for the tests of web pages, and prints the program's path.
#
# Where it is not on the path it is installed by apt, which needs Debian, and root.
set -euo pipefail

program() {
  command -v chromium || command -v chromium-browser || command -v google-chrome
}

program && exit 0

command -v apt-get >/dev/null || { echo "no Chromium is on the path, and there is no apt-get" >&2; exit 1; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT

install() {
  apt-get update
  apt-get install -y --no-install-recommends chromium
}

echo "installing Debian's package of Chromium" >&2
install >"$log" 2>&1 || { tail -n 20 "$log" >&2; exit 1; }
program || { echo "the package has brought no chromium" >&2; exit 1; }
