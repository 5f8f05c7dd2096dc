#!/usr/bin/env bash
# Builds what is installed in training images, of which Debian 12 or 13 on x86_64 can make both architectures:
#
#   dist/taskd-VERSION-py3-none-manylinux2014_ARCH.whl    for pip install --no-index
#   dist/taskd-VERSION-linux-ARCH.tar.gz                  the same as bin/, lib/ and python/, for those without pip
#
#   deploy/wheels.sh [--arch x86_64|aarch64]              both, unless one is named
#
# The same commit and the same Debian packages are to give the same bytes. aarch64 is cross-built with the libraries that
# deploy/sysroot.sh fetches. Logs: build/wheels-ARCH.log.
set -euo pipefail
cd "$(dirname "$0")/.."

wanted='x86_64 aarch64'
usage() {
  echo "wheels.sh: $1; usage: wheels.sh [--arch x86_64|aarch64]" >&2
  exit 2
}
while [ $# -gt 0 ]; do
  case $1 in
    --arch) [ $# -ge 2 ] || usage "--arch wants a value"; wanted=$2; shift 2 ;;
    --arch=*) wanted=${1#--arch=}; shift ;;
    *) usage "unknown argument '$1'" ;;
  esac
done
case $wanted in
  x86_64 | aarch64 | 'x86_64 aarch64') ;;
  *) usage "--arch '$wanted' is not x86_64 or aarch64" ;;
esac

host=$(uname -m)
tools='cmake ninja g++ strip readelf protoc grpc_cpp_plugin dpkg-query python3'
for arch in $wanted; do
  [ "$arch" = "$host" ] && continue
  if [ "$host" != x86_64 ]; then
    echo "wheels.sh: $arch is not built on $host; there is --arch $host" >&2
    exit 1
  fi
  tools+=' aarch64-linux-gnu-g++ aarch64-linux-gnu-strip qemu-aarch64-static apt-get dpkg-deb'
done
missing=
for tool in $tools; do
  command -v "$tool" >/dev/null || missing+=" $tool"
done
if [ -n "$missing" ]; then
  echo "wheels.sh: missing:$missing (./deploy/install.sh --no-peers installs them)" >&2
  exit 1
fi

version=$(sed -n 's/^project(taskd VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
mkdir -p build dist
for arch in $wanted; do
  preset=release
  sysroot=
  run=
  if [ "$arch" != "$host" ]; then
    preset=release-$arch
    sysroot=$(deploy/sysroot.sh arm64)
    run="qemu-$arch-static"
  fi
  log=build/wheels-$arch.log
  echo "Building $arch (log: $log)"
  # A library that was updated is older than what was linked with the one before, so no build tool notices it.
  linked=build/$preset/linked-versions
  versions=$(python3 -B worker_sdk/python/licenses.py --sysroot="$sysroot")
  # shellcheck disable=SC2016  # for the inner shell
  if ! deploy/logged.sh "$log" bash -c '
    cmake --preset "$0" &&
      { [ "$(cat "$1" 2>/dev/null)" = "$2" ] || cmake --build --preset "$0" --target clean; } && echo "$2" >"$1" &&
      cmake --build --preset "$0" -j "$(nproc)" --target wheel' "$preset" "$linked" "$versions"; then
    echo "wheels.sh: $arch was not built (the log's last words are above)" >&2
    exit 1
  fi
  files=("taskd-$version-py3-none-manylinux2014_$arch.whl" "taskd-$version-linux-$arch.tar.gz")
  for file in "${files[@]}"; do
    cp "build/$preset/dist/$file" "dist/$file.new"
    mv "dist/$file.new" "dist/$file"
  done
  said=$($run "build/$preset/bin/taskd" --version)
  if [[ $said != *"$version"* ]]; then
    echo "wheels.sh: taskd --version of $arch says '$said', not $version" >&2
    exit 1
  fi
  (cd dist && for file in "${files[@]}"; do printf '%s  dist/%s  %s bytes\n' "$(sha256sum "$file" | cut -d ' ' -f 1)" "$file" "$(stat -c %s "$file")"; done)
done
