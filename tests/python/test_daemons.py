"""Manager and proxy as children: how they are called, and that they end with their Python process however that ends."""
import os
import signal
import socket

import pytest

from conftest import is_running
from deadlines import wait_child, wait_until
from ports import free_port

MANAGER_PY = """
from taskd.api import init_taskd_manager, start_taskd_manager
import os
job_id=os.getenv("MINDX_TASK_ID")
node_nums=2
proc_per_node=8
init_taskd_manager({"job_id":job_id, "node_nums": node_nums, "proc_per_node": proc_per_node})
start_taskd_manager()
"""
# As MindSpore's msrun does it: in a thread that ends at once. Waits for a line on a pipe that never comes.
PROXY_PY = """
import os, threading, time
from taskd.api.taskd_proxy_api import init_taskd_proxy
from taskd.python.framework.common.type import CONFIG_UPSTREAMIP_KEY, LOCAL_HOST
proxy = threading.Thread(target=init_taskd_proxy, args=({CONFIG_UPSTREAMIP_KEY: os.getenv("MS_SCHED_HOST", LOCAL_HOST)},))
proxy.daemon = True
proxy.start()
proxy.join()
print("started", flush=True)
os.read(os.pipe()[0], 1)
"""


def called(world):
    return wait_until(world.calls, "the program is called")[0]


def flags(call):
    argv = call["argv"][1:]
    found = {}
    while argv:
        name = argv.pop(0)
        found[name] = argv.pop(0) if argv and not argv[0].startswith("--") else True
    return found


def test_manager_arguments(world):
    world.fake_program()
    world.python(MANAGER_PY, MINDX_TASK_ID="job-1", LD_PRELOAD="libtaskd.so")
    call = called(world)
    assert call["argv"][0] == "manager" and call["preload"] in (None, "")
    assert flags(call) == {"--task-id": "job-1", "--nodes": "2", "--procs-per-node": "8", "--allow-plaintext": True,
                           "--exit-on-stdin-eof": True}


def test_the_environment_wins_and_protection_is_not_weakened(world):
    world.fake_program()
    world.python(MANAGER_PY, TASKD_NODES="7", TASKD_TOKEN="secret", LOCAL_PROXY_ENABLE="on")
    assert flags(called(world)) == {"--procs-per-node": "8", "--listen": "127.0.0.1:9601", "--exit-on-stdin-eof": True}


@pytest.mark.parametrize("config,environment,recover", [
    ("", {}, [None, None]), ("'fault_recover': 'off', 'taskd_enable': 'off'", {}, [None, None]),
    ("'fault_recover': 'on', 'taskd_enable': 'on', 'plugin_dir': '/p'", {}, ["on", "on"]),
    ("", {"PROCESS_RECOVER": "on", "TASKD_PROCESS_ENABLE": "off"}, ["on", "off"])])
def test_the_manager_learns_what_is_asked_for_and_there_is_not(world, config, environment, recover):
    """contract: §6.1 and §1.6, fault_recover and taskd_enable; the manager starts, and says it in its log and its status."""
    world.fake_program()
    output = world.run("from taskd.api import *\nprint('RESULT', init_taskd_manager({%s}), start_taskd_manager())" % config,
                       FAKE_EXIT="0", **environment)
    assert "RESULT True True" in output
    assert called(world)["recover"] == recover


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("script", [MANAGER_PY, PROXY_PY], ids=["manager", "proxy"])
def test_ends_with_its_python_process(world, script, end):
    world.fake_program()
    parent = world.python(script)
    pid = called(world)["pid"]
    assert is_running(pid)
    parent.send_signal(end)
    assert wait_child(parent, 5) == -end
    wait_until(lambda: not is_running(pid), "the child ends", 5)


def test_outlives_the_thread_that_started_it_but_no_forked_child_holds_it(world):
    world.fake_program()
    parent = world.python("import multiprocessing\n" + PROXY_PY.replace(
        'print("started"', 'child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,)); '
        'child.start(); print("CHILD", child.pid, flush=True); print("started"'))
    wait_until(lambda: "started" in world.output(), "the proxy is up")
    pid = called(world)["pid"]
    child = int(world.output().split("CHILD ")[1].split()[0])
    assert is_running(pid) and is_running(child)
    parent.kill()
    wait_until(lambda: not is_running(pid), "the proxy ends though a forked child lives", 5)
    assert is_running(child)


@pytest.mark.parametrize("code,answer", [("0", True), ("1", False)])
def test_start_taskd_manager_gives_the_managers_result(world, code, answer):
    world.fake_program()
    script = MANAGER_PY.replace("start_taskd_manager()\n", "print('RESULT', start_taskd_manager())\n")
    output = world.run(script, FAKE_EXIT=code)
    assert f"RESULT {answer}" in output


