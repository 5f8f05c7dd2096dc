"""Healthy PyTorch jobs that end no step for longer than a hang takes, or whose marks do not get through, under
`taskd run --hang-action`: none of them is ended."""
import os
import signal
import subprocess
import time

import pytest

from harness import PYTHON_PACKAGE, wait_until
from launchers import wait_log
from ports import free_port
from test_supervision import Launcher

HANG_S = 8  # instead of 30
SCENE_S = 4 * HANG_S  # more than HangOptions::slow_factor
STEPPING_S = 120  # PyTorch loads, beside other tests
PROCS = 3

# Trains until "over". Rank 0 plays the scene in between; the others wait for it in a barrier.
RANK = r"""
import os, sys, time
import taskd.torch
taskd.torch.enable()
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

folder, scene, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
dist.init_process_group("gloo")
rank = dist.get_rank()
is_told = lambda name: os.path.exists(os.path.join(folder, name))

def put(name):
    open(os.path.join(folder, name), "w").close()

def time_of_scene():
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield

def stuck():
    while not is_told("unstuck"):
        time.sleep(0.1)

def save():  # as safetensors and numpy do, on storage of 1 MB/s
    with open(f"model.{rank}", "wb") as file:
        for _ in time_of_scene():
            file.write(os.urandom(1 << 17))
            file.flush()
            time.sleep(0.13)

def evaluate():
    batch = torch.randn(256, 256)
    with torch.no_grad():
        for _ in time_of_scene():
            batch = torch.tanh(batch @ batch)

def export():  # by a service elsewhere
    for _ in time_of_scene():
        time.sleep(0.1)

class Data(IterableDataset):
    over = False

    def __iter__(self):
        while not self.over:
            yield torch.randn(16)

model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data, played = Data(), False
for batch in DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    time.sleep(0.03)
    told = torch.tensor([rank == 0 and is_told("scene"), rank == 0 and is_told("over")], dtype=torch.int32)
    dist.all_reduce(told)
    if told[0] and not played:
        played = True
        if rank == 0:
            {"save": save, "evaluate": evaluate, "stuck": stuck}.get(scene, lambda: None)()
            put("played")
        dist.barrier()
    data.over = bool(told[1])
if scene == "export":
    if rank == 0:
        export()
    dist.barrier()
put(f"done.{rank}.{os.environ['TORCHELASTIC_RESTART_COUNT']}")
"""


class Job:
    """Ranks that step, of a manager that takes silence of HANG_S for a hang."""

    def __init__(self, jobs, manager, scene, *options, marks=None, nodes=1):
        manager.all_on()
        self.jobs, self.ranks = jobs, range(nodes * PROCS)
        script, port = os.path.join(jobs.stage.folder, "train.py"), free_port()
        with open(script, "w", encoding="utf-8") as file:
            file.write(RANK)
        self.launchers = [jobs.static(
            node, port, *options, nodes=nodes, procs=PROCS, script=script, script_arguments=(jobs.folder, scene, str(SCENE_S)),
            environment={"TASKD_MANAGER": manager.address, "PYTHONPATH": PYTHON_PACKAGE,
                         "TASKD_PROFILING_DIR": marks or os.path.join(jobs.stage.folder, "marks")}) for node in range(nodes)]
        manager.wait_stepping(self.ranks, 20, STEPPING_S)
        self.settings = Launcher(manager)
        self.settings.watch(hang_factor=10, hang_floor_s=HANG_S)  # those of who watches last hold

    def assert_done(self):
        """All ranks have ended well, and never were restarted."""
        codes = [launcher.wait(SCENE_S + STEPPING_S) for launcher in self.launchers]
        assert not any(codes), self.launchers[0].log()
        assert self.done() == sorted(f"done.{rank}.0" for rank in self.ranks)

    def done(self):
        return sorted(name for name in os.listdir(self.jobs.folder) if name.startswith("done."))


def fill(path):
    """Nothing more goes onto this file system."""
    with open(os.path.join(path, "filler"), "wb") as file:
        size, part = 0, 1 << 26
        while part >= 1 << 12:
            try:
                os.posix_fallocate(file.fileno(), size, part)
                size += part
            except OSError:
                part //= 2


NEEDS_ROOT = pytest.mark.root("mounts a file system")


@pytest.mark.parametrize("scene, action", [
    pytest.param("full disk", "stop", marks=NEEDS_ROOT), pytest.param("frozen disk", "restart", marks=NEEDS_ROOT),
    ("save", "restart"), ("evaluate", "stop"), ("export", "restart"), ("marks off", "stop")])
def test_healthy_job_is_not_ended(jobs, manager, request, scene, action):
    disk = request.getfixturevalue("freezing_disk") if "disk" in scene else None
    job = Job(jobs, manager, scene, f"--hang-action={action}", "--max-restarts=1", marks=disk)
    if scene == "full disk":
        fill(disk)
    elif scene == "frozen disk":
        subprocess.run(["fsfreeze", "-f", disk], check=True)
    elif scene == "marks off":
        manager.all_off()
    jobs.put("scene")
    wait_until(lambda: os.path.exists(os.path.join(jobs.folder, "played")), "the scene is played", SCENE_S + STEPPING_S)
    if disk:
        wait_until(lambda: manager.status()["nodes"][0]["mark_files"]["error"], "marks are not written any more")
    if disk or scene == "marks off":
        time.sleep(SCENE_S)  # what is put in
    if scene == "marks off":
        manager.all_on()
    jobs.put("over")
    job.assert_done()


def test_hung_job_is_ended(jobs, manager):
    """The same job, where rank 0 does nothing any more."""
    job = Job(jobs, manager, "stuck", "--hang-action=stop")
    jobs.put("scene")
    assert job.launchers[0].wait(STEPPING_S) == 1
    wait_log(job.launchers[0], "hang: .*rank 0 is in no communication")
    assert not job.done()


def test_hang_that_is_over_ends_nothing(jobs, manager):
    """It ends by itself before the launcher comes to its action: that is held up by another launcher, which is stopped, until
    it is stopped itself."""
    job = Job(jobs, manager, "stuck", "--hang-action=stop", nodes=2)
    for launcher in reversed(job.launchers):
        os.kill(launcher.pid, signal.SIGSTOP)
        if launcher is job.launchers[1]:
            jobs.put("scene")
            wait_log(job.launchers[0], "hang: ", STEPPING_S)
    jobs.put("unstuck")
    wait_until(lambda: manager.status()["supervision"]["state"] == "running", "the job goes on", STEPPING_S, 0.2)
    for launcher in job.launchers:
        os.kill(launcher.pid, signal.SIGCONT)
    for line in ("all of the stacks: ", "the job goes on"):
        wait_log(job.launchers[0], line)
    manager.wait_stepping(job.ranks, 20, STEPPING_S)
    jobs.put("over")
    job.assert_done()
