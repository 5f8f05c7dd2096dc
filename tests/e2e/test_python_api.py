"""The Python API as the requirement's documents use it, in processes of its own, against the true programs."""
import os

import grpc
import harness
import pytest
import stubs
from deadlines import HANG_S
from harness import wait_until
from segments import segments_of

# The requirement's manager.py, with its XX filled in.
MANAGER_PY = """
from taskd.api import init_taskd_manager, start_taskd_manager
import os
job_id=os.getenv("MINDX_TASK_ID")
node_nums=1
proc_per_node=1
init_taskd_manager({"job_id":job_id, "node_nums": node_nums, "proc_per_node": proc_per_node})
start_taskd_manager()
"""

WORKER_PY = """
import time
from taskd.api.taskd_worker_api import init_taskd_worker
from taskd.api.taskd_worker_api import start_taskd_worker
from taskd import mstx
assert init_taskd_worker(0, 5000) is True
assert start_taskd_worker() is True
number = 0
while True:
    step = mstx.range_start(f"step {number}", None)
    mstx.mark("a moment")
    time.sleep(0.01)  # the training
    mstx.range_end(step)
    number += 1
"""

PROXY_PY = """
import signal
from taskd.api.taskd_proxy_api import init_taskd_proxy
from taskd.python.framework.common.type import CONFIG_UPSTREAMIP_KEY, LOCAL_HOST
assert init_taskd_proxy({CONFIG_UPSTREAMIP_KEY: LOCAL_HOST, "UpstreamPort": "%d", "ListenPort": "%d"}) is True
print("ready", flush=True)
signal.pause()
"""

MINDSPORE_PY = """
from taskd.python.framework.agent.ms_mgr.msrun_plugin import MSRunPlugin
from taskd.api.taskd_proxy_api import init_taskd_proxy
from taskd.python.framework.common.type import CONFIG_UPSTREAMIP_KEY, LOCAL_HOST
plugin = MSRunPlugin()
for operator in ("KILL_WORKER", "START_ALL_WORKER", "START_WORKER_LIST", "MONITOR"):
    plugin.register_callbacks(operator, print)
import taskd
assert taskd.__version__
print("fine")
"""

HANDS_OFF_PY = """
from taskd.api import *
from taskd.api.taskd_worker_api import *
from taskd.api.taskd_proxy_api import *
from taskd.api.taskd_manager_api import *
assert start_taskd_worker() is False
assert destroy_taskd_worker() is False
for bad in ((-1, 5000), (0, -1), ("0", 5000), (0, "5000"), (None, None)):
    assert init_taskd_worker(*bad) is False, bad
assert init_taskd_manager("not a dict") is False
assert init_taskd_proxy({"ListenAddr": "not an address"}) is False
print("fine")
"""


def manager_process(stage, port):
    process = stage.python("manager_py", MANAGER_PY, {
        "MINDX_TASK_ID": harness.TASK, "TASKD_JOB": harness.JOB, "TASKD_LISTEN": f"127.0.0.1:{port}",
        "TASKD_HTTP": f"127.0.0.1:{harness.free_port()}", "TASKD_STATE_DIR": os.path.join(stage.folder, "state")})

    def ready():
        process.require_alive()
        try:
            return get(port).code == 200
        except grpc.RpcError:
            return False

    wait_until(ready, "manager.py answers")
    return process


def get(port):
    messages, services = stubs.profiling()
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        return services.TrainingDataTraceStub(channel).GetTrainingDataTraceSwitch(
            messages.DataStatusReq(jobNsName=harness.JOB), timeout=HANG_S)


def modify(port, **fields):
    messages, services = stubs.profiling()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        return services.TrainingDataTraceStub(channel).ModifyTrainingDataTraceSwitch(messages.DataTypeReq(
            jobNsName=harness.JOB, profilingSwitch=messages.ProfilingSwitch(**fields)), timeout=HANG_S).code


def children_gone(port):
    try:
        get(port)
        return False
    except grpc.RpcError:
        return True


def test_requirement_end_to_end(stage):
    port = harness.free_port()
    manager = manager_process(stage, port)
    socket_path = os.path.join(stage.folder, "proxy.sock")
    profiling = os.path.join(stage.folder, "profiling")
    os.mkdir(profiling)
    proxy = stage.python("proxy_py", PROXY_PY % (port, harness.free_port()), {
        "MINDX_TASK_ID": harness.TASK, "TASKD_SOCKET": socket_path, "TASKD_PROFILING_DIR": profiling})
    wait_until(lambda: proxy.require_alive() and os.path.exists(socket_path), "the proxy's socket")
    worker = stage.python("worker_py", WORKER_PY, {"LD_PRELOAD": harness.LIBRARY, "TASKD_SOCKET": socket_path})
    assert modify(port, Step="on", SaveCheckpoint="on", FP="on", DataLoader="on", CommunicationOperator="off") == 200
    folder = os.path.join(profiling, harness.TASK)

    def counts():
        worker.require_alive()
        return harness.check_marks.check(folder, live=True).ranks[0].counts if os.path.isdir(os.path.join(folder, "0")) else {}

    wait_until(lambda: counts().get("step", 0) > 10 and counts()["other"] > 10, "steps and marks are in the file")
    worker.kill()
    # What Python started ends with its Python process, however that ends.
    proxy.kill()
    wait_until(lambda: not os.path.exists(socket_path), "the proxy ends with the Python process that started it", 10)
    assert harness.check_marks.check(folder).ok
    manager.kill()
    wait_until(lambda: children_gone(port), "the manager ends with manager.py", 10)


def test_worker_without_the_preload_works_too(stage, manager, recording, proxy):
    stage.python("worker_py", WORKER_PY, {"TASKD_SOCKET": proxy.socket})
    wait_until(lambda: proxy.counts(0)["step"] > 5, "steps are in the file")


def test_both_libraries_in_one_process_act_as_one(stage, manager, recording, proxy):
    """One preloaded from build/lib, the package's own loaded by the Python API: one rank, nothing twice (marks.md 18)."""
    worker = stage.python("worker_py", WORKER_PY, {"TASKD_SOCKET": proxy.socket, "LD_PRELOAD": harness.LIBRARY})
    wait_until(lambda: proxy.counts(0)["step"] > 20, "steps are in the file")
    assert proxy.check().ok
    assert len(segments_of(worker.pid, proxy.socket)) == 1


@pytest.mark.parametrize("script", [MINDSPORE_PY, HANDS_OFF_PY], ids=["mindspore imports", "nothing raises"])
def test_script_runs_to_its_end(stage, script):
    process = stage.python("script", script, {"TASKD_SOCKET": os.path.join(stage.folder, "none.sock")})
    assert process.wait() == 0, process.log()
    assert "fine" in process.log()
