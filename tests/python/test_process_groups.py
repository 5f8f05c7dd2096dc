"""parallel_group.json: what it says and where it goes."""
import json
import os
import socket
import sys

import pytest

from deadlines import wait_until
from needs import needs_torch
from taskd.python.utils import files
from taskd.torch import _groups

pytestmark = needs_torch

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


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path):
    """Whatever the error is."""
    _groups.write_file(str(tmp_path), {"default_group": {}})
    with pytest.raises(TypeError):
        _groups.write_file(str(tmp_path), {"default_group": object()})
    folder = files.open_folder(str(tmp_path))
    with pytest.raises(UnicodeEncodeError):
        files.replace_file(folder, "parallel_group.json", "\ud800")
    assert os.listdir(tmp_path) == ["parallel_group.json"]
    assert groups(tmp_path / "parallel_group.json") == {"default_group": {}}
    os.mkdir(tmp_path / "folder")
    with pytest.raises(IsADirectoryError):
        files.replace_file(folder, "folder", "text")
    os.close(folder)
    assert sorted(os.listdir(tmp_path)) == ["folder", "parallel_group.json"]


@pytest.mark.parametrize("link", ["task", "task/0"])
def test_a_link_on_the_way_is_not_followed(tmp_path, link):
    (tmp_path / "elsewhere" / "0").mkdir(parents=True)
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        _groups.write_file(str(tmp_path / "task" / "0"), {})
    assert os.listdir(tmp_path / "elsewhere") == ["0"] and os.listdir(tmp_path / "elsewhere" / "0") == []


def test_a_link_at_the_fresh_name_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "checkpoint").write_text("weights")
    monkeypatch.setattr(os, "urandom", bytes)
    (tmp_path / f".parallel_group.json.{os.getpid()}-{'00' * 8}.new").symlink_to(tmp_path / "checkpoint")
    with pytest.raises(FileExistsError):
        _groups.write_file(str(tmp_path), {})
    assert (tmp_path / "checkpoint").read_text() == "weights"


def play_proxy(world, state):
    """A socket that listens, and a state file beside it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(world.socket)
    listener.listen()
    with open(world.socket + ".state", "w", encoding="utf-8") as file:
        json.dump(state, file)
    return listener


def put_pipe(path):
    os.mkfifo(path)


def put_zeros(path):
    os.symlink("/dev/zero", path)


def put_link(path):
    os.rename(path + ".real", path + ".target")
    os.symlink(path + ".target", path)


def put_much(path):
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"rank_folders": "/tmp/thief", "more": "x" * 8192}, file)


def put_deep(path):
    with open(path, "w", encoding="utf-8") as file:
        file.write("[" * 8000)


@pytest.mark.parametrize("put", [put_pipe, put_zeros, put_link, put_much, put_deep])
def test_a_state_file_that_is_none_is_not_read(world, monkeypatch, put):
    """A pipe would hold the thread, a device without an end would fill the memory."""
    monkeypatch.setenv("TASKD_SOCKET", world.socket)
    with play_proxy(world, {"rank_folders": "/tmp/thief"}):
        assert _groups.folder_to_come(0) == "/tmp/thief/0"
        os.rename(world.socket + ".state", world.socket + ".state.real")
        put(world.socket + ".state")
        assert _groups.folder_to_come(0) is None


def test_a_state_file_is_believed_only_while_the_proxy_answers(world, monkeypatch):
    monkeypatch.setenv("TASKD_SOCKET", world.socket)
    with play_proxy(world, {"rank_folders": "/tmp/thief"}):
        assert _groups.folder_to_come(0) == "/tmp/thief/0"
        os.chmod(world.folder, 0o777)
        assert _groups.folder_to_come(0) is None, "others could have written it"
        os.chmod(world.folder, 0o700)
        assert _groups.folder_to_come(0) == "/tmp/thief/0"
    assert _groups.folder_to_come(0) is None, "the proxy is gone"


def test_the_proxy_says_where(world, free_port):
    """It may have found another folder than the usual one, or none for mark files."""
    ranks = start(world, free_port)
    wait_until(lambda: world.output().count("UP") == 2, "both ranks are up", 60)
    folders = world.path("proxy.sock.ranks")
    listener = play_proxy(world, {"task_folder": "default_task_id_1700000000_host_1", "rank_folders": folders})
    # Nor the folder of another job that begins meanwhile.
    other = os.path.join(world.path("profiling"), "default_task_id_1700000000", "0")
    os.makedirs(other)
    for rank in (0, 1):
        os.makedirs(os.path.join(folders, str(rank)))
    paths = [os.path.join(folders, str(r), "parallel_group.json") for r in (0, 1)]
    wait_until(lambda: len(groups(paths[0])) == 2 and len(groups(paths[1])) == 3, "both files are complete")
    listener.close()
    assert os.listdir(other) == []
    assert all(r.poll() is None for r in ranks)


def test_a_program_that_makes_many_does_not_wait_for_each_look(world, free_port):
    """A look at all groups for each new one would take time that grows with the square of their number. The thread rests after a
    look, 20 times as long as the look took, and one more look finds all groups that were made meanwhile."""
    world.run(f"""
