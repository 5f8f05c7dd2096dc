"""taskd.torch in a real data-parallel job of two ranks over gloo, with what would be recorded written down instead."""
import json
import os
import re
import sys

import ports
import pytest

from deadlines import wait_child
from needs import needs_torch

pytestmark = needs_torch
JOB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_job.py")


def run_job(world, case, **environment):
    port = ports.free_port()
    ranks = [world.start(sys.executable, JOB, case, RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                         MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1", **environment) for r in (0, 1)]
    for rank in ranks:
        assert wait_child(rank, 120) == 0, world.output()
    results = []
    for rank in (0, 1):
        with open(world.path(f"marks.{rank}.json"), encoding="utf-8") as file:
            results.append(json.load(file))
    assert results[0]["digest"] == results[1]["digest"]
    return results


@pytest.fixture(scope="module")
def plain_digest(tmp_path_factory):
    import conftest

    world = conftest.World(tmp_path_factory.mktemp("plain"))
    try:
        return run_job(world, "without")[0]["digest"]
    finally:
        world.close()


def names(marks):
    return [m["name"] for m in marks]


ALLREDUCE = '{"count": "1780","streamId": "0","dataType": "fp32","groupName": "default_group","opName": "HcclAllreduce"}'
EXPECTED_COLLECTIVES = [  # of rank 0; group "1" is the one that the job makes
    ("HcclAllreduce", "6", "fp32", "1"), ("HcclAllreduce", "7", "int64"), ("HcclAllreduce", "8", "fp32"),
    ("HcclAllGather", "2", "fp64"), ("HcclBroadcast", "3", "fp32"), ("HcclReduce", "3", "fp32"), ("HcclScatter", "4", "fp32"),
    ("HcclGather", "5", "fp32"), ("HcclBarrier", "0", "na"), ("HcclSend", "9", "fp32"), ("HcclSend", "10", "fp32"),
    ("HcclBatchSendRecv", "22", "fp32"),
]
EXPECTED_LOCAL = {
    "a model": ["forward"], "in evaluation": [], "a part of it, computed again": [], "traced": ["forward"],
    "saved in a save": ["save_checkpoint"], "saved as safetensors": ["save_checkpoint"], "an error": ["forward"], "after the error": ["forward"],
    "another thread": ["forward"], "step of the second in the same iteration": [],
    "step of the second once": [], "step of a child once": [], "step by the program": ["step 100"],
    "step by the program, next": ["step 101"], "step of an optimizer after that": [],
    "step by the program as a context": ["step 102"], "step that is none": [], "after disable": [], "enabled again": ["forward"],
}


def test_everything(world, plain_digest):
    results = run_job(world, "everything")
    assert results[0]["digest"] == plain_digest, "the marks change what is computed"
    for result in results:
        train = result["train"]
        assert result["instants"] == ["steps are over"], "the data has come to its end once"
        assert result["instants after evaluation"] == ["steps are over"], "its batches may be taken for a step's"
        assert result["instants after groups"] == ["steps are over"] * 2
        assert [n for n in names(train) if n.startswith("step ")] == [f"step {n}" for n in range(7)]
        assert names(train).count("forward") == 6
        assert names(train).count("dataloader") == 7  # the last one finds no more data
        assert names(train).count(ALLREDUCE) == 6
        assert [m["name"] for m in train if m["open"]] == ["step 6"], "a range has no end"
        assert names(train)[:4] == ["step 0", "dataloader", "forward", ALLREDUCE]
        for mark in train:
            communication = mark["name"].startswith("{")
            assert (mark["domain"], bool(mark["stream"])) == (("communication", True) if communication else (None, False))

    assert not any(m["open"] for r in results for m in r["collectives"])
    for mark in results[0]["collectives"]:
        assert len(mark["name"].encode()) <= 254
    decoded = [[json.loads(n) for n in names(r["collectives"]) if n.startswith("{")] for r in results]
    assert all(isinstance(v, str) for rank in decoded for d in rank for v in d.values())
    found = [(d["opName"], d["count"], d["dataType"]) for d in decoded[0]]
    assert found == [e[:3] for e in EXPECTED_COLLECTIVES]
    assert [d["groupName"] for d in decoded[0]] == ["1"] + ["default_group"] * 11
    by_count = [{d["count"]: (d["opName"], d["srcRank"], d["destRank"]) for d in rank if "srcRank" in d} for rank in decoded]
    assert by_count[0] == {"9": ("HcclSend", "0", "1"), "10": ("HcclSend", "0", "1")}
    assert by_count[1] == {"9": ("HcclRecv", "0", "1"), "10": ("HcclRecv", "-1", "1")}
    assert names(results[0]["collectives"])[-1] == "save_checkpoint"

    local = results[0]["local"]
    counts = {case: sum(name.startswith("step ") for name in found) for case, found in local.items() if case.startswith("steps ")}
    assert counts == {"steps of optimizers that take turns, a batch each": 8, "steps of optimizers that both step in each batch": 8,
                      "steps of a scaler": 3, "steps of batches": 9, "steps of forwards": 5}
    assert {k: local[k] for k in EXPECTED_LOCAL} == EXPECTED_LOCAL
    for case in ("step of the first again", "step of the second twice: it counts now", "step of a child twice: it counts now"):
        assert len(local[case]) == 1 and re.fullmatch(r"step \d+", local[case][0]), (case, local[case])


def test_off_marks_nothing_and_changes_nothing(world, plain_digest):
    for result in run_job(world, "off"):
        assert result["train"] == [] and result["digest"] == plain_digest


@pytest.mark.parametrize("case", ["bucket_view", "own_hook", "cpp_hook", "static_graph"])
def test_data_parallel_variants(world, plain_digest, case):
    for result in run_job(world, case):
        # The hook in C++ divides after the sum, the others before it.
        assert result["digest"] == (run_job(world, "cpp_hook_without")[0]["digest"] if case == "cpp_hook" else plain_digest)
        assert names(result["train"]).count(ALLREDUCE) == 6
        assert [m["name"] for m in result["train"] if m["open"]] == ["step 6"], "a range has no end"


def test_dataloader_workers(world, plain_digest):
    for result in run_job(world, "on", LOADERS="2"):
        assert result["digest"] == plain_digest and names(result["train"]).count("dataloader") == 7


def test_ways_in(world):
    script = world.write("train.py", "import sys, torch\nprint('ARGS', sys.argv[1:], __name__, torch.save.__taskd_hook__)\n")
    modules = {"PYTHONPATH": os.pathsep.join([os.path.dirname(script), world.environment["PYTHONPATH"]])}
    for command, environment in (((sys.executable, "-m", "taskd.torch", script, "--lr", "1"), {}),
                                 ((sys.executable, "-m", "taskd.torch", "-m", "train", "--lr", "1"), modules),
                                 ((sys.executable, "-c", f"import taskd, runpy, sys\nsys.argv[1:] = ['--lr', '1']\n"
                                   f"runpy.run_path({script!r}, run_name='__main__')"), {"TASKD_TORCH": "1"})):
        before = len(world.output()) if os.path.exists(world.path("output")) else 0
        assert wait_child(world.start(*command, **environment), 60) == 0, world.output()
        assert "ARGS ['--lr', '1'] __main__ True" in world.output()[before:]


# The interpreter's end meets work under way: what a thread does then in C++ would end the process by an abort.
WAITER_AT_EXIT = """
import os, sys, threading
from taskd.torch import _waiter

_waiter.END_WAIT_S = 1

class Work:
    def wait(self):
        while sys.argv[1] == "never" or os.path.exists("busy"):
            threading.Event().wait(0.01)

open("busy", "w").close()
_waiter.when_done(Work(), lambda: print("done"), lambda error: print("failed", error))
if sys.argv[1] == "soon":
    threading.Timer(0.2, os.unlink, ["busy"]).start()
print("main ends")
"""


@pytest.mark.parametrize("case,lines", [("soon", ["main ends", "done"]), ("never", ["main ends"])])
def test_the_waiter_ends_before_the_interpreter(world, case, lines):
    assert world.run(WAITER_AT_EXIT, case).splitlines() == lines


# A Python object in a thread of gloo, such as a callback on the future of its Work, ends the program by an abort ("terminate
# called without an active exception") when that thread needs the GIL while the interpreter ends: CPython 3.11 then ends the
# thread by unwinding it, through C++ that must not be unwound. So the marks put none there.
UNDER_WAY_AT_EXIT = """
import ctypes, os, sys, time
if sys.argv[1] == "marked":
    import taskd.torch
    from taskd.torch import _gate
    taskd.torch.enable()
import torch, torch.distributed as dist
if sys.argv[1] == "marked":
    _gate.kinds = lambda: 0x3F

def wait_for(name, exists=os.path.exists, sleep=time.sleep):
    while not exists(name):
        sleep(0.01)

class AtTheEnd:  # the interpreter is on its way out when it clears this module
    def __del__(self, wait_for=wait_for, open=open, sleep=time.sleep):
        open("ending", "w").close()
        wait_for("joined")
        sleep(0.2)

dist.init_process_group("gloo")
group = dist.distributed_c10d._get_default_group()
ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))  # or its end would wait for the work
dist.barrier()
if dist.get_rank() == 1:
    wait_for("ending")
    dist.all_reduce(torch.ones(4))
    open("joined", "w").close()
    os._exit(0)
work = dist.all_reduce(torch.ones(4), async_op=True)
if sys.argv[1] == "callback":
    work.get_future().then(repr)  # no function of this module, which would keep it from being cleared
at_the_end = AtTheEnd()
"""


@pytest.mark.parametrize("case", ["marked", "callback"])
def test_work_under_way_when_the_interpreter_ends(world, case):
    port = str(ports.free_port())
    ranks = [world.python(UNDER_WAY_AT_EXIT, case, RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                          MASTER_PORT=port, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1") for r in (0, 1)]
    codes = [wait_child(rank, 120) for rank in ranks]
    if case == "callback":
        if codes[0] == 0:
            pytest.skip("this Python ends threads in another way")
        assert "terminate called without an active exception" in world.output()
    else:
        assert codes == [0, 0], world.output()
