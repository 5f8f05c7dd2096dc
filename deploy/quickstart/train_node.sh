#!/usr/bin/env bash
# What runs on each node: the training script, with `taskd run` where torchrun would be. It starts the node's ranks with
# the recorder in them, the node's proxy, on node 0 the job's manager and the store, and ends them all.
exec "$TASKD_BUILD/bin/taskd" run --nnodes 2 --node-rank "$NODE_RANK" --nproc-per-node 2 \
  --master-addr 127.0.0.1 --master-port "$TRAINING_PORT" \
  "$(dirname "$0")/train.py"
