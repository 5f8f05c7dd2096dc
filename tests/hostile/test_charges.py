"""What one peer makes others hold is charged to it: groups of a few bytes that stand for all ranks of a job, words that change for
ever, a limit for files that others have. docs/security-model.md has the table."""
import os

import harness
import pytest
import stubs
from folded_job import RANKS, NodeStream, report_of
from harness import peak_bytes, wait_until

MIB = 1 << 20
MAX_RANKS = 131072


@pytest.fixture
def connect(manager):
    nodes = []

    def one(node, ranks):
        nodes.append(NodeStream(manager, node, ranks))
        return nodes[-1]

    yield one
    for node in nodes:
        node.close()


def is_ok(manager):
    return report_of(manager).state == stubs.diagnosis()[0].DiagnosisReport.OK


def notes(manager):
    return "\n".join(note.text for note in report_of(manager).notes)


@pytest.mark.parametrize("ranks", [range(RANKS, RANKS + 21), range(RANKS, RANKS + 7)], ids=["78_KiB", "27_KiB"])
def test_groups_take_what_they_are_not_what_they_stand_for(manager, connect, ranks, job):
    """A node's word of 78 KiB: 5,376 groups, each a run of all ranks that there can be."""
    job.run(20)
    wait_until(lambda: is_ok(manager), "the job is well")
    before = peak_bytes(manager)
    hostile = connect(7, ranks)
    hostile.send(groups={rank: [hostile.group(f"{rank:x}{i:x}", (0, 1, MAX_RANKS), label="tp") for i in range(256)] for rank in ranks})
    assert hostile.sent_bytes < len(ranks) * 256 * 20
    wait_until(lambda: f"members of groups of rank {ranks[0]}-{ranks[-1]} are not used" in notes(manager), "it is noted")
    job.run(40)
    wait_until(lambda: report_of(manager).last_step >= 58, "the job goes on")
    assert peak_bytes(manager) - before < 64 * MIB


def test_words_that_change_for_ever_are_forgotten(manager, connect, job):
    """A rank that has other groups each time: 1,000 times eight, each of all ranks that there can be."""
    job.run(20)
    hostile = connect(7, [RANKS])
    before = peak_bytes(manager)
    for word in range(1000):
        hostile.send(groups={RANKS: [hostile.group(f"{word}.{i}", (0, 1, MAX_RANKS)) for i in range(8)]})
    hostile.send(groups={RANKS: [hostile.group("last", (0, 1, 1), (-1, 1, 1))]})
    wait_until(lambda: f"members of groups of rank {RANKS} are not used" in notes(manager), "all words were heard")
    job.run(20)
    assert peak_bytes(manager) - before < 64 * MIB
    # It leaves, and nothing of it stays: what it said of all ranks keeps nobody from being well.
    hostile.close()
    wait_until(lambda: "are not used" not in notes(manager), "it is forgotten", 60, 0.5)


@pytest.mark.parametrize("run", [(-2147483648, 1, 1), (-1, 1, 2), (MAX_RANKS, 1, 1), (2147483647, 1, 1), (0, 1, MAX_RANKS + 1)],
                         ids=["least", "minus_one", "one_too_high", "highest", "one_too_many"])
def test_a_member_that_is_no_rank_keeps_no_job_from_being_ok(manager, connect, run, job):
    node = job.nodes[0]
    node.send(groups={0: [node.group("world", (0, 1, RANKS)), node.group("more", run)]})
    job.run(40)
    wait_until(lambda: is_ok(manager), "the job is well")
    text = notes(manager)
    assert "members of groups of rank 0 are not used: one is no rank (0 to 131071)" in text
    assert "no marks of rank" not in text
    node.send(groups={0: [node.group("world", (0, 1, RANKS))]})
    wait_until(lambda: "are not used" not in notes(manager), "the rank has another word")


