"""A rank of a small PyTorch training that writes down what it did when, by its own clock: goodput_rank.py FOLDER STEPS SAVE_EVERY KILL_STEP

Saves every SAVE_EVERY steps. In the job's first life rank 1 kills itself in the middle of step KILL_STEP; the next life goes on from the
last checkpoint; with KILL_STEP -1 it lives. FOLDER gets times.RANK.ATTEMPT, a JSON object a line: {"what", "time"}, first with
its "pid", and of steps {"step", "begin", "end"}.
"""
import json
import os
import signal
import sys
import time

with open("/proc/self/stat", encoding="ascii") as stat, open("/proc/uptime", encoding="ascii") as uptime:
    began = time.time() - float(uptime.read().split()[0]) + int(stat.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
folder, steps, save_every, kill_step = sys.argv[1], *map(int, sys.argv[2:5])
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
out = open(os.path.join(folder, f"times.{rank}.{attempt}"), "w", encoding="utf-8", buffering=1)


def note(**fields):
    print(json.dumps(fields), file=out)


note(what="began", time=began, pid=os.getpid())
time.sleep(1)  # a slow import

import torch  # noqa: E402  pylint: disable=wrong-import-position
import torch.distributed as dist  # noqa: E402  pylint: disable=wrong-import-position
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402  pylint: disable=wrong-import-position

dist.init_process_group("gloo")
note(what="joined", time=time.time())
torch.manual_seed(7)
model = DDP(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
checkpoint = os.path.join(folder, "checkpoint.pt")
first = 0
if os.path.exists(checkpoint):
    saved = torch.load(checkpoint)
    first = saved["step"] + 1
    model.module.load_state_dict(saved["model"])
dist.barrier()
for step in range(first, steps):
    begin = time.time()
    time.sleep(0.05)
    if step == kill_step and attempt == 0 and rank == 1:
        note(what="killed", time=time.time())
        os.kill(os.getpid(), signal.SIGKILL)
    loss = model(torch.ones(8, 16)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % save_every == save_every - 1:
        if rank == 0:
            torch.save({"step": step, "model": model.module.state_dict()}, checkpoint + "~")
            os.rename(checkpoint + "~", checkpoint)
        dist.barrier()
    note(step=step, begin=begin, end=time.time())
note(what="ended", time=time.time())
dist.destroy_process_group()
