#!/usr/bin/env bash
# Installs the Debian packages of apt-packages.txt that are missing; does nothing when all are there.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

missing=()
while read -r package; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done < <(sed -e 's/#.*//' "$here/apt-packages.txt" | awk 'NF { print $1 }')
[ "${#missing[@]}" -gt 0 ] || exit 0

fail() {
  echo "install.sh: $1. Missing Debian packages: ${missing[*]}" >&2
  exit 1
}
command -v apt-get >/dev/null || fail "there is no apt-get here"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || fail "not root and no sudo"
  as_root=(sudo)
fi

echo "Installing ${#missing[@]} Debian packages: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@" >>"$log" 2>&1; }
if ! { apt update && apt install -y --no-install-recommends "${missing[@]}"; }; then
  tail -n 5 "$log" >&2
  fail "apt-get failed (its last words are above)"
fi
