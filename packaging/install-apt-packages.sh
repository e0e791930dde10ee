#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# install-apt-packages.sh LIST: installs the packages of LIST that are missing, and only those.
set -euo pipefail

list=${1:?usage: install-apt-packages.sh LIST}
command -v dpkg-query >/dev/null || {
  echo "setup: this is no Debian or Ubuntu; install what $list names by hand, then" \
    "mkdir -p build/.stamps && touch build/.stamps/apt" >&2
  exit 1
}

missing=()
while read -r package; do
  state=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $state == installed ]] || missing+=("$package")
done < <(sed -E 's/#.*//; s/[[:space:]]+//g; /^$/d' "$list")

[[ ${#missing[@]} -gt 0 ]] || exit 0

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo >/dev/null || {
    echo "setup: needs root to install: ${missing[*]}" >&2
    exit 1
  }
  as_root=(sudo)
fi
echo "setup: apt-get install ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
