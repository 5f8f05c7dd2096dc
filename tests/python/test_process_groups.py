"""parallel_group.json: what it says and where it goes."""
import json
import os
import sys

import pytest

from conftest import wait_until

RANK_PY = """
import os, sys, time
import taskd.torch
taskd.torch.enable()
import torch.distributed as dist
dist.init_process_group("gloo")
from taskd.api import taskd_worker_api
assert taskd_worker_api.is_initialized()
rank = dist.get_rank()
alone = dist.new_group([1])
both = dist.new_group([1, 0])
print("UP", flush=True)
os.read(os.pipe()[0], 1)
"""


def start(world, port, **environment):
    script = world.write("rank.py", RANK_PY)
    return [world.start(sys.executable, script, RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                        MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo", TASKD_PROFILING_DIR=world.path("profiling"), **environment)
            for r in (0, 1)]


def groups(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


@pytest.mark.parametrize("task,name", [("job-1", "job-1"), (None, "default_task_id_1700000000_host_00c0ffee"),
                                       (None, "default_task_id_1700000000")])
def test_file(world, free_port, task, name):
    folder = world.path("profiling")
    os.makedirs(os.path.join(folder, "default_task_id_1000000000", "1"))  # of an earlier job
    os.utime(os.path.join(folder, "default_task_id_1000000000", "1"), (1, 1))
    ranks = start(world, free_port, **({"MINDX_TASK_ID": task} if task else {}))
    wait_until(lambda: world.output().count("UP") == 2, "both ranks are up", 60)
    assert all(r.poll() is None for r in ranks)
    # The proxy makes the folders when it meets the ranks, which may be late.
    paths = [os.path.join(folder, name, str(r), "parallel_group.json") for r in (0, 1)]
    for path in paths:
        os.makedirs(os.path.dirname(path))
    default = {"group_name": "default_group", "global_ranks": [0, 1]}
    wait_until(lambda: len(groups(paths[0])) == 2 and len(groups(paths[1])) == 3, "both files are complete")
    assert groups(paths[0]) == {"default_group": {**default, "group_rank": 0},
                                "2": {"group_name": "2", "group_rank": 0, "global_ranks": [0, 1]}}
    assert groups(paths[1]) == {"default_group": {**default, "group_rank": 1},
                                "1": {"group_name": "1", "group_rank": 0, "global_ranks": [1]},
                                "2": {"group_name": "2", "group_rank": 1, "global_ranks": [0, 1]}}
    assert os.listdir(os.path.dirname(paths[0])) == ["parallel_group.json"], "a temporary file is left"
    assert not os.listdir(os.path.join(folder, "default_task_id_1000000000", "1")), "an earlier job's folder was taken"


def test_the_proxy_says_where(world, free_port):
    """It may have found another folder than the usual one, or none for mark files."""
    ranks = start(world, free_port)
    wait_until(lambda: world.output().count("UP") == 2, "both ranks are up", 60)
    folders = world.path("proxy.sock.ranks")
    with open(world.socket + ".state", "w", encoding="utf-8") as state:
        json.dump({"task_folder": "default_task_id_1700000000_host_1", "rank_folders": folders}, state)
    # Nor the folder of another job that begins meanwhile.
    other = os.path.join(world.path("profiling"), "default_task_id_1700000000", "0")
    os.makedirs(other)
    for rank in (0, 1):
        os.makedirs(os.path.join(folders, str(rank)))
    paths = [os.path.join(folders, str(r), "parallel_group.json") for r in (0, 1)]
    wait_until(lambda: len(groups(paths[0])) == 2 and len(groups(paths[1])) == 3, "both files are complete")
    assert os.listdir(other) == []
    assert all(r.poll() is None for r in ranks)


def test_a_program_that_makes_many_does_not_wait_for_each_look(world, free_port):
    """A look at all groups for each new one would take time that grows with the square of their number."""
    world.run(f"""
import os, time
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="{free_port}", GLOO_SOCKET_IFNAME="lo", MINDX_TASK_ID="job-1")
import taskd.torch
from taskd.torch import _groups
taskd.torch.enable()
import torch.distributed as dist
look, looks = _groups._snapshot, []
_groups._snapshot = lambda: (looks.append(time.sleep(0.02)), look())[1]
dist.init_process_group("gloo")
for _ in range(100):
    dist.new_group([0])
path = os.path.join(os.environ["TASKD_PROFILING_DIR"], "job-1", "0", "parallel_group.json")
os.makedirs(os.path.dirname(path))
while not os.path.exists(path) or open(path).read().count("group_rank") < 101:
    time.sleep(0.01)
assert len(looks) < 50, len(looks)
""", TASKD_PROFILING_DIR=world.path("profiling"))


def test_names_fit_into_a_mark(world):
    world.run("""
import json
from taskd.torch import _collectives, _groups
for name in ("tp", "g" * 500, '"' * 500, "\\u4e2d" * 500, "a\\\\b\\n", 7):
    text = _collectives.mark_text("HcclBatchSendRecv", 2**63, "bfp16", name, 16383, 16383)
    assert len(text.encode()) <= 254, len(text)
    assert json.loads(text)["groupName"] == _groups.mark_name(name)
assert _groups.mark_name("tp") == "tp" and _groups.mark_name("g" * 96) == "g" * 96
""")
