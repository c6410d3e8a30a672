#!/usr/bin/env bash
# Finds prometheus and promtool for the tests of rules and dashboards, and prints the folder that holds both.
#
# Where they are not on the path they are installed by apt, which needs Debian or Ubuntu, and root. The service that
# the package brings is not started.
set -euo pipefail

folder() {
  local found
  found=$(command -v promtool) && [[ -x $(dirname "$found")/prometheus ]] && dirname "$found"
}

folder && exit 0

command -v apt-get >/dev/null || { echo "prometheus and promtool are not on the path, and there is no apt-get" >&2; exit 1; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT

install() {
  # 101 is how policy-rc.d forbids a package to start what it brings.
  local forbid=/usr/sbin/policy-rc.d
  if [[ ! -e $forbid ]]; then
    printf '#!/bin/sh\nexit 101\n' >"$forbid"
    chmod +x "$forbid"
    trap 'rm -f "$log" /usr/sbin/policy-rc.d' EXIT
  fi
  apt-get update
  apt-get install -y --no-install-recommends prometheus
}

echo "installing Debian's package of Prometheus" >&2
install >"$log" 2>&1 || { tail -n 20 "$log" >&2; exit 1; }
folder || { echo "the package has brought no promtool" >&2; exit 1; }
