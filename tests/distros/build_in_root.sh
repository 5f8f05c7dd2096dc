#!/usr/bin/env bash
# Builds TaskD from source in a root filesystem and runs its unit tests there:
#
#   build_in_root.sh ROOT FOLDER gcc|clang
#
# ROOT stays as it is. FOLDER/tree is a copy of the sources; the packages that deploy/install.sh adds, the build and a
# compiler cache are kept in FOLDER for the next time. Needs root. What it mounts is in a namespace of its own.
set -euo pipefail

if [ "${1-}" != --inside ]; then
  exec unshare --mount --pid --fork --kill-child --mount-proc "$0" --inside "$@"
fi
shift
root=$1 folder=$2 compiler=$3

mkdir -p "$folder"/{upper,work,root,ccache}
mount -t overlay overlay -o "lowerdir=$root,upperdir=$folder/upper,workdir=$folder/work" "$folder/root"
root=$folder/root
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t tmpfs tmpfs "$root/tmp"
mkdir -p "$root/src" "$root/ccache"
mount --bind "$folder/tree" "$root/src"
mount --bind "$folder/ccache" "$root/ccache"
cp /etc/resolv.conf "$root/etc/resolv.conf"

case $compiler in
  gcc) cc=gcc cxx=g++ ;;
  clang) cc=clang cxx=clang++ ;;
esac
in_root() {
  chroot "$root" env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 CCACHE_DIR=/ccache \
    CC="$cc" CXX="$cxx" "$@"
}
in_root /src/deploy/install.sh
in_root apt-get clean
in_root "$cxx" --version | head -n 1
in_root bash -c "cd /src && cmake --preset release -B build/$compiler && cmake --build build/$compiler -j \$(nproc) -- -k 0"
echo "built without a warning"
in_root bash -c "cd /src && ctest --test-dir build/$compiler --no-tests=error -L '^unit\$' -j \$(nproc) --output-on-failure"
