#!/usr/bin/env bash
# Installs the Debian packages of apt-packages.txt that are missing; does nothing when all are there.
#
#   deploy/install.sh               all of them
#   deploy/install.sh --no-peers    without those from "# Peers" on: enough to build, to check and to make wheels
#   deploy/install.sh --quickstart  without those from "# Tests" on: enough to build `taskd`, and for the quick start
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
case ${1-} in
  '') last='$' ;;
  --no-peers) last='/^# Peers/' ;;
  --quickstart) last='/^# Tests/' ;;
  *) echo "install.sh: unknown argument '$1'; --no-peers and --quickstart are known" >&2; exit 2 ;;
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

log=$(mktemp)
policy=
trap 'rm -f "$log"; [ -z "$policy" ] || "${as_root[@]}" rm -f "$policy"' EXIT
# Packages of servers (sshd, munge) must not start them here.
if [ ! -e /usr/sbin/policy-rc.d ]; then
  policy=/usr/sbin/policy-rc.d
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
  "${as_root[@]}" chmod 755 "$policy"
fi
apt=(env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get -q -o Dpkg::Use-Pty=0)
if [ "${#as_root[@]}" -gt 0 ]; then  # what runs under logged.sh cannot ask for a password
  sudo -v || fail "sudo does not let this user install packages"
  as_root=(sudo -n)
fi
echo "Looking for ${#missing[@]} missing Debian packages"
"$here/logged.sh" "$log" "${as_root[@]}" "${apt[@]}" update || fail "apt-get update failed (its last words are above)"
# "Need to get 310 MB of archives." and "After this operation, 1,400 MB of additional disk space will be used."
sizes=$({ "${as_root[@]}" "${apt[@]}" install --assume-no --no-install-recommends "${missing[@]}" 2>/dev/null || true; } |
  sed -nE 's/^Need to get (.*) of archives\.$/\1 to fetch/p; s/^After this operation, (.*) of additional .*$/\1 on disk/p' |
  paste -sd ';' | sed 's/;/; /')
echo "Installing ${#missing[@]} packages and what they need${sizes:+ ($sizes)}: ${missing[*]}"
"$here/logged.sh" "$log" "${as_root[@]}" "${apt[@]}" install -y --no-install-recommends "${missing[@]}" ||
  fail "apt-get failed (its last words are above)"
