"""Starts `taskd run`, launchers and their ranks, for tests."""
import glob
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


# For launchers with daemons: another test may have the default ports of the manager's page and of the proxy's health.
OWN_PORTS = {"TASKD_HTTP": "127.0.0.1:0", "TASKD_LISTEN": "127.0.0.1:0"}
# Warnings of launchers and proxies that wait. They tell that the machine is slow, so a test of anything else lets them pass.
SLOW = (r" run: waiting", r" run: the manager does not answer yet", r" proxy: manager \S+: .*; trying again")


def complaints(log, *expected):
    """Lines of level warning and above in a log of taskd, but for those that match one of `expected` or of SLOW."""
    lines = re.findall(r"^\d{4}-\S+ (?:warning|error|critical) .*$", log, re.M)
    return [line for line in lines if not any(re.search(pattern, line) for pattern in (*SLOW, *expected))]


def daemons_of(pid, *kinds):
    """Pids of the daemons of these kinds ("manager", "proxy") that the launcher `pid` has started: its children that run `taskd KIND`.

    A child has the command line of the launcher until its exec, and a rank may have any word in its own: both are left out.
    """
    found = []
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        try:
            with open(path, encoding="ascii") as children:
                pids = [int(child) for child in children.read().split()]
        except OSError:  # the thread has ended
            continue
        for child in pids:
            try:
                with open(f"/proc/{child}/cmdline", "rb") as command:
                    words = command.read().split(b"\0")
            except OSError:  # it has ended
                continue
            if os.path.basename(words[0]) == b"taskd" and words[1:2] and words[1].decode(errors="replace") in kinds:
                found.append(child)
    return found


def wait_manager(launcher):
    """HOST:PORT of the manager that the launcher has started. Its log does not tell it of a manager that is slow to start."""
    def listens():
        launcher.require_alive()
        for pid in daemons_of(launcher.pid, "manager"):
            try:
                with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as command:
                    words = command.read().split("\0")
            except OSError:
                continue
            return words[words.index("--listen") + 1].replace("0.0.0.0", "127.0.0.1")
        return None
    return wait_until(listens, f"{launcher.name} has a manager")


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
        environment = {"TASKD_MANAGER": "off", **OWN_PORTS, "PYTHON_EXEC": PYTHON, "TMPDIR": self.stage.folder,
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
