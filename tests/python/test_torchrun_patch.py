"""The documented sed line on a copy of torch/distributed/run.py, run as torchrun."""
import importlib.util
import os
import shutil
import subprocess
import sys

import pytest

from conftest import is_running
from deadlines import wait_child, wait_until
from needs import needs_torch

TORCH = importlib.util.find_spec("torch")
pytestmark = needs_torch

TRAIN_PY = "import os\nprint('TRAINED', os.environ['RANK'], os.environ.get('TASKD_MANAGER'), flush=True)\n"
# Works around torch 1.13 on Python 3.11.
QUIRKS = ("-r", "9:1", "-t", "9:1")


@pytest.fixture
def torchrun(world):
    copy = world.path("run.py")
    shutil.copy(os.path.join(TORCH.submodule_search_locations[0], "distributed", "run.py"), copy)
    subprocess.run(["sed", "-i", "/import logging/i import taskd.python.adaptor.patch", copy], check=True)
    world.fake_program()

    def start(*options, port, **environment):
        return world.start(sys.executable, copy, *QUIRKS, "--nproc_per_node", "2", "--monitor_interval", "0.2", *options,
                           "--master_port", str(port), world.write("train.py", TRAIN_PY), OMP_NUM_THREADS="1", **environment)

    return start


@pytest.mark.parametrize("options,environment,manager,node", [
    ((), {"MASTER_ADDR": "127.0.0.1"}, "127.0.0.1:9601", "0"),
    ((), {"MASTER_ADDR": "::1", "RANK": "3"}, "[::1]:9601", "3"),
    (("--master_addr", "127.0.0.1", "--node_rank=0"), {}, "127.0.0.1:9601", "0"),
    ((), {"MASTER_ADDR": "127.0.0.1", "TASKD_MANAGER": "127.0.0.1:9777"}, None, "0"),
])
def test_one_proxy_towards_the_master(world, torchrun, free_port, options, environment, manager, node):
    # torchrun itself takes --master_addr only from its own options.
    assert wait_child(torchrun(*options, port=free_port, **environment), 60) == 0, world.output()
    assert world.output().count("TRAINED") == 2
    assert len(world.calls()) == 1, "only the launcher starts a proxy"
    argv = world.calls()[0]["argv"]
    assert argv[0] == "proxy" and argv[argv.index("--node-rank") + 1] == node
    assert (argv[argv.index("--manager") + 1] if "--manager" in argv else None) == manager
    wait_until(lambda: not is_running(world.calls()[0]["pid"]), "the proxy ends with torchrun", 5)


@pytest.mark.parametrize("environment", [
    {"FAKE_EXIT": "1"}, {"TASKD_BIN": "/nonexistent/taskd"}, {"MASTER_ADDR": "not an address"},
])
def test_torchrun_is_never_broken(world, torchrun, free_port, environment):
    assert wait_child(torchrun(port=free_port, **environment), 60) == 0, world.output()
    assert world.output().count("TRAINED") == 2
    assert "Traceback" not in world.output()


def test_nothing_in_a_worker(world):
    world.fake_program()
    world.run("import taskd.python.adaptor.patch, threading\nassert threading.active_count() == 1", LOCAL_RANK="0")
    assert world.calls() == []
