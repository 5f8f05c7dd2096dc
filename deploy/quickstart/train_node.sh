#!/usr/bin/env bash
# What runs on each node: an ordinary training script with TaskD's lines added.
#
# Both nodes are this machine here, so quickstart.py gives each its own TASKD_SOCKET, TASKD_PROFILING_DIR and ports. On a
# real cluster each node is a container of its own, the defaults do, and none of those variables is needed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=/usr/bin/python3

# 1. The recorder is in every process from its start.
export LD_PRELOAD=$TASKD_PACKAGE/taskd/python/cython_api/libs/libtaskd.so

# 2. torchrun starts the node's proxy: one line in front of its imports. A copy, so that the system's torch stays as it is.
torch=$($python -c 'import importlib.util; print(importlib.util.find_spec("torch").submodule_search_locations[0])')
cp "$torch/distributed/run.py" "$WORK/run.py"
sed -i '/import logging/i import taskd.python.adaptor.patch' "$WORK/run.py"

# 3. The node of rank 0 starts the manager.
if [[ "$NODE_RANK" -eq 0 ]]; then
  TASKD_LISTEN=$TASKD_MANAGER $python -B "$here/manager.py" &
  manager=$!
fi

# 4. The training. (-r and -t only work around torch 1.13 on Python 3.11.)
export TASKD_NODE_RANK=$NODE_RANK OMP_NUM_THREADS=1
code=0
$python -B "$WORK/run.py" -r 9:1 -t 9:1 --monitor_interval 0.5 --nnodes 2 --node_rank "$NODE_RANK" --nproc_per_node 2 \
  --master_addr 127.0.0.1 --master_port "$TRAINING_PORT" "$here/train.py" || code=$?

if [[ "$NODE_RANK" -eq 0 ]]; then
  kill "$manager" 2>/dev/null || true
  wait "$manager" 2>/dev/null || true
fi
exit "$code"
