"""The public functions: what they accept, what they answer, and that they never raise."""
import pytest


def outcomes(world, lines, **environment):
    """What each expression gives, in one process, as its repr."""
    code = "from taskd.api import *\nfrom taskd.api import taskd_worker_api\n" + "\n".join(
        f"print('RESULT', repr({line}))" for line in lines)
    return [line[7:] for line in world.run(code, **environment).splitlines() if line.startswith("RESULT ")]


IMPORTS = """
import taskd
assert taskd.__version__.count(".") == 2
from taskd.api import init_taskd_manager, start_taskd_manager
from taskd.api import init_taskd_worker, start_taskd_worker, destroy_taskd_worker
from taskd.api import init_taskd_proxy, destroy_taskd_proxy, init_taskd_agent, start_taskd_agent, register_func
from taskd.api.taskd_worker_api import init_taskd_worker
from taskd.api.taskd_worker_api import start_taskd_worker
from taskd.api.taskd_proxy_api import init_taskd_proxy
from taskd.api.taskd_manager_api import init_taskd_manager
from taskd.api.taskd_agent_api import init_taskd_agent
from taskd.python.framework.agent.ms_mgr.msrun_plugin import MSRunPlugin
from taskd.python.framework.common.type import CONFIG_UPSTREAMIP_KEY, LOCAL_HOST
from taskd.python.cython_api import cython_api
assert cython_api.lib.taskd_enabled_kinds
assert (CONFIG_UPSTREAMIP_KEY, LOCAL_HOST) == ("UpstreamAddr", "127.0.0.1")
import sys
assert not {"torch", "numpy"} & set(sys.modules), "the package imports what it need not"
import taskd.python.adaptor.patch
from taskd.python.adaptor.pytorch.group_info import dump_group_info
assert dump_group_info() is False and "torch" not in sys.modules
"""


def test_every_documented_import(world):
    world.run(IMPORTS, LOCAL_RANK="0")  # in a worker, where the patch starts nothing


@pytest.mark.parametrize("arguments", [
    "-1", "True", "'0'", "0.0", "None", "2**31", "0, -1", "0, '5000'", "0, True", "0, None", "0, 2**31",
])
def test_worker_refuses(world, arguments):
    refused, start, destroy = outcomes(
        world, [f"init_taskd_worker({arguments})", "start_taskd_worker()", "destroy_taskd_worker()"])
    assert (refused, start, destroy) == ("False", "False", "False")
    assert "init_taskd_worker" in world.output() and "must be an int" in world.output()


def test_worker_life(world):
    lines = ["init_taskd_worker(3, 5000, 'ms')", "start_taskd_worker()", "init_taskd_worker(upper_limit_of_disk_in_mb=0, rank_id=4)",
             "destroy_taskd_worker()", "destroy_taskd_worker()", "start_taskd_worker()"]
    assert outcomes(world, lines, LOCAL_RANK="not a number") == ["True", "True", "True", "True", "False", "False"]


def test_library_that_is_a_link_is_refused(world):
    assert outcomes(world, [
        "__import__('os').symlink(taskd_worker_api.cython_api.LIBRARY_PATH, 'link.so')",
        "setattr(taskd_worker_api.cython_api, 'LIBRARY_PATH', __import__('os').path.abspath('link.so'))",
        "init_taskd_worker(0)"])[2] == "False"
    assert "symbolic link" in world.output()


@pytest.mark.parametrize("config", [
    "None", "'not a dict'", "{'job_id': 7}", "{'node_nums': 0}", "{'node_nums': '2'}", "{'proc_per_node': True}",
    "{'proc_per_node': -1}",
])
def test_manager_refuses(world, config):
    assert outcomes(world, [f"init_taskd_manager({config})", "start_taskd_manager()"]) == ["False", "False"]


@pytest.mark.parametrize("config", [
    "None", "{'ListenAddr': 'not an address'}", "{'ListenAddr': 5}", "{'ListenAddr': '10.0.0.256'}", "{'ListenPort': 0}",
    "{'ListenPort': '65536'}", "{'ListenPort': 'x'}", "{'UpstreamAddr': 'a b'}", "{'UpstreamPort': True}",
    "{'ServerRank': -1}", "{'ServerRank': 'one'}",
])
def test_proxy_refuses(world, config):
    world.fake_program()
    assert outcomes(world, [f"init_taskd_proxy({config})", "destroy_taskd_proxy()"]) == ["False", "False"]
    assert world.calls() == []


@pytest.mark.parametrize("config", ["None", "{'Framework': 'TensorFlow'}", "{'UpstreamAddr': 7}", "{'UpstreamPort': 'x'}"])
def test_agent_refuses(world, config):
    assert outcomes(world, [f"init_taskd_agent({config})", "start_taskd_agent()"]) == ["False", "False"]


def test_register_func(world):
    assert outcomes(world, [
        "[register_func(o, print) for o in ('KILL_WORKER', 'START_ALL_WORKER', 'START_WORKER_LIST', 'MONITOR', 'RESTART')]",
        "register_func('OTHER', print)", "register_func('MONITOR', None)", "register_func([], print)",
    ]) == ["[True, True, True, True, True]", "False", "False", "False"]


def test_missing_program_and_library(world):
    assert outcomes(world, [
        "init_taskd_manager({})", "start_taskd_manager()", "init_taskd_proxy({})",
        "setattr(taskd_worker_api.cython_api, 'LIBRARY_PATH', '/nonexistent/libtaskd.so')", "init_taskd_worker(0)",
        "__import__('taskd.mstx').mstx.range_start('x')",
    ], TASKD_BIN="/nonexistent/taskd") == ["True", "False", "False", "None", "False", "0"]
    assert "the taskd program was not found" in world.output()
