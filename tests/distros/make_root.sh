#!/usr/bin/env bash
# Makes a root filesystem of one Debian release with Python, pip, and PyTorch where the release has it:
#
#   make_root.sh RELEASE ARCHITECTURE FOLDER MIRROR
#
# Needs root, debootstrap, and for a foreign architecture a registered QEMU (../distros.sh sees to that). What it mounts
# and starts is in namespaces of its own, so nothing of it is left however this ends, but an unfinished FOLDER.
set -euo pipefail

if [ "${1-}" != --inside ]; then
  exec unshare --mount --pid --fork --kill-child --mount-proc "$0" --inside "$@"
fi
shift
release=$1 architecture=$2 root=$3 mirror=$4

# In every root, and in those whose release has them.
needed=(python3 python3-pip)
wanted=(python3-torch python3-transformers python3-accelerate)
# 1.7 is older than every PyTorch whose store TaskD serves.
[ "$release" != bullseye ] || wanted=()

# debootstrap knows the releases by name that were there when it was made; later ones are made as unstable is.
script=/usr/share/debootstrap/scripts/$release
[ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid

say() { printf '%(%T)T %s: %s\n' -1 "$release $architecture" "$1"; }

rm -rf "$root"
mkdir -p "$root"
say "debootstrap from $mirror"
debootstrap --variant=minbase --arch="$architecture" "$release" "$root" "$mirror" "$script"

mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"

# Testing's Release file may be past its date on a mirror that stands still.
cat >"$root/etc/apt/apt.conf.d/taskd" <<'END'
Acquire::Check-Valid-Until "false";
APT::Install-Recommends "false";
END
printf 'path-exclude=%s\n' '/usr/share/doc/*' '/usr/share/man/*' '/usr/share/locale/*' >"$root/etc/dpkg/dpkg.cfg.d/taskd"

printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
printf '%s\n' "taskd-$release" >"$root/etc/hostname"

in_root() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }
in_root apt-get -qq update
packages=("${needed[@]}")
for package in "${wanted[@]}"; do
  if [ -n "$(in_root apt-cache madison "$package")" ]; then packages+=("$package"); fi
done
say "installs ${packages[*]}"
in_root apt-get -qq -o Dpkg::Use-Pty=0 install -y "${packages[@]}"
in_root apt-get clean
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin
say "is made, $(du -sh --one-file-system "$root" | cut -f1)"
