"""NCCL's operations in a program without a framework, into the files of a real proxy: by the profiler plugin where NCCL has
one, else by its C functions. Once each, either way.

tests/e2e/nccl_rank_main.cc is the program; NCCL is the tests' own, in two releases.
"""
import collections
import json
import os

import harness
import pytest
from harness import BUILD, LIBRARY, clean_environment, wait_until

PROGRAM = os.path.join(BUILD, "tests", "e2e_nccl_rank")
PLUGIN = os.path.join(BUILD, "lib", "libnccl-profiler-taskd.so")
OLD_NCCL = os.path.join(BUILD, "tests", "fake_old_nccl")
OPERATIONS = {"ncclAllReduce": 20, "ncclSend": 20, "ncclRecv": 20}


def run(stage, manager, proxy, old, plugin=PLUGIN, marks=True):
    """Runs both ranks, with what `taskd run` sets for them. The operations of each, as its marks say them."""
    ranks = [harness.Process(f"nccl-rank{rank}", [PROGRAM], clean_environment(
        LD_PRELOAD=LIBRARY, NCCL_PROFILER_PLUGIN=plugin, LD_LIBRARY_PATH=OLD_NCCL if old else None, RANK=rank, WORLD_SIZE=2,
        TASKD_SOCKET=proxy.socket), stage.folder) for rank in (0, 1)]
    stage.processes += ranks
    for rank in ranks:
        wait_until(lambda rank=rank: rank.require_alive() and "sum of the results: 0\n" in rank.log(), f"{rank.name} is done")
    if marks:  # without one a rank does nothing at all
        manager.wait_attached([0, 1])
        wait_until(lambda: all(proxy.counts(rank)["communication"] == sum(OPERATIONS.values()) for rank in (0, 1)),
                   "all operations are in the files")
    for rank in ranks:
        assert rank.terminate() == 0, rank.log()
    assert proxy.terminate() == 0
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    assert not any(rank.open_ranges for rank in report.ranks.values())
    return {number: [json.loads(m.name) for m in rank.marks if m.domain == "communication"]
            for number, rank in report.ranks.items()}


@pytest.mark.parametrize("old, group", [(True, "nccl:"), (False, "fake:")], ids=["functions", "plugin"])
def test_each_operation_once(stage, manager, recording, proxy, old, group):
    found = run(stage, manager, proxy, old)
    for rank in (0, 1):
        assert collections.Counter(o["opName"] for o in found[rank]) == OPERATIONS
        assert {(o["ranks"], o["rank"]) for o in found[rank]} == {("2", str(rank))}
    names = {o["groupName"] for rank in (0, 1) for o in found[rank]}
    assert len(names) == 1 and names.pop().startswith(group)


def test_what_the_functions_are_called_with(stage, manager, recording, proxy):
    found = run(stage, manager, proxy, old=True)
    for rank in (0, 1):
        sizes = {(o["opName"], o["count"], o["dataType"]) for o in found[rank]}
        assert sizes == {("ncclAllReduce", "4096", "bfp16"), ("ncclSend", "1024", "fp32"), ("ncclRecv", "1024", "fp32")}
        ends = {(o["opName"], o["srcRank"], o["destRank"]) for o in found[rank] if "srcRank" in o}
        assert ends == {("ncclSend", str(rank), str(1 - rank)), ("ncclRecv", str(1 - rank), str(rank))}


def test_kept_out(stage, manager, recording, proxy):
    assert not any(run(stage, manager, proxy, old=True, plugin="none", marks=False).values())
