"""One rank, without any secret, says odd steps, or that it is another rank: whoever is slow is named all the same."""
import glob
import json
import re

import pytest
import stubs
from folded_job import RANKS, names, report_of
from harness import peak_bytes, wait_until

SLOW = {7: 1.61}
ODD = 4611686018427387904
# Marks the steps that it is told to, one a line, and says so.
MARKS = r"""
import signal
import sys
from taskd.api.taskd_worker_api import init_taskd_worker, start_taskd_worker
from taskd import mstx
assert init_taskd_worker(int(sys.argv[1]), 5000) and start_taskd_worker()
for line in open(sys.argv[2]):
    mstx.range_end(mstx.range_start(line.rstrip("\n")))
print("marked", flush=True)
signal.pause()
"""


def notes(manager):
    return [note.text for note in report_of(manager).notes]


def marking_rank(stage, proxy, rank, marks):
    """A process that has marked `marks`, and lives."""
    path = f"{stage.folder}/marks-{rank}-{proxy.name}"
    with open(path, "w", encoding="utf-8") as file:
        file.write("".join(f"{mark}\n" for mark in marks))
    process = stage.python(f"rank{rank}-{proxy.name}", MARKS, {"TASKD_SOCKET": proxy.socket, "RANK": rank}, str(rank), path)
    wait_until(lambda: "marked" in process.log(), f"rank {rank} has marked")
    return process


def names_rank_7(manager, job):
    job.slow = SLOW
    job.run(60)
    wait_until(lambda: names(manager, 7), "rank 7, slow by 61 %, is named")
    wait_until(lambda: report_of(manager).last_step == job.step - 1, "the newest step is judged")


@pytest.mark.parametrize("step", [ODD, 2**63 - 1, -1])
def test_one_mark_of_a_rank(stage, manager, recording, job, step):
    """By a real rank and proxy: the job's ninth."""
    proxy = stage.proxy(manager, node=2)
    job.run(60)
    marking_rank(stage, proxy, RANKS, ["step 0", "step 1", f"step {step}"])
    wait_until(lambda: sum(manager.rank_status()[RANKS]["marks"].values()) == 3, "its marks are there")
    job.run(140)
    names_rank_7(manager, job)
    assert report_of(manager).last_step < 10_000
    if step == ODD:
        assert any(note.startswith(f"rank {RANKS} says step {ODD}, the others are at step ") for note in notes(manager))


@pytest.mark.parametrize("step", [ODD, 2**63 - 1, -1, -(2**63)])
def test_one_fold_of_a_rank(manager, job, step):
    """As a proxy sends it, of a rank that takes part."""
    job.run(60)
    fold = job._fold(job.nodes[0], 3, 80_000_000, 100_000_000)
    fold.step = step
    job.nodes[0].send([fold])
    job.run(140)
    ok = stubs.diagnosis()[0].DiagnosisReport.OK
    wait_until(lambda: report_of(manager).state == ok, "the job is well")
    names_rank_7(manager, job)


def test_a_rank_that_goes_on_with_odd_steps(manager, job):
    """It is not judged, so the job is not called well; the others are judged."""
    job.run(60)
    for i in range(140):
        fold = job._fold(job.nodes[0], 3, 80_000_000, 100_000_000)
        fold.step = ODD + i
        job.nodes[0].send([fold])
        job.run(1, without={3})
    unknown = stubs.diagnosis()[0].DiagnosisReport.UNKNOWN
    wait_until(lambda: report_of(manager).state == unknown, "rank 3 is not judged")
    assert any(re.match(r"rank 3 says step 46116860184273\d+, the others are at step \d+: its names are not used", note)
               for note in notes(manager))
    names_rank_7(manager, job)


def test_a_process_on_another_node_that_says_it_is_rank_7(stage, manager, recording, job):
    proxy = stage.proxy(manager, node=5)
    job.run(60)
    marking_rank(stage, proxy, 7, [f"step {step}" for step in range(1000)])
    said = wait_until(lambda: next((note for note in notes(manager) if note.startswith("rank 7 is reported by node 1 ")), None),
                      "a note names both")
    assert "(pod-1) and by node 5 (" in said and said.endswith("is not used")
    job.run(140)
    names_rank_7(manager, job)
    assert [node["node"] for node in manager.status()["nodes"] for rank in node["ranks"]
            if rank["rank"] == 7 and rank["attached"]] == [1]
    job.nodes[1].close()
    wait_until(lambda: not any("rank 7 is reported" in note for note in notes(manager)), "its node has gone: node 5 has the rank")


@pytest.mark.parametrize("step", [ODD, 2**63 - 1, -1])
def test_one_mark_in_the_files_of_a_rank(stage, step):
    folder = f"{stage.folder}/marks"
    made = stage.run("simulate", "--dp", "17", "--steps", "120", "--fault", "compute:7:1.61@60", "--out", folder, timeout_s=120)
    assert made.returncode == 0, made.stderr
    [path] = glob.glob(f"{folder}/3/[0-9]*")
    with open(path, encoding="utf-8") as file:
        marks = file.read()
    assert marks.count('"Name":"step 20"') == 1
    with open(path, "w", encoding="utf-8") as file:
        file.write(marks.replace('"Name":"step 20"', f'"Name":"step {step}"'))
    done = stage.run("diagnose", "--from", folder, "--json", timeout_s=120)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [(verdict["scope"], verdict["ids"]) for verdict in report["verdicts"]] == [("rank", [7])]
    assert report["steps"]["last"] == 119, report["steps"]


def test_one_step_again_and_again_takes_no_memory(manager, job):
    job.run(60)
    fold = job._fold(job.nodes[0], 3, 80_000_000, 100_000_000)
    fold.step = job.step + 3
    fold.ops.extend([0, 1, -1, 27, 1, 1 << 27, 0, 0, 0, 0, 0, 0, 0, 0, 0] * 39)
    before = peak_bytes(manager)
    for _ in range(150):
        job.nodes[0].send([fold] * 100)
        job.run(1)
    names_rank_7(manager, job)
    assert peak_bytes(manager) - before < 100 << 20
