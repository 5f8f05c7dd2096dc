"""`taskd run` as the agent of its node: the manager ends, starts, watches and restarts its ranks (Control.CallAgents)."""
import json
import os
import signal

import harness
import pytest
import stubs
from deadlines import HANG_S
from harness import PYTHON, TASKD, clean_environment, wait_until

# Says that it was started, and runs until the file `go` is there.
RANK = """
import os, sys, time
print("started", os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"], os.getpid(), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""

# Another agent of the node; only rank 1 has functions.
PLUGIN = """
import os, sys, time
from taskd.api import init_taskd_agent, register_func
if os.environ["RANK"] == "1":
    register_func("RESTART", lambda: "restarted by the plug-in")
    register_func("START_ALL_WORKER", lambda: 1 / 0)
assert init_taskd_agent()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""


class Job:
    def __init__(self, stage, manager, nodes, *options, script=RANK):
        self.manager = manager
        self.go = os.path.join(stage.folder, "go")
        path = os.path.join(stage.folder, "rank.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(script)
        port = harness.free_port()
        self.launchers = [
            stage._add(harness.Process(
                f"node{node}", [TASKD, "run", f"--nnodes={nodes}", f"--node-rank={node}", "--nproc-per-node=2",
                                f"--master-port={port}", *options, path, self.go],
                clean_environment(TASKD_MANAGER=manager.address, TASKD_LISTEN="127.0.0.1:0", PYTHON_EXEC=PYTHON,
                                  TASKD_PROFILING_DIR=stage.folder, TMPDIR=stage.folder, PYTHONPATH=harness.PYTHON_PACKAGE,
                                  PYTHONDONTWRITEBYTECODE=1),
                stage.folder))
            for node in range(nodes)]
        wait_until(lambda: all(ok for ok, _ in self.call("MONITOR", nodes=range(nodes)).values()), "all agents answer")

    def call(self, operator, *arguments, nodes=()):
        """{node: (ok, message)}"""
        messages, services = stubs.control()
        with self.manager.secure_channel() as channel:
            reply = services.ControlStub(channel).CallAgents(
                messages.CallAgentsRequest(operator=operator, args_json=json.dumps({"args": list(arguments)}),
                                           nodes=nodes), timeout=HANG_S)
        return {node.node: (node.ok, node.message) for node in reply.nodes}

    def monitor(self, node):
        ok, message = self.call("MONITOR", nodes=[node])[node]
        assert ok, message
        return {int(rank): state for rank, state in json.loads(message).items()}

    def finish(self):
        with open(self.go, "w", encoding="utf-8"):
            pass
        assert [launcher.wait() for launcher in self.launchers] == [0] * len(self.launchers), self.launchers[0].log()


def test_ends_and_starts_the_ranks_of_one_node(stage, manager):
    job = Job(stage, manager, 2)
    before = {node: job.monitor(node) for node in (0, 1)}
    assert {n: {r: s["global_rank"] for r, s in ranks.items()} for n, ranks in before.items()} == {
        0: {0: 0, 1: 1}, 1: {0: 2, 1: 3}}
    assert not job.call("START_ALL_WORKER", nodes=[1])[1][0]  # they run

    assert job.call("KILL_WORKER", nodes=[1]) == {1: (True, "")}
    assert {r: s["status"] for r, s in job.monitor(1).items()} == {0: 143, 1: 143}
    for state in before[1].values():
        with pytest.raises(ProcessLookupError):
            os.kill(state["pid"], 0)
    assert job.monitor(0) == before[0]  # no failure: the other ranks were not touched
    assert job.call("KILL_WORKER", [-1], nodes=[1])[1][0]  # nothing more to end

    assert job.call("START_ALL_WORKER", nodes=[1]) == {1: (True, "")}
    after = job.monitor(1)
    assert {r: (s["status"], s["global_rank"]) for r, s in after.items()} == {0: (None, 2), 1: (None, 3)}
    assert not {s["pid"] for s in after.values()} & {s["pid"] for s in before[1].values()}
    job.finish()


def test_starts_some_ranks(stage, manager):
    job = Job(stage, manager, 1)
    assert job.call("KILL_WORKER")[0][0]
    ok, why = job.call("START_WORKER_LIST", [0, 2])[0]
    assert not ok and "2 is no local rank" in why
    assert job.call("START_WORKER_LIST", [1])[0] == (True, "")
    assert {r: s["status"] for r, s in job.monitor(0).items()} == {0: 143, 1: None}
    job.finish()


def test_restarts_the_job(stage, manager):
    job = Job(stage, manager, 2, "--max-restarts=1")
    before = {node: job.monitor(node) for node in (0, 1)}
    assert job.call("KILL_WORKER", nodes=[1])[1][0]  # also with ranks that do not run
    assert job.call("RESTART", nodes=[0])[0] == (True, "")

    def restarted():
        return all(ok and all(state["status"] is None and state["pid"] not in [s["pid"] for s in before[node].values()]
                              for state in json.loads(message).values())
                   for node, (ok, message) in job.call("MONITOR").items())
    wait_until(restarted, "all ranks were restarted")
    ok, why = job.call("RESTART", nodes=[0])[0]
    assert not ok and "no restart is left (--max-restarts 1)" in why
    job.finish()


def test_a_rank_that_dies_is_still_a_failure_after_a_start(stage, manager):
    job = Job(stage, manager, 1)
    assert job.call("KILL_WORKER")[0][0] and job.call("START_ALL_WORKER")[0][0]
    os.kill(job.monitor(0)[1]["pid"], signal.SIGKILL)
    assert job.launchers[0].wait() == 137


def test_launcher_ends_while_its_ranks_are_held(stage, manager):
    job = Job(stage, manager, 1)
    assert job.call("KILL_WORKER")[0][0]
    job.launchers[0].child.send_signal(signal.SIGTERM)
    assert job.launchers[0].wait() == 143


def test_functions_of_a_program_that_it_started(stage, manager):
    job = Job(stage, manager, 1, script=PLUGIN)
    wait_until(lambda: job.call("START_ALL_WORKER")[0] == (False, "ZeroDivisionError: division by zero"),
               "the rank's function is called")
    # Who has no function for it leaves it to the others.
    assert {r: s["status"] for r, s in job.monitor(0).items()} == {0: None, 1: None}
    assert job.call("RESTART")[0] == (False, "no restart is left (--max-restarts 0)")
    assert job.call("KILL_WORKER")[0] == (True, "")  # they end before or after they were asked
    assert {r: s["status"] for r, s in job.monitor(0).items()} == {0: 143, 1: 143}
    assert job.call("START_ALL_WORKER")[0] == (True, "")
    job.finish()
