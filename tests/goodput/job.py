"""A rank of a PyTorch training that does what its plan says, and writes down by its own clock what it did when: job.py FOLDER

FOLDER/plan.json says how long imports, the first step and saving take, and what happens in which step (inject.py, "Plan").
FOLDER gets times.RANK.ATTEMPT, an object of JSON a line: {"what", "time"}, first with its "pid"; of steps {"step", "begin", "end",
"data", "save"}.
"""
import json
import os
import signal
import sys
import time

with open("/proc/self/stat", encoding="ascii") as stat, open("/proc/uptime", encoding="ascii") as uptime:
    BEGAN = time.time() - float(uptime.read().split()[0]) + int(stat.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
FOLDER = sys.argv[1]
RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
with open(os.path.join(FOLDER, "plan.json"), encoding="utf-8") as file:
    PLAN = json.load(file)
OUT = open(os.path.join(FOLDER, f"times.{RANK}.{ATTEMPT}"), "w", encoding="utf-8", buffering=1)


def note(**fields):
    print(json.dumps(fields), file=OUT)


note(what="began", time=BEGAN, pid=os.getpid())
time.sleep(PLAN["import_s"])

import torch  # noqa: E402  pylint: disable=wrong-import-position
import torch.distributed as dist  # noqa: E402  pylint: disable=wrong-import-position
from torch.nn.parallel import DistributedDataParallel  # noqa: E402  pylint: disable=wrong-import-position
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402  pylint: disable=wrong-import-position


def planned(what, step):
    """The plan's entry of this kind that is for this rank in this step; each happens once in the job's life."""
    found = PLAN["events"].get(what)
    if found and found.get("rank", RANK) == RANK and found.get("attempt", 0) == ATTEMPT and found["step"] == step:
        return found
    return None


class Samples(IterableDataset):
    """The batch of each step, at times late."""

    def __init__(self, first):
        self.first = first
        self.waited_s = 0

    def __iter__(self):
        for step in range(self.first, PLAN["steps"]):
            late = planned("loader", step)
            begin = time.time()
            if late:
                time.sleep(late["s"])
            batch = torch.ones(8, 16) * (1 + step % 7)
            self.waited_s = time.time() - begin
            yield batch


class SlowFile:
    """What torch.save writes to: as slow as the plan's storage."""

    def __init__(self, path):
        self.file = open(path, "wb")

    def write(self, content):
        return self.file.write(content)

    def flush(self):
        time.sleep(PLAN["save_s"])
        self.file.flush()


def save(step, model):
    begin = time.time()
    path = os.path.join(FOLDER, "checkpoint.pt")
    target = SlowFile(path + "~")
    torch.save({"step": step, "model": model.module.state_dict()}, target)  # it flushes
    target.file.close()
    os.rename(path + "~", path)
    return time.time() - begin


def main():
    note(what="reached", time=time.time())
    dist.init_process_group("gloo")
    note(what="joined", time=time.time())
    torch.manual_seed(7)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpoint = os.path.join(FOLDER, "checkpoint.pt")
    first = 0
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint)
        first = saved["step"] + 1
        model.module.load_state_dict(saved["model"])
    dist.barrier()
    samples = Samples(first)
    batches = iter(DataLoader(samples, batch_size=None))
    for step in range(first, PLAN["steps"]):
        begin = time.time()
        batch = next(batches)
        extra_s = PLAN["first_step_s"] if step == first else 0
        slow = PLAN["events"].get("straggler")
        if slow and slow["rank"] == RANK and slow["step"] <= step < slow["step"] + slow["steps"]:
            extra_s += slow["s"]
        hang = planned("hang", step)
        extra_s += hang["s"] if hang else 0
        loss = model(batch).pow(2).mean()
        time.sleep(PLAN["step_s"] + extra_s)
        kill = planned("kill", step)
        if kill:
            while kill.get("awaited") and not os.path.exists(os.path.join(FOLDER, "kill")):
                time.sleep(0.01)
            note(what="killed", time=time.time())
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        saving_s = 0
        if step % PLAN["save_every"] == PLAN["save_every"] - 1:
            if RANK == 0:
                saving_s = save(step, model)
            dist.barrier()
        note(step=step, begin=begin, end=time.time(), data=samples.waited_s, save=saving_s)
        if planned("evaluation", step):
            begin = time.time()
            time.sleep(PLAN["events"]["evaluation"]["s"])
            note(what="evaluation", time=begin, end=time.time())
    note(what="ended", time=time.time())
    dist.destroy_process_group()


main()
