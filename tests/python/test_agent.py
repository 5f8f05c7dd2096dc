"""The agent's line to the proxy, with the test as the proxy."""
import json
import os
import socket
import struct

import pytest

from deadlines import HANG_S, wait_until

AGENT_PY = """
import os
from taskd.api import *
def kill(pids): print("kill", pids, flush=True); return 0
def fail(): raise ValueError("it does not work")
def leave(): raise SystemExit(3)
assert register_func("KILL_WORKER", kill)
assert register_func("MONITOR", lambda ranks=(): {str(r): {"status": None} for r in ranks})
assert register_func("RESTART", fail)
assert register_func("START_ALL_WORKER", leave)
assert init_taskd_agent({"Framework": "PyTorch", "UpstreamAddr": "127.0.0.1", "UpstreamPort": 9602}) is True
assert init_taskd_agent() is True
os.read(os.pipe()[0], 1)
"""
MAGIC = 0x4C484454
ACCEPT = struct.pack("=IHH56s", MAGIC, 1, 0, b"")


class Line:
    def __init__(self, connection):
        connection.settimeout(HANG_S)
        self.connection = connection
        self.hello = struct.unpack("=IHHiiII40x", self.read(64))

    def read(self, size):
        data = b""
        while len(data) < size:
            part = self.connection.recv(size - len(data))
            assert part, "the agent closed the line"
            data += part
        return data

    def ask(self, request):
        text = json.dumps(request).encode()
        self.connection.sendall(struct.pack("=I", len(text)) + text)
        (size,) = struct.unpack("=I", self.read(4))
        assert size <= 65536
        return json.loads(self.read(size))


@pytest.fixture
def listener(world):
    with socket.socket(socket.AF_UNIX) as made:
        made.settimeout(HANG_S)
        made.bind(world.socket)
        made.listen()
        yield made


def accept(listener, reply=ACCEPT):
    line = Line(listener.accept()[0])
    line.connection.sendall(reply)
    return line


def test_requests(world, listener):
    agent = world.python(AGENT_PY)
    line = accept(listener)
    assert line.hello == (MAGIC, 1, 2, -1, -1, agent.pid, 0)
    assert line.ask({"id": 1, "operator": "KILL_WORKER", "args": {"args": [[-1]]}}) == {"id": 1, "ok": True, "message": "0"}
    assert "kill [-1]" in world.output()
    assert line.ask({"id": 2, "operator": "MONITOR", "args": {"kwargs": {"ranks": [3]}}}) == {
        "id": 2, "ok": True, "message": '{"3": {"status": null}}'}
    assert line.ask({"id": 3, "operator": "MONITOR"})["message"] == "{}"
    assert len(line.ask({"id": 4, "operator": "MONITOR", "args": {"args": [list(range(3000))]}})["message"]) == 8192


@pytest.mark.parametrize("request_,words", [
    ({"id": 1, "operator": "RESTART", "args": {}}, "ValueError: it does not work"),
    ({"id": 1, "operator": "START_ALL_WORKER"}, "SystemExit"),
    ({"id": 1, "operator": "START_WORKER_LIST"}, "no function is registered"),
    ({"id": 1, "operator": "KILL_WORKER", "args": {"pids": []}}, "args must be an object"),
    ({"id": 1, "operator": "KILL_WORKER", "args": [1]}, "args must be an object"),
    ({"id": 1, "operator": "KILL_WORKER", "args": {"args": [1, 2, 3]}}, "TypeError"),
    ({"id": 1, "operator": ["KILL_WORKER"]}, "TypeError"),
    ({"id": 1}, "KeyError"),
])
def test_what_goes_wrong_is_the_answer(world, listener, request_, words):
    world.python(AGENT_PY)
    line = accept(listener)
    answer = line.ask(request_)
    assert answer["id"] == 1 and answer["ok"] is False and words in answer["message"]
    assert line.ask({"id": 2, "operator": "MONITOR"})["ok"] is True, "the line does not go on"


def test_connects_again(world, listener):
    agent = world.python(AGENT_PY)
    accept(listener).connection.close()
    line = accept(listener)
    # A frame that is too long and one that is no JSON cost the line, not the agent.
    line.connection.sendall(struct.pack("=I", 65537))
    line = accept(listener)
    line.connection.sendall(struct.pack("=I", 3) + b"{{{")
    line = accept(listener)
    assert line.ask({"id": 9, "operator": "MONITOR"})["ok"] is True
    assert agent.poll() is None