import os, threading, time, types
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="{free_port}", GLOO_SOCKET_IFNAME="lo", MINDX_TASK_ID="job-1")
import taskd.torch
from taskd.torch import _groups
taskd.torch.enable()
import torch.distributed as dist
look, looks, rests, begun, goes_on = _groups.snapshot, [], [], threading.Event(), threading.Event()
_groups.snapshot = lambda: (looks.append(time.sleep(0.02)), look())[1]
_groups.time = types.SimpleNamespace(**{{**vars(time), "sleep": lambda s: (rests.append(s), begun.set(), goes_on.wait())}})
dist.init_process_group("gloo")
begun.wait()
for _ in range(100):
    dist.new_group([0])
goes_on.set()
path = os.path.join(os.environ["TASKD_PROFILING_DIR"], "job-1", "0", "parallel_group.json")
os.makedirs(os.path.dirname(path))
while not os.path.exists(path) or open(path).read().count("group_rank") < 101:
    time.sleep(0.01)
assert len(looks) == 2, len(looks)
assert rests[0] >= 20 * 0.02, rests
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


# As MindCluster's guide to slow nodes has it in the training loop, without taskd.torch.
DUMP_PY = """
import os, sys
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="%d", GLOO_SOCKET_IFNAME="lo")
import torch.distributed as dist
dist.init_process_group("gloo")
from taskd.python.adaptor.pytorch.group_info import dump_group_info
"""
ALONE = {"default_group": {"group_name": "default_group", "group_rank": 0, "global_ranks": [0]}}


def dump(world, port, then="dump_group_info()", **environment):
    os.makedirs(world.path("profiling"), exist_ok=True)
    return world.run(DUMP_PY % port + then, TASKD_PROFILING_DIR=world.path("profiling"), **environment)


def written(world):
    """Every parallel_group.json below the world's folder, with what is left beside it."""
    return {os.path.relpath(folder, world.folder): sorted(files)
            for folder, _, files in os.walk(world.folder) if "parallel_group.json" in files}


def test_dump_group_info(world, free_port):
    """contract: §4.8, GROUP_BASE_DIR/<MINDX_TASK_ID>/<rank>/parallel_group.json, folders 0755, before the call returns."""
    os.mkdir(world.path("base"))
    dump(world, free_port, "dump_group_info()\nassert os.path.exists('base/job-1/0/parallel_group.json')",
         GROUP_BASE_DIR=world.path("base"), MINDX_TASK_ID="job-1")
    assert written(world) == {"base/job-1/0": ["parallel_group.json"]}
    path = world.path("base/job-1/0/parallel_group.json")
    assert groups(path) == ALONE
    with open(path, encoding="utf-8") as file:
        assert '\n    "default_group": {\n        "group_name"' in file.read(), "not indented by 4"
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o755


def test_dump_group_info_is_also_beside_the_marks(world, free_port):
    """contract: §4.8; TaskD's own diagnosis reads the groups there, whatever GROUP_BASE_DIR says."""
    os.mkdir(world.path("base"))
    os.makedirs(world.path("profiling/job-1/0"))
    dump(world, free_port, """
import time
dump_group_info()
while not os.path.exists("profiling/job-1/0/parallel_group.json"):
    time.sleep(0.01)
""", GROUP_BASE_DIR=world.path("base"), MINDX_TASK_ID="job-1")
    assert groups(world.path("base/job-1/0/parallel_group.json")) == ALONE
    assert groups(world.path("profiling/job-1/0/parallel_group.json")) == ALONE


@pytest.mark.parametrize("base", [None, "", "/nonexistent"])
@pytest.mark.parametrize("told", [False, True])
def test_dump_group_info_without_a_base(world, free_port, base, told):
    """contract: §4.8, the default is the profiling folder; a base that does not exist is the default, with a warning."""
    if told:  # the proxy has taken another folder, and has not met the rank yet
        listener = play_proxy(world, {"rank_folders": world.path("elsewhere/job-1")})
    output = dump(world, free_port, "for _ in range(3): dump_group_info()", MINDX_TASK_ID="job-1",
                  **({} if base is None else {"GROUP_BASE_DIR": base}))
    folder = ("elsewhere" if told else "profiling") + "/job-1/0"
    assert written(world) == {folder: ["parallel_group.json"]}
    assert groups(world.path(folder + "/parallel_group.json")) == ALONE
    assert ("/nonexistent" in output) == (base == "/nonexistent"), output
    if told:
        listener.close()


