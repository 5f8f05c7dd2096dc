"""`taskd run --mode torch` between nodes: real DDP training, by PyTorch's launcher and by `taskd run` inside the mode."""
import json
import os

import pytest

import harness
from harness import PYTHON, TASKD, wait_until
from launchers import wait_log
from namespaces import make_rig  # noqa: F401
from needs import needs_torch

pytestmark = [pytest.mark.root("network namespaces"), needs_torch]
JOB_S = 90  # nine processes import torch on two cores

TRAIN = r"""
import json, os, sys, time
import torch
import torch.distributed as dist
import taskd  # marks, as where the wheel is installed
folder = os.environ["WORK"]
fails, code = int(os.environ.get("FAILS", -1)), int(os.environ.get("CODE", 1))
torch.manual_seed(int(os.environ["RANK"]))
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(30):
    x = torch.randn(8, 4)
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
with open(os.path.join(folder, f"trained.{rank}~"), "w") as file:
    json.dump({"losses": losses, "weights": [p.tolist() for p in model.parameters()], "environment": dict(os.environ)}, file)
os.rename(os.path.join(folder, f"trained.{rank}~"), os.path.join(folder, f"trained.{rank}"))
if rank == fails:
    os._exit(code)
if fails >= 0:
    dist.barrier()  # as a training that goes on: it breaks, as one peer is gone
while not os.path.exists(os.path.join(folder, "go")):
    time.sleep(0.05)
"""

LAUNCH = (f"{PYTHON} -m torch.distributed.launch --use_env --nproc_per_node $GPU_NUM_PER_NODE --nnodes $WORLD_SIZE "
          "--node_rank $RANK --master_addr $MASTER_ADDR --master_port $MASTER_PORT train.py")
NESTED = (f"{TASKD} run --nproc-per-node $GPU_NUM_PER_NODE --nnodes $WORLD_SIZE --node-rank $RANK "
          "--master-addr $MASTER_ADDR --master-port $MASTER_PORT train.py")


class Job:
    def __init__(self, rig, name, cards=1):
        self.rig = rig
        self.folder = os.path.join(rig.folder, name)
        os.makedirs(self.folder)
        self.node_list = ",".join(f"{node.name}:{cards}" for node in rig.nodes)
        self.world = cards * len(rig.nodes)
        with open(os.path.join(self.folder, "train.py"), "w", encoding="utf-8") as script:
            script.write(TRAIN)

    def run(self, index, text, *options, **environment):
        return self.rig.run(
            self.rig.nodes[index], [TASKD, "run", "--mode", "torch", *options, "--", "bash", "-c", f"cd {self.folder} && {text}"],
            {"NODE_LIST": self.node_list, "INDEX": str(index), "WORK": self.folder, "GLOO_SOCKET_IFNAME": "eth0",
             "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": self.folder, "PYTHON_EXEC": PYTHON,
             "PYTHONPATH": harness.PYTHON_PACKAGE,
             # Debian's PyTorch 1.13 with Python 3.11: its launcher does not start without them.
             "PET_REDIRECTS": "1", "PET_TEE": "1", **environment}, name=f"{os.path.basename(self.folder)}.taskd")

    def trained(self):
        found = {}
        for rank in range(self.world):
            try:
                with open(os.path.join(self.folder, f"trained.{rank}"), encoding="utf-8") as file:
                    found[rank] = json.load(file)
            except FileNotFoundError:
                pass
        return found

    def check_trained(self):
        """Each rank trained, and what it learned is what all learned."""
        ranks = wait_until(lambda: len(self.trained()) == self.world and self.trained(), "every rank has trained", JOB_S)
        assert len({json.dumps(one["weights"]) for one in ranks.values()}) == 1
        assert all(sum(one["losses"][-5:]) < sum(one["losses"][:5]) / 4 for one in ranks.values())
        assert [(one["environment"]["RANK"], one["environment"]["WORLD_SIZE"]) for one in ranks.values()] == [
            (str(rank), str(self.world)) for rank in ranks]

    def go(self):
        with open(os.path.join(self.folder, "go"), "w", encoding="utf-8"):
            pass


@pytest.fixture
def rig(make_rig):  # noqa: F811
    return make_rig([f"job-worker-{i}.job" for i in range(3)])


def codes(processes, timeout_s=JOB_S):
    return [process.wait(timeout_s) for process in processes]


def test_ddp_with_a_late_master_and_late_names(rig):
    job = Job(rig, "late")
    rig.write_hosts(nodes=[])
    workers = [job.run(index, f"touch started.$INDEX; {LAUNCH}") for index in (1, 2)]
    for worker in workers:
        wait_log(worker, r"waiting: .*job-worker-0\.job.* not resolve")
    rig.write_hosts()
    for worker in workers:
        wait_log(worker, "mode torch")
    assert not [name for name in os.listdir(job.folder) if name.startswith("started.")]
    processes = [job.run(0, LAUNCH), *workers]
    job.check_trained()
    job.go()
    assert codes(processes) == [0, 0, 0]


def test_ddp_code_of_a_rank(rig):
    job = Job(rig, "fails")
    processes = [job.run(index, LAUNCH, FAILS="1") for index in range(3)]
    assert codes(processes) == [1, 1, 1]  # the launcher's own
    for node in rig.nodes:
        wait_until(lambda node=node: not rig.pids(node), f"nothing is left on {node.name}")


def test_taskd_run_inside_the_mode(rig):
    """The inner launcher uses the node's proxy and the job's manager: no second ones on the same socket."""
    job = Job(rig, "nested", cards=2)
    processes = [job.run(index, NESTED) for index in range(3)]
    job.check_trained()
    assert {one["environment"]["LD_PRELOAD"].count("libtaskd.so") for one in job.trained().values()} == {1}

    def attached():
        done = rig.finish(rig.nodes[0], [TASKD, "status", "--manager", "127.0.0.1:9601", "--json"])
        assert done.returncode == 0, done.stderr
        return sorted(rank["rank"] for node in json.loads(done.stdout)["nodes"] for rank in node["ranks"] if rank["attached"])
    wait_until(lambda: attached() == list(range(6)), "all ranks are attached", 120, 0.5)
    running = [node for node in rig.nodes for pid in rig.pids(node) if command_line(pid)[1:2] == ["proxy"]]
    assert running == rig.nodes
    job.go()
    assert codes(processes) == [0, 0, 0]
    assert not [process for process in processes if "the proxy has ended" in process.log()]


def test_taskd_run_inside_the_mode_hands_on_the_code(rig):
    job = Job(rig, "nested-fails")
    processes = [job.run(index, NESTED, FAILS="2", CODE="5") for index in range(3)]
    assert codes(processes) == [5, 5, 5]
    for node in rig.nodes:
        wait_until(lambda node=node: not rig.pids(node), f"nothing is left on {node.name}")


def command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
            return file.read().split("\0")
    except OSError:
        return []