GROUPS_PY = """
import json, os, sys, time
from taskd.api.taskd_worker_api import init_taskd_worker
from taskd import mstx
rank, folder, words = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
assert init_taskd_worker(rank)
names = [f"g{i}" for i in range(24)]
members = list(range(65536))
step = word = 0
changed = 0
while True:
    if word < words and time.monotonic() >= changed:
        # Other members each time, of half of the ranks that there can be.
        ranks = members[word:] + members[:word]
        text = json.dumps({name: {"group_name": "tp", "group_rank": 0, "global_ranks": ranks} for name in names})
        with open(os.path.join(folder, "new"), "w") as file:
            file.write(text)
        os.rename(os.path.join(folder, "new"), os.path.join(folder, "parallel_group.json"))
        word, changed = word + 1, time.monotonic() + 5.5
        print("word", word, flush=True)
    number = mstx.range_start(f"step {step}", None, "default")
    for name in names:
        text = json.dumps({"count": "1024", "streamId": "0", "dataType": "fp32", "groupName": name, "opName": "HcclAllreduce"})
        mstx.range_end(mstx.range_start(text, None, "communication"))
    time.sleep(0.02)
    mstx.range_end(number)
    step += 1
"""


def test_a_rank_that_rewrites_its_groups(stage, manager, recording, proxy):
    """It has no secret: a file beside its marks, 24 groups of 65,536 members, other ones every time that the proxy looks."""
    folder = os.path.join(proxy.task_dir, "0")
    os.makedirs(folder)
    rank = stage.python("groups_py", GROUPS_PY, {"LD_PRELOAD": harness.LIBRARY, "TASKD_SOCKET": proxy.socket}, "0", folder, "5")
    wait_until(lambda: "word 2" in rank.log() and "members of groups of rank 0 are not used" in notes(manager), "it is noted", 60)
    before = {process: peak_bytes(process) for process in (manager, proxy)}
    wait_until(lambda: rank.require_alive() and "word 5" in rank.log(), "it has changed its groups", 60)
    seen = report_of(manager).last_step
    wait_until(lambda: report_of(manager).last_step > seen + 300, "the proxy has read the last one", 60)
    for process, peak in before.items():
        assert peak_bytes(process) - peak < 16 * MIB, process.name
        assert peak_bytes(process) < 160 * MIB, process.name


LIMIT_PY = """
import sys, time
from taskd.api.taskd_worker_api import init_taskd_worker
from taskd import mstx
assert init_taskd_worker(int(sys.argv[1]), int(sys.argv[2]))
while True:
    mstx.range_end(mstx.range_start("a moment"))
    time.sleep(0.01)
"""


def mark_files(folder):
    return {name for name in os.listdir(folder) if name.isdigit()}


def test_a_ranks_disk_limit_costs_its_own_files_only(stage, manager, recording, proxy):
    """init_taskd_worker(1, 1) of one rank: a limit of 1 MB. Each folder has 4 MB, the oldest of all those of the others."""
    folders = [os.path.join(proxy.profiling_dir, task, rank) for task in (proxy.task, "another_job") for rank in ("0", "1", "2")]
    for number, folder in enumerate(folders):
        os.makedirs(folder)
        for i in range(4):
            path = os.path.join(folder, f"160000000{i}")
            with open(path, "wb") as file:
                file.truncate(MIB)
            age = 1_500_000_000 if folder == folders[1] else 1_400_000_000 + number
            os.utime(path, (age + i,) * 2)
    before = [mark_files(folder) for folder in folders]
    for rank, limit in (("0", "5000"), ("1", "1"), ("2", "0")):
        stage.python(f"limit{rank}_py", LIMIT_PY, {"LD_PRELOAD": harness.LIBRARY, "TASKD_SOCKET": proxy.socket}, rank, limit)
    wait_until(lambda: not before[1] & mark_files(folders[1]), "its own old files have gone", 65, 0.2)
    wait_until(lambda: "of ranks that asked for a limit of their own" in proxy.log(), "it is said", 65, 0.2)
    for folder, files in zip(folders, before):
        if folder != folders[1]:
            assert files <= mark_files(folder), folder
    assert mark_files(folders[1]), "what it writes now stays"