def test_dump_group_info_and_taskd_torch_write_one_file(world, free_port):
    os.makedirs(world.path("profiling/job-1/0"))
    dump(world, free_port, "import taskd.torch\ntaskd.torch.enable()\ndump_group_info()\ndist.new_group([0])\ndump_group_info(0)",
         MINDX_TASK_ID="job-1")
    assert written(world) == {"profiling/job-1/0": ["parallel_group.json"]}
    assert len(groups(world.path("profiling/job-1/0/parallel_group.json"))) == 2


# The thread of taskd.torch has looked at one group, and hangs in the write of its file until `goes_on` is set.
THREAD_HANGS_PY = """
import threading
import taskd.torch
from taskd.torch import _groups
hangs, goes_on, write = threading.Event(), threading.Event(), _groups.write_file
def hanging_write(folder, groups):
    if threading.current_thread().name == "taskd-groups":
        hangs.set()
        goes_on.wait()
    write(folder, groups)
_groups.write_file = hanging_write
taskd.torch.enable()
hangs.wait()
dist.new_group([0])
"""


def test_a_file_never_gets_older(world, free_port):
    """Where dump_group_info() need not wait for the thread's write, that write comes later, with what it looked at earlier."""
    os.makedirs(world.path("profiling/job-1/0"))
    dump(world, free_port, THREAD_HANGS_PY + """
dumps = threading.Thread(target=dump_group_info)
dumps.start()
dumps.join(1)  # long enough to write where nothing holds it up
thread = _groups._thread
goes_on.set()
dumps.join()
thread.join()
""", MINDX_TASK_ID="job-1")
    assert len(groups(world.path("profiling/job-1/0/parallel_group.json"))) == 2


def test_a_disk_that_hangs_stops_only_writes_to_it(world, free_port):
    os.makedirs(world.path("profiling/job-1/0"))
    os.makedirs(world.path("base"))
    dump(world, free_port, THREAD_HANGS_PY + "assert dump_group_info()\ngoes_on.set()\n",
         MINDX_TASK_ID="job-1", GROUP_BASE_DIR=world.path("base"))
    assert len(groups(world.path("base/job-1/0/parallel_group.json"))) == 2


@pytest.mark.parametrize("link", ["job-1/0", "job-1/0/parallel_group.json"])
def test_dump_group_info_refuses_links(world, free_port, link):
    """contract: §4.8; upstream writes through neither."""
    os.makedirs(os.path.dirname(world.path(f"base/{link}")))
    target = world.path("target")
    if link.endswith("json"):
        world.write("target", "theirs")
    else:
        os.mkdir(target)
    os.symlink(target, world.path(f"base/{link}"))
    output = dump(world, free_port, "print('RESULT', dump_group_info())", GROUP_BASE_DIR=world.path("base"), MINDX_TASK_ID="job-1")
    assert "RESULT False" in output and "symbolic link" in output
    assert os.listdir(target) == [] if os.path.isdir(target) else open(target, encoding="utf-8").read() == "theirs"


@pytest.mark.parametrize("then,environment,words", [
    ("dist.destroy_process_group()\n", {"MINDX_TASK_ID": "job-1"}, "not initialized"), ("", {}, "MINDX_TASK_ID is not set")])
def test_dump_group_info_never_raises(world, free_port, then, environment, words):
    output = dump(world, free_port, then + "print('RESULT', dump_group_info())", GROUP_BASE_DIR=world.folder, **environment)
    assert "RESULT False" in output and words in output
    assert written(world) == {}


def test_hccls_groups_have_the_names_of_their_marks(world, free_port):
    """contract: §4.8, the communicator's name as torch_npu's marks have it, and the group_name of the HCCL options."""
    os.mkdir(world.path("base"))
    dump(world, free_port, """
import types
class Backend:
    def __init__(self, given): self.options = types.SimpleNamespace(hccl_config={"group_name": given} if given else {})
    def get_hccl_comm_name(self, rank, init_comm): assert rank == 0 and init_comm is False; return self.name
default, tp = dist.distributed_c10d._get_default_group(), dist.new_group([0])
backends = {default: Backend(""), tp: Backend("tp")}
backends[default].name, backends[tp].name = "10.0.0.1%eth0_60000_0", None
type(default)._get_backend = lambda group, device: backends[group]
import torch
torch.device = lambda name: name
sys.modules["torch_npu"] = types.ModuleType("torch_npu")
dump_group_info()
before = open("base/job-1/0/parallel_group.json").read()
assert '"10.0.0.1%eth0_60000_0": {\\n        "group_name": "default_group"' in before and "eth0_60001" not in before, before
backends[tp].name = "10.0.0.1%eth0_60001_0"  # it has communicated
dump_group_info()
after = open("base/job-1/0/parallel_group.json").read()
assert '"10.0.0.1%eth0_60001_0": {\\n        "group_name": "tp"' in after, after
""", GROUP_BASE_DIR=world.path("base"), MINDX_TASK_ID="job-1")
