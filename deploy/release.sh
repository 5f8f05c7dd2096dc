#!/usr/bin/env bash
# Makes a release of the commit that is checked out, in dist/taskd-VERSION, and tags it:
#
#   deploy/release.sh [--dry-run] [--arch x86_64|aarch64] VERSION
#
# It first checks that everything names VERSION and that CHANGELOG.md has a section for it. It builds wheels, archives and Debian packages
# (for both architectures, unless one is named: deploy/wheels.sh says what that takes), the source archive, a bill of materials (SPDX) of each
# program, the notes, and SHA256SUMS. The tag vVERSION comes last, and nothing is pushed. --dry-run makes no tag.
# The same commit and the same Debian packages give the same SHA256SUMS.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022
export LC_ALL=C TZ=UTC

usage() {
  echo "release.sh: $1; usage: release.sh [--dry-run] [--arch x86_64|aarch64] VERSION" >&2
  exit 2
}
dry_run=false
version=
architectures='x86_64 aarch64'
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    --dry-run) dry_run=true ;;
    --arch) [ $# -ge 2 ] || usage "--arch wants a value"; architectures=$2; shift ;;
    -*) usage "unknown argument '$1'" ;;
    *) [ -z "$version" ] || usage "there is a second version '$1'"; version=$1 ;;
  esac
  shift
done
case $architectures in
  x86_64 | aarch64 | 'x86_64 aarch64') ;;
  *) usage "--arch '$architectures' is not x86_64 or aarch64" ;;
esac
[[ $version =~ ^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)$ ]] || usage "version '$version' is not MAJOR.MINOR.PATCH"

# --- Does everything agree?

problems=()
names() {  # FILE SED-EXPRESSION: what it prints of the file is to be the version
  local said
  said=$(sed -n "$2" "$1" | head -n 1)
  [ "$said" = "$version" ] || problems+=("$1 has version '$said', not $version")
}
names CMakeLists.txt 's/^project(taskd VERSION \([0-9.]*\).*/\1/p'
names worker_sdk/python/taskd/__init__.py 's/^__version__ = "\(.*\)"$/\1/p'
names deploy/helm/taskd/Chart.yaml 's/^version: //p'
names deploy/helm/taskd/Chart.yaml 's/^appVersion: //p'
section() {  # NAME: the text below the heading of CHANGELOG.md
  awk -v name="## [$1]" 'index($0, "## [") == 1 { inside = index($0, name) == 1; next } inside' CHANGELOG.md | sed -e '/./,$!d'
}
grep -qE "^## \[${version//./\\.}\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md ||
  problems+=("CHANGELOG.md has no heading '## [$version] - YEAR-MONTH-DAY'")
[ -n "$(section "$version")" ] || problems+=("CHANGELOG.md says nothing of $version")
[ -z "$(section Unreleased)" ] || problems+=("CHANGELOG.md has unreleased changes: they belong to $version")
docs=$(python3 -B tests/check_docs.py 2>&1) || problems+=("tests/check_docs.py: $docs")
[ -z "$(git status --porcelain)" ] || problems+=("the working tree has changes that no commit has (git status)")
if git rev-parse -q --verify "refs/tags/v$version" >/dev/null; then problems+=("the tag v$version exists"); fi
if [ "${#problems[@]}" -gt 0 ]; then
  printf 'release.sh: %s\n' "${problems[@]}" >&2
  exit 1
fi

# --- Build

commit=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
out=dist/taskd-$version
rm -rf "$out"
mkdir -p "$out"
host=$(uname -m)
for arch in $architectures; do
  deploy/wheels.sh --arch "$arch"
  preset=release
  sysroot=
  if [ "$arch" != "$host" ]; then
    preset=release-$arch
    sysroot=$(deploy/sysroot.sh arm64)
  fi
  cp "dist/taskd-$version-py3-none-manylinux2014_$arch.whl" "dist/taskd-$version-linux-$arch.tar.gz" "$out"
  rm -rf "build/$preset/package"
  cpack --config "build/$preset/CPackConfig.cmake" -B "build/$preset/package" >"build/package-$arch.log" 2>&1 ||
    { tail -n 20 "build/package-$arch.log" >&2; exit 1; }
  cp "build/$preset/package/"*.deb "$out"
  python3 -B worker_sdk/python/licenses.py --sysroot="$sysroot" --bill "$version-$arch" >"$out/taskd-$version-linux-$arch.spdx.json"
done
git archive --format=tar --prefix="taskd-$version/" "$commit" | gzip -9n >"$out/taskd-$version.tar.gz"
section "$version" >"$out/NOTES.md"
(cd "$out" && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
if [ "$(git rev-parse HEAD)" != "$commit" ] || [ -n "$(git status --porcelain)" ]; then
  echo "release.sh: the working tree has changed during the build; no tag is made" >&2
  exit 1
fi

# --- Tag

if $dry_run; then
  echo "$out is made; no tag (--dry-run)"
else
  git tag --annotate "v$version" --cleanup=whitespace --message="TaskD $version" --message="$(cat "$out/NOTES.md")" "$commit"
  echo "$out is made and v$version is tagged. Nothing is pushed: git push origin v$version"
fi
