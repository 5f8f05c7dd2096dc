"""Starts the nodes of a job in a mode of `taskd run` on this machine, for tests."""
import json
import os

import deadlines
import harness
from harness import PYTHON, TASKD, clean_environment
from launchers import OWN_PORTS, running
from ports import free_port

# What a node's command writes down before it does what the test asks for.
COMMAND = r"""
import json, os, signal, sys, time
folder, name, action, *arguments = sys.argv[1:]

def put(kind, text=""):
    path = os.path.join(folder, f"{kind}.{name}.{os.getpid()}")
    with open(path + "~", "w") as file:
        file.write(text)
    os.rename(path + "~", path)

if "shield" in arguments:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
put("started", json.dumps({"pid": os.getpid(), "argv": sys.argv[1:], "environment": dict(os.environ), "time": time.time()}))
if action == "exit":
    sys.exit(int(arguments[0]))
while not os.path.exists(os.path.join(folder, action)):
    time.sleep(0.02)
sys.exit(int(arguments[0]) if arguments and arguments[0].isdigit() else 0)
"""


class ModeJob:
    """A job whose nodes are loopback addresses. `put` a file that commands wait for by its name."""

    def __init__(self, stage, nodes=2, cards=1, name="job"):
        self.stage = stage
        self.nodes = [f"127.0.0.{index + 1}" for index in range(nodes)]
        self.node_list = ",".join(f"{node}:{cards}" for node in self.nodes)
        self.manager = f"127.0.0.1:{free_port()}"
        self.folder = os.path.join(stage.folder, name)
        os.makedirs(self.folder)
        self.script = os.path.join(self.folder, "command.py")
        with open(self.script, "w", encoding="utf-8") as script:
            script.write(COMMAND)

    def environment(self, index, **extra):
        return clean_environment(**{"NODE_LIST": self.node_list, "INDEX": index, "TMPDIR": self.stage.folder,
                                    "TASKD_HTTP": OWN_PORTS["TASKD_HTTP"], "PYTHONDONTWRITEBYTECODE": 1, **extra})

    def command(self, name, action, *arguments):
        return [PYTHON, self.script, self.folder, name, str(action), *map(str, arguments)]

    def run(self, index, mode, command, *options, environment=None, prefix=()):
        """One node. `command`: words, or (action, ...) of COMMAND."""
        if isinstance(command, tuple):
            command = self.command(f"node{index}", *command)
        words = [*prefix, TASKD, "run", "--mode", mode, "--manager", self.manager, *options, "--", *command]
        return self.stage._add(harness.Process(f"node{index}", words, self.environment(index, **(environment or {})),
                                               self.stage.folder))

    def put(self, name):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8"):
            pass

    def started(self, name=None):
        found = []
        for entry in sorted(os.listdir(self.folder)):
            if entry.startswith("started.") and not entry.endswith("~") and (not name or f".{name}." in entry):
                with open(os.path.join(self.folder, entry), encoding="utf-8") as file:
                    found.append(json.load(file))
        return sorted(found, key=lambda one: one["time"])

    def alive(self):
        return [one for one in self.started() if running(one["pid"])]


def dry_run(mode, environment, command, *options):
    """The JSON of a dry run."""
    result = deadlines.run([TASKD, "run", "--mode", mode, "--dry-run", "--json", *options, "--", *command],
                           env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)
