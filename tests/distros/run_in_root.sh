#!/usr/bin/env bash
# Runs scenario.py with a wheel in a root filesystem, and leaves that as it was:
#
#   run_in_root.sh ROOT WHEEL FOLDER    FOLDER gets the file "result"
#
# Needs root. Everything it mounts, starts, writes and listens on is in namespaces of its own and in memory, so nothing of
# it is left however this ends.
set -euo pipefail

if [ "${1-}" != --inside ]; then
  exec unshare --mount --pid --fork --kill-child --mount-proc --net --ipc --uts "$0" --inside "$@"
fi
shift
root=$1 wheel=$2 folder=$3
here=$(cd "$(dirname "$0")" && pwd)

hostname distros
ip link set lo up
. "$here/layer.sh"
mkdir "$root/scenario" "$root/scenario/out"
cp "$wheel" "$here/scenario.py" "$root/scenario"
mount --bind "$folder" "$root/scenario/out"
exec chroot "$root" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
  PYTHONUNBUFFERED=1 python3 /scenario/scenario.py "/scenario/$(basename "$wheel")" /scenario/out/result
