"""Starts `taskd run`, launchers and their ranks, for tests."""
import json
import os
import re

import harness
from harness import PYTHON, TASKD, clean_environment, wait_until

# A rank that writes down what it was given and then does what the test asks for.
RANK = r"""
import json, os, signal, subprocess, sys, time
folder, action, *arguments = sys.argv[1:]
numbers = [int(one) for one in arguments if one != "child"]
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def put(name, text=""):
    path = os.path.join(folder, f"{name}.{rank}.{os.getpid()}")
    with open(path + "~", "w") as file:
        file.write(text)
    os.rename(path + "~", path)

def wait_for(name):
    while not os.path.exists(os.path.join(folder, name)):
        time.sleep(0.02)

for received in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(received, lambda number, frame: put(f"signal-{number}"))
if "child" in arguments:
    put("child", str(subprocess.Popen(["sleep", "600"], start_new_session=True).pid))
put("started", json.dumps({"pid": os.getpid(), "environment": dict(os.environ)}))
if action == "wait" or action == "fail" and rank != numbers[0]:
    wait_for("go")
elif action == "fail":  # RANK CODE [ATTEMPTS]: negative code: a signal
    wait_for("fail")
    if len(numbers) < 3 or attempt < numbers[2]:
        if numbers[1] < 0:
            os.kill(os.getpid(), -numbers[1])
        sys.exit(numbers[1])
    wait_for("go")
"""


def running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the latter: it went between open and read
        return False


LAUNCHED = {}  # the folder of a test -> pids of its launchers


class Jobs:
    """Launchers of a test, and what their ranks wrote down."""

    def __init__(self, stage):
        self.stage = stage
        self.folder = os.path.join(stage.folder, "ranks")
        os.makedirs(self.folder)
        self.script = os.path.join(stage.folder, "rank.py")
        with open(self.script, "w", encoding="utf-8") as script:
            script.write(RANK)

    def launch(self, name, *options, action=("exit",), environment=None, prefix=(), script=None,
               script_arguments=(), program=TASKD):
        command = [*prefix, program, "run", *options, script or self.script]
        command += [self.folder, *map(str, action)] if script is None else script_arguments
        environment = {"TASKD_MANAGER": "off", "PYTHON_EXEC": PYTHON, "TMPDIR": self.stage.folder,
                       "PYTHONDONTWRITEBYTECODE": 1, "OMP_NUM_THREADS": 1, **(environment or {})}
        process = self.stage._add(harness.Process(name, command, clean_environment(**environment), self.stage.folder))
        LAUNCHED.setdefault(self.stage.folder, set()).add(process.pid)
        return process

    def static(self, node, port, *options, nodes=2, procs=2, master="127.0.0.1", **arguments):
        return self.launch(f"node{node}", f"--nnodes={nodes}", f"--node-rank={node}", f"--nproc-per-node={procs}",
                           f"--master-addr={master}", f"--master-port={port}", *options, **arguments)

    def elastic(self, name, port, *options, nodes="1:2", procs=1, **arguments):
        return self.launch(name, f"--nnodes={nodes}", f"--nproc-per-node={procs}", "--rdzv-backend=c10d",
                           f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf=last_call_timeout=1", *options,
                           **arguments)

    def put(self, name):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8"):
            pass

    def read(self, kind):
        texts = []
        for name in sorted(os.listdir(self.folder)):
            if name.startswith(kind + ".") and not name.endswith("~"):
                with open(os.path.join(self.folder, name), encoding="utf-8") as file:
                    texts.append(file.read())
        return texts

    def started(self):
        """Environments of the ranks that were ever started, with their pid as "pid"."""
        found = []
        for text in self.read("started"):
            one = json.loads(text)
            found.append({**one["environment"], "pid": one["pid"]})
        return found

    def alive(self):
        return [e for e in self.started() if running(e["pid"])]

    def wait_started(self, count, **wanted):
        """Until `count` ranks run whose environment has `wanted`."""
        def enough():
            ranks = [e for e in self.alive() if all(e.get(k) == str(v) for k, v in wanted.items())]
            return ranks if len(ranks) == count and len(self.alive()) == count else None
        return wait_until(enough, f"{count} ranks run with {wanted}")

    def wait_none_left(self, timeout_s=harness.PATIENCE_S):
        pids = [e["pid"] for e in self.started()] + [int(pid) for pid in self.read("child")]
        wait_until(lambda: not [pid for pid in pids if running(pid)], "no rank and no child of one is left", timeout_s)


def wait_log(process, pattern, timeout_s=harness.PATIENCE_S):
    return wait_until(lambda: re.search(pattern, process.log()), f"{process.name} says {pattern!r}", timeout_s)