def test_proxy_that_comes_later(world):
    world.python(AGENT_PY)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(HANG_S)
        listener.bind(world.socket)
        listener.listen()
        assert accept(listener).ask({"id": 1, "operator": "MONITOR"})["ok"] is True


def test_refusal_is_logged_once(world, listener):
    world.python(AGENT_PY)
    accept(listener, struct.pack("=IHH56s", MAGIC, 1, 1, b"no agents here"))
    wait_until(lambda: "no agents here" in world.output(), "the refusal is logged")


MSRUN_PY = """
from taskd.python.framework.agent.ms_mgr import msrun_plugin
msrun_plugin.MONITOR_INTERVAL_S = 0.01
plugin = msrun_plugin.MSRunPlugin()
states = iter([{0: None, 1: None}, {0: 0, 1: None}, %s])
def say(name, result):
    def function(*arguments):
        print("CALL", name, *arguments, flush=True)
        return result() if callable(result) else result
    return function
assert plugin.register_callbacks("OTHER", print) is False
monitor = lambda: {r: {"pid": 1, "status": s, "global_rank": r} for r, s in next(states).items()}
for name, result in (("KILL_WORKER", 0), ("START_ALL_WORKER", 0), ("START_WORKER_LIST", 0), ("MONITOR", monitor)):
    assert plugin.register_callbacks(name, say(name, result)) is True
try:
    print("RESULT", plugin.start())
except RuntimeError as error:
    print("RAISED", error)
"""


def test_msrun_plugin_runs_the_workers(world):
    output = world.run(MSRUN_PY % "{0: 0, 1: 0}")
    assert output.count("CALL START_ALL_WORKER") == 1 and output.count("CALL MONITOR [-1]") == 3
    assert "RESULT True" in output and "CALL KILL_WORKER" not in output


def test_msrun_plugin_kills_the_others_when_one_fails(world):
    output = world.run(MSRUN_PY % "{0: 0, 1: 9}")
    assert "CALL KILL_WORKER [-1]" in output and "RAISED training failed; workers (local rank: exit code) {1: 9}" in output


def test_start_taskd_agent_gives_the_agents_own_result(world):
    output = world.run("""
from taskd.api import *
class Agent:
    def run(self): return {"state": "SUCCEEDED"}
assert init_taskd_agent({}, Agent())
print("RESULT", start_taskd_agent())
""", TASKD_SOCKET=os.path.join(world.folder, "none.sock"))
    assert "RESULT {'state': 'SUCCEEDED'}" in output


@pytest.mark.parametrize("environment,said", [
    ({}, None), ({"PROCESS_RECOVER": "off", "TASKD_PROCESS_ENABLE": "off"}, None),
    ({"PROCESS_RECOVER": "on", "HIGH_AVAILABILITY": "dump,retry"}, "(PROCESS_RECOVER=on, HIGH_AVAILABILITY=dump,retry)"),
    ({"ENABLE_RESTART_FAULT_PROCESS": "on", "RESTART_FAULT_PROCESS_TYPE": "worker"}, "(ENABLE_RESTART_FAULT_PROCESS=on)")])
def test_recovery_that_is_asked_for_is_one_loud_line(world, environment, said):
    """contract: §1.6 and §6.2; upstream's agent would restart the worker."""
    output = world.run("""
from taskd.api import *
from taskd.python.framework.agent.ms_mgr.msrun_plugin import MSRunPlugin
assert init_taskd_agent({}) is True and init_taskd_agent({'Framework': 'MindSpore'}) is True
assert register_func("RESTART", print) is True and MSRunPlugin().register_callbacks("KILL_WORKER", print) is True
""", **environment)
    assert output.count("not supported, and will not happen") == (said is not None)
    assert said is None or said in output


def test_so_does_the_patched_torchrun(world):
    """contract: §6.2; upstream's patch restarts workers and never lets torchrun run out of restarts."""
    world.fake_program()
    output = world.run("import taskd.python.adaptor.patch", ENABLE_RESTART_FAULT_PROCESS="on")
    assert output.count("not supported, and will not happen") == 1
    assert "not supported" not in world.run("import taskd.python.adaptor.patch", ENABLE_RESTART_FAULT_PROCESS="on", LOCAL_RANK="0")
