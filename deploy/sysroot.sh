#!/usr/bin/env bash
# Debian's arm64 libraries and headers in a folder of their own, for the cross build (cmake --preset release-aarch64).
#
#   deploy/sysroot.sh [--renew] arm64      prints the folder; makes it where it is missing or the package list has changed
#
# It takes the -dev packages of apt-packages.txt and what they depend on, as arm64, from the mirror that apt has configured on
# this machine, checks them as apt does, and only unpacks them: neither root nor dpkg --add-architecture is needed, and
# nothing on the machine changes. It lies in $TASKD_CACHE (default: ~/.cache/taskd), some 700 MB. --renew: fetch it again, for
# Debian's security updates.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

fail() {
  echo "sysroot.sh: $1" >&2
  exit 1
}
usage() {
  echo "sysroot.sh: $1; usage: sysroot.sh [--renew] arm64" >&2
  exit 2
}
renew=false
architecture=
for argument in "$@"; do
  case $argument in
    --renew) renew=true ;;
    arm64) architecture=$argument ;;
    *) usage "unknown argument '$argument'" ;;
  esac
done
[ -n "$architecture" ] || usage "which architecture?"
for tool in apt-get dpkg-deb flock; do
  command -v "$tool" >/dev/null || fail "$tool is missing (a Debian is needed, or -DTASKD_SYSROOT=FOLDER with what it would fetch)"
done
# shellcheck source=/dev/null
codename=$(. /etc/os-release && echo "${VERSION_CODENAME-}")
[ -n "$codename" ] || fail "/etc/os-release names no release of Debian"

# The compiler's own runtime for clang is the host's; the plugins' place is checked by gRPC's CMake files.
mapfile -t packages < <(sed -e 's/#.*//' "$here/apt-packages.txt" | awk '/-dev$/ && !/clang/ { print $1 }' | sort)
packages+=(libc6-dev protobuf-compiler-grpc)

cache=${TASKD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/taskd}
sysroot=$cache/sysroot-$codename-$architecture
mkdir -p "$cache"
exec 9>"$sysroot.lock"
flock 9
if ! $renew && [ "$(cat "$sysroot/.wanted" 2>/dev/null)" = "${packages[*]}" ]; then
  echo "$sysroot"
  exit 0
fi

rm -rf "$sysroot".??????  # of one that was killed
work=$(mktemp -d "$sysroot.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/apt/{lists,archives}/partial "$work/root"
: >"$work/apt/status"  # as if nothing were installed: every dependency is fetched
apt() {
  apt-get -qq -o APT::Architecture="$architecture" -o APT::Architectures="$architecture" -o APT::Sandbox::User="$(id -un)" \
    -o Dir::State="$work/apt" -o Dir::State::lists="$work/apt/lists" -o Dir::State::status="$work/apt/status" \
    -o Dir::Cache="$work/apt" -o Dir::Cache::archives="$work/apt/archives" -o Dir::Log="$work/apt" \
    -o Acquire::Languages=none -o Acquire::AllowInsecureRepositories=false -o Acquire::AllowWeakRepositories=false \
    -o APT::Get::AllowUnauthenticated=false -o Debug::NoLocking=true "$@" >>"$work/log" 2>&1
}
echo "Fetching Debian's $architecture libraries ($codename) into $sysroot" >&2
if ! { apt update && apt install --download-only -y --no-install-recommends "${packages[@]}"; }; then
  tail -n 5 "$work/log" >&2
  fail "apt-get failed (its last words are above)"
fi
for package in "$work"/apt/archives/*.deb; do
  dpkg-deb -x "$package" "$work/root"
  # shellcheck disable=SC2016
  dpkg-deb -W --showformat '${Package} ${Version}\n' "$package" >>"$work/root/.packages"
done
# Where a release has merged /lib into /usr, a package brings this link; which is not certain to be among these.
for folder in lib bin; do
  [ -e "$work/root/$folder" ] || ln -s "usr/$folder" "$work/root/$folder"
done
# A link to /lib/x means the sysroot's.
while IFS= read -r -d '' link; do
  up=$(dirname "${link#"$work/root/"}" | sed -e 's|[^/][^/]*|..|g')
  ln -sfn "$up$(readlink "$link")" "$link"
done < <(find "$work/root" -type l -lname '/*' -print0)
printf '%s' "${packages[*]}" >"$work/root/.wanted"
chmod 755 "$work/root"

if [ -e "$sysroot" ]; then mv "$sysroot" "$work/old"; fi
mv "$work/root" "$sysroot"
echo "$sysroot"