PROXY_CALL = """
from taskd.api import *
print("RESULT", init_taskd_proxy({}), init_taskd_proxy({}), destroy_taskd_proxy(), destroy_taskd_proxy())
"""


@pytest.mark.parametrize("config,environment,expected", [
    ("{}", {}, {"--manager": "127.0.0.1:9601", "--node-rank": "0"}),
    ("{'UpstreamAddr': 'master.local', 'UpstreamPort': 9701, 'ListenAddr': '::1', 'ListenPort': '9702', "
     "'ServerRank': '3'}", {},
     {"--manager": "master.local:9701", "--listen": "[::1]:9702", "--node-rank": "3"}),
    ("{}", {"MASTER_ADDR": "fd00::5", "RANK": "4"}, {"--manager": "[fd00::5]:9601", "--node-rank": "4"}),
    ("{}", {"RANK": "13", "LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "8"}, {"--manager": "127.0.0.1:9601", "--node-rank": "1"}),
    ("{}", {"SLURM_STEP_ID": "0", "SLURM_NODEID": "3"}, {"--manager": "127.0.0.1:9601", "--node-rank": "3"}),
    ("{}", {"SLURM_STEP_ID": "0", "SLURM_NODEID": "3", "GROUP_RANK": "1"},
     {"--manager": "127.0.0.1:9601", "--node-rank": "1"}),
    ("{}", {"SLURM_NODEID": "3"}, {"--manager": "127.0.0.1:9601", "--node-rank": "0"}),  # a batch shell's
    ("{}", {"MS_NODE_RANK": "2"}, {"--manager": "127.0.0.1:9601", "--node-rank": "2"}),
    ("{'UpstreamAddr': '10.0.0.1', 'ListenPort': 9702}",
     {"TASKD_MANAGER": "10.0.0.9:1", "TASKD_LISTEN": "127.0.0.1:2", "TASKD_NODE_RANK": "6"}, {}),
])
def test_proxy_arguments(world, config, environment, expected):
    world.fake_program()
    output = world.run(PROXY_CALL.replace("{}", config), **environment)
    assert "RESULT True True True False" in output
    assert len(world.calls()) == 1, "the second call starts a second proxy"
    assert flags(world.calls()[0]) == {**expected, "--allow-plaintext": True, "--exit-on-stdin-eof": True}


def test_proxy_that_cannot_start(world):
    world.fake_program()
    assert "RESULT False False False False" in world.run(PROXY_CALL, FAKE_EXIT="2")
    assert "exit code 2" in world.output()


def test_proxy_has_ended_when_its_process_has(world):
    world.fake_program()
    world.run("from taskd.api import *\nassert init_taskd_proxy({})")
    assert not is_running(called(world)["pid"])


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(child) for child in file.read().split()]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_true_manager(world, program, end):
    port = free_port()
    parent = world.python(MANAGER_PY, TASKD_LISTEN=f"127.0.0.1:{port}", TASKD_HTTP=f"127.0.0.1:{free_port()}",
                          TASKD_STATE_DIR=world.path("state"), TASKD_BIN=program)

    def answers():
        assert parent.poll() is None, world.output()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_until(answers, "the manager listens")
    (pid,) = children(parent.pid)
    parent.send_signal(end)
    assert wait_child(parent, 5) == -end
    wait_until(lambda: not is_running(pid), "the manager ends", 5)


def test_a_true_manager_says_what_will_not_happen(world, program):
    """contract: §6.1; upstream starts its controller, here one line says that there is none."""
    port = free_port()
    world.python(MANAGER_PY.replace("proc_per_node}", "proc_per_node, 'fault_recover': 'on'}"), TASKD_LISTEN=f"127.0.0.1:{port}",
                 TASKD_HTTP=f"127.0.0.1:{free_port()}", TASKD_STATE_DIR=world.path("state"), TASKD_BIN=program,
                 HIGH_AVAILABILITY="elastic-training")
    line = wait_until(lambda: [one for one in world.output().splitlines() if "not supported" in one], "it is said")
    assert len(line) == 1 and " warning manager: " in line[0]
    assert "(PROCESS_RECOVER=on), elastic training (HIGH_AVAILABILITY=elastic-training)" in line[0]


def test_true_proxy(world, program):
    os.mkdir(world.path("profiling"))
    output = world.run(PROXY_CALL, TASKD_LISTEN=f"127.0.0.1:{free_port()}", TASKD_PROFILING_DIR=world.path("profiling"),
                       MINDX_TASK_ID="job", TASKD_MANAGER=f"127.0.0.1:{free_port()}", TASKD_BIN=program)
    assert "RESULT True True True False" in output, output
