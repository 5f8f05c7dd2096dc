"""One node of a job that all-reduces over gloo's ring, once in each of several rank orders: real peers for a fabric.

    ring_all_reduce.py FOLDER ELEMENTS ITERATIONS RANK [RANK ...]

RANK is this node's rank in each round. A round begins when FOLDER/go.<round> is there, with "HOST:PORT" of rank 0 in it; at its end the node
writes FOLDER/done.<round>.<rank>, JSON: {"seconds": [of each all-reduce]}. Not before every node is through are uplinks quiet again.
"""
import json
import os
import sys
import time

import torch
import torch.distributed as dist

folder, elements, iterations = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
value = torch.ones(elements)
with open(f"{folder}/ready.{os.environ['NODE']}", "w", encoding="utf-8"):
    pass
for number, rank in enumerate(map(int, sys.argv[4:])):
    while not os.path.exists(f"{folder}/go.{number}"):
        time.sleep(0.02)
    with open(f"{folder}/go.{number}", encoding="utf-8") as file:
        address = file.read()
    dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=rank, world_size=int(os.environ["NODES"]))
    dist.all_reduce(value[:1024].clone())
    seconds = []
    for _ in range(iterations):
        copy = value.clone()
        dist.barrier()
        began = time.monotonic()
        dist.all_reduce(copy)
        seconds.append(time.monotonic() - began)
        if copy[0].item() != dist.get_world_size() or copy[-1].item() != dist.get_world_size():
            raise AssertionError(f"the all-reduce gave {copy[0].item()} and {copy[-1].item()}")
    dist.destroy_process_group()
    with open(f"{folder}/done.{number}.{rank}.part", "w", encoding="utf-8") as file:
        json.dump({"seconds": seconds}, file)
    os.rename(f"{folder}/done.{number}.{rank}.part", f"{folder}/done.{number}.{rank}")
