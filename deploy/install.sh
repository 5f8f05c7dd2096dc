#!/usr/bin/env bash
# Installs the Debian packages of apt-packages.txt that are missing; does nothing when all are there.
#
#   deploy/install.sh             all of them
#   deploy/install.sh --no-peers  without those from "# Peers" on: enough to build, and for the quick start
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
case ${1-} in
  '') last='$' ;;
  --no-peers) last='/^# Peers/' ;;
  *) echo "install.sh: unknown argument '$1'; only --no-peers is known" >&2; exit 2 ;;
esac

missing=()
while read -r package; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  # NodeSource's nodejs brings npm along, and Debian's package npm cannot be installed beside it.
  [ "$status" = installed ] || { [ "$package" = npm ] && command -v npm >/dev/null; } || missing+=("$package")
done < <(sed -n "1,${last}p" "$here/apt-packages.txt" | sed -e 's/#.*//' | awk 'NF { print $1 }')
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
policy=
trap 'rm -f "$log"; [ -z "$policy" ] || "${as_root[@]}" rm -f "$policy"' EXIT
# Packages of servers (sshd, munge) must not start them here.
if [ ! -e /usr/sbin/policy-rc.d ]; then
  policy=/usr/sbin/policy-rc.d
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
  "${as_root[@]}" chmod 755 "$policy"
fi
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@" >>"$log" 2>&1; }
if ! { apt update && apt install -y --no-install-recommends "${missing[@]}"; }; then
  tail -n 5 "$log" >&2
  fail "apt-get failed (its last words are above)"
fi
