#!/usr/bin/env bash
# Ways to train with the PyTorch of a root filesystem of ../distros.sh, without TaskD and with what is in build/release:
#
#   torch_ways.sh ROOT [--slow] [WAY...]    as tests/lib/torch_ways.py
#   torch_ways.sh ROOT --cost [OPTION...]   as tests/bench/training_cost.py
#   torch_ways.sh ROOT --faults [OPTION...] as tests/diagnosis/real_faults.py; only the ranks run in the root filesystem
#   torch_ways.sh ROOT --traces [OPTION...] as tests/diagnosis/real_traces.py, likewise
#   torch_ways.sh ROOT --ledger [OPTION...] as tests/goodput/inject.py, likewise
#   torch_ways.sh ROOT --hangs OUT          as tests/diagnosis/recorded/record_hangs.py, likewise
#
# Needs root. Everything it mounts, starts, writes and listens on is in namespaces of its own and in memory, so nothing of
# it is left however this ends.
set -euo pipefail

if [ "${1-}" != --inside ]; then
  exec unshare --mount --pid --fork --kill-child --mount-proc --net --ipc --uts "$0" --inside "$@"
fi
shift
root=$1
shift
tree=$(cd "$(dirname "$0")/../.." && pwd)

hostname distros
ip link set lo up
. "$tree/tests/distros/layer.sh"
mkdir "$root/ways"
cp -rL "$tree/build/release/python" "$root/ways/python"
cp "$tree"/tests/lib/{torch_ways,torch_ways_rank,check_marks,ports,deadlines}.py "$tree/tests/bench/training_cost.py" "$root/ways"
outside=
case "${1-}" in
  --faults) outside=diagnosis/real_faults.py ;;
  --traces) outside=diagnosis/real_traces.py ;;
  --ledger) outside=goodput/inject.py ;;
  --hangs) outside=diagnosis/recorded/record_hangs.py ;;
esac
if [ -n "$outside" ]; then
  shift
  mount --bind /tmp "$root/tmp"
  mkdir -p "$root$tree"
  mount --bind "$tree" "$root$tree"
  exec /usr/bin/python3 "$tree/tests/$outside" --python "chroot $root python3" "$@"
fi
program=torch_ways.py
if [ "${1-}" = --cost ]; then
  program=training_cost.py
  shift
fi
exec chroot "$root" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
  PYTHONPATH=/ways/python PYTHONUNBUFFERED=1 python3 "/ways/$program" /ways/python/taskd/bin/taskd "$@"
