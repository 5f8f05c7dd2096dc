"""A rank of a job of four that hangs as its argument says, and leaves a dump of PyTorch's flight recorder: hung_job.py HOW FOLDER

In its fourth step rank 2 does not come to the all-reduce of all ("missing"); rank 3 not to that of a group of two, while the
others wait for it or for who waits for it in another group ("groups"); rank 1 broadcasts before it reduces ("order"), begins
with the other one of two groups ("group_order"), or has twice the elements ("size"); rank 1 of a pipeline sends nothing on
("pipeline"). "healthy" ends.
"""
import contextlib
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

HOW, FOLDER = sys.argv[1:]
STEPS, WRONG_STEP = 5, 3
PATIENCE_S = 60


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def has_stood(seconds=2):
    """True once this rank has begun no step and called nothing for so long."""
    return time.monotonic() - moved > seconds


def dump(rank):
    """When the job stands: everybody has to be there until all have written theirs, or gloo's connections end."""
    wait_for(has_stood)
    for name, text in ((f"pickle_{rank}", c10d._dump_fr_trace(True, True, False)), (f"json_{rank}", c10d._dump_fr_trace_json(True, False))):
        with open(os.path.join(FOLDER, name), "wb") as file:
            file.write(text)
    time.sleep(2)
    os._exit(0)


def main():
    global moved
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = [dist.new_group([first, first + 1], group_desc="TENSOR") for first in range(0, size, 2)][rank // 2]
    data = [dist.new_group(list(range(first, size, 2)), group_desc="DATA") for first in range(2)][rank % 2]
    both = [dist.new_group(list(range(size)), group_desc=name) for name in ("FIRST", "SECOND")]
    moved = time.monotonic()
    threading.Thread(target=dump, args=(rank,), daemon=True).start()

    def reduce(group=None, elements=64):
        dist.all_reduce(torch.ones(elements), group=group)

    for step in range(STEPS):
        moved = time.monotonic()
        wrong = step == WRONG_STEP
        if HOW == "groups":
            if wrong and rank == 3:
                break
            reduce(tensor)
            reduce(data)
        elif HOW == "order":
            calls = [reduce, lambda: dist.broadcast(torch.ones(64), 0)]
            for call in reversed(calls) if wrong and rank == 1 else calls:
                call()
        elif HOW == "group_order":
            for group in reversed(both) if wrong and rank == 1 else both:
                reduce(group)
        elif HOW == "size":
            reduce(elements=128 if wrong and rank == 1 else 64)
        elif HOW == "pipeline":
            if rank > 0:
                dist.recv(torch.ones(8), rank - 1)
            if wrong and rank == 1:
                break
            if rank < size - 1:
                dist.send(torch.ones(8), rank + 1)
            reduce()
        else:
            reduce(tensor)
            reduce(data)
            if HOW == "missing" and wrong and rank == 2:
                break
            reduce()


with contextlib.suppress(RuntimeError):  # a rank that has gone takes the connections with it
    main()
time.sleep(PATIENCE_S)
