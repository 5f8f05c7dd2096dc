"""Jobs in the modes mpi and horovod on the nodes of a rig: `taskd run` on each node, real mpirun, real ranks.

Nodes have names with a domain, as in a cluster, and folders of their own where the platforms put their files.
"""
import json
import os
import re

import harness
import namespaces
from harness import PYTHON, TASKD, wait_until
from launchers import running

PRIVATE = ("/etc/mpi", "/home/ma-user")
# Ranks write down who they are, add up their numbers, and do what the test asks for.
RANK = r"""
import json, os, socket, sys, time
from mpi4py import MPI
folder, action, *arguments = sys.argv[1:]
world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
path = os.path.join(folder, f"rank.{world.rank}.{os.getpid()}")
with open(path + "~", "w") as file:
    json.dump({"rank": world.rank, "world": world.size, "sum": total, "host": socket.gethostname(), "pid": os.getpid(),
               "environment": dict(os.environ)}, file)
os.rename(path + "~", path)
world.Barrier()
if world.rank == 0:
    print("sum", total, flush=True)
if action == "fail" and world.rank == int(arguments[0]):
    if arguments[1] != "0":
        os._exit(int(arguments[1]))
while action in ("fail", "wait") and not os.path.exists(os.path.join(folder, "go")):
    time.sleep(0.02)
"""


class MpiNodes:
    """Jobs of one rig, one after the other, and what is left of them."""

    def __init__(self, rig, environment=None):
        self.rig = rig
        self.environment = environment or {}
        self.base = {node.index: set(rig.pids(node)) for node in rig.nodes}

    def job(self, name, cards=1):
        return MpiJob(self, name, cards)

    def left(self):
        """{pid: command line} of what runs on the nodes and did not when this was made."""
        found = {}
        for node in self.rig.nodes:
            for pid in self.rig.pids(node):
                if pid in self.base[node.index] or not running(pid):
                    continue
                try:
                    with open(f"/proc/{pid}/cmdline", "rb") as file:
                        found[pid] = f"{node.name}: {file.read().replace(bytes(1), b' ').decode(errors='replace')}"
                except OSError:
                    pass
        return found

    def require_nothing_left(self, timeout_s=harness.PATIENCE_S):
        try:
            wait_until(lambda: not self.left(), "nothing of the job runs any more", timeout_s, 0.1)
        except AssertionError:
            raise AssertionError(f"still there: {self.left()}") from None


class MpiJob:
    def __init__(self, nodes, name, cards):
        self.rig = nodes.rig
        self.extra = nodes.environment
        self.folder = os.path.join(self.rig.folder, name)
        os.makedirs(self.folder)
        self.rank = os.path.join(self.folder, "rank.py")
        with open(self.rank, "w", encoding="utf-8") as file:
            file.write(RANK)
        self.node_list = ",".join(f"{node.name}:{cards}" for node in self.rig.nodes)

    def mpirun(self, action="exit", *arguments, options=""):
        """The platform's own example, as text for a shell."""
        words = " ".join(map(str, arguments))
        return f"mpirun -np $GPU_NUM -H $NODE_IP_SLOT_LIST {options} {PYTHON} {self.rank} {self.folder} {action} {words}"

    def ti_one(self, index):
        return {"NODE_LIST": self.node_list, "INDEX": index}

    def run(self, index, mode, words, *options, environment=None):
        words = [TASKD, "run", "--mode", mode, *options, "--", *words]
        return self.rig.run(self.rig.nodes[index], words,
                            {"TMPDIR": self.folder, "PYTHONDONTWRITEBYTECODE": "1", **self.extra, **(environment or {})},
                            name=f"{os.path.basename(self.folder)}.taskd")

    def shell(self, index, text, *options, mode="mpi", environment=None):
        return self.run(index, mode, ["bash", "-c", text], *options, environment={**self.ti_one(index), **(environment or {})})

    def all(self, text, *options, **arguments):
        return [self.shell(index, text, *options, **arguments) for index in range(len(self.rig.nodes))]

    def put(self, name="go"):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8"):
            pass

    def ranks(self):
        """What the ranks wrote down, by rank."""
        found = []
        for entry in os.listdir(self.folder):
            if re.fullmatch(r"rank\.\d+\.\d+", entry):
                with open(os.path.join(self.folder, entry), encoding="utf-8") as file:
                    found.append(json.load(file))
        return sorted(found, key=lambda one: one["rank"])

    def wait_ranks(self, count=None):
        count = count or len(self.rig.nodes)
        return wait_until(lambda: len(self.ranks()) == count and self.ranks(), f"{count} ranks run", 60)

    def alive(self):
        return [one for one in self.ranks() if running(one["pid"])]


def make_nodes(folder, count, names="job-worker-{}.job", **options):
    """A rig, or why there is none."""
    reason = namespaces.missing_privilege()
    if reason:
        return None, reason
    return namespaces.Rig(folder, [names.format(i) for i in range(count)], private=PRIVATE, **options), None
