"""Arrays, requeues and ends of `taskd run` under a real Slurm, one launcher a node."""
import json
import os
import re
import signal
import time

import pytest

import slurm_rig
from deadlines import wait_child, wait_until
from harness import PYTHON
from slurm_ranks import LINE, ended_themselves, errors_of_taskd, go, lines_of_taskd, one_world, ranks, read, wait_output, wait_up

pytestmark = pytest.mark.timeout(300)  # a scheduler has waits of its own

QUEUED_S = 2  # a requeued job is not allowed to begin for that long


def begin_now(rig, number):
    """What is requeued would wait two minutes."""
    rig.wait_for_state(number, "PENDING")
    assert rig.login(["scontrol", "update", f"JobId={number}", "StartTime=now"]).returncode == 0


def test_an_array_whose_tasks_share_an_id_and_a_port(rig):
    """The tasks of a user who did not think of them: one trains, the other says why it does not."""
    number = rig.batch("#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=1 --array=0-1 --output=array-%a.out\n"
                       "srun taskd run --nnodes 2 --rdzv-id same --rdzv-backend c10d --rdzv-endpoint n1:29555 train.py wait\n"
                       "echo code $?\n")
    wait_up(rig, "go", 2)

    def refused():
        texts = [read(rig, f"array-{task}.out") for task in (0, 1)]
        return [text for text in texts if "the job is complete: it runs on 2 of 2 nodes" in text and "code 1" in text]
    wait_until(refused, "one of the tasks is refused", 60)
    go(rig)
    rig.wait_for_state(number, "COMPLETED")
    trained = LINE.findall("".join(read(rig, f"array-{task}.out") for task in (0, 1)))
    assert sorted((rank, world, run_id) for rank, world, _, _, run_id, _ in trained) == [("0", "2", "same"), ("1", "2", "same")]


def test_array_tasks_are_jobs_of_their_own(rig):
    number = rig.batch("#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=1 --array=3,5 --output=array-%a.out\nsrun taskd run train.py\n")
    rig.wait_for_state(number, "COMPLETED")
    for task in (3, 5):
        wait_until(lambda task=task: len(LINE.findall(read(rig, f"array-{task}.out"))) == 2, f"task {task} has trained")
        text = read(rig, f"array-{task}.out")
        one_world(text, 2)
        assert f"slurm-{number}_{task}.0.0" in text


def test_requeue_begins_a_new_rendezvous(rig):
    number = rig.batch("#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=1 --requeue --open-mode=append\nsrun taskd run train.py wait\n")
    wait_up(rig, "go", 2)
    assert rig.login(["scontrol", "requeue", number]).returncode == 0
    begin_now(rig, number)
    wait_until(lambda: len([one for one in os.listdir(rig.work) if f".slurm-{number}.0.1." in one]) == 2, "it runs again", 120)
    go(rig)
    rig.wait_for_state(number, "COMPLETED", timeout_s=120)
    assert set(ranks(rig.output(number))[0]) == {f"slurm-{number}.0.0", f"slurm-{number}.0.1"}


def test_a_requeued_job_has_one_ledger(rig):
    """In a folder that all nodes share; the next attempt's manager may be on another one."""
    number = rig.batch("#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=1 --requeue --open-mode=append\n"
                       "srun taskd run --ledger ledger train.py wait\n")
    wait_up(rig, "go", 2)
    ordered = time.monotonic()
    assert rig.login(["scontrol", "requeue", number]).returncode == 0
    rig.wait_for_state(number, "PENDING")
    rig.wait_idle()
    ended = time.monotonic()
    time.sleep(QUEUED_S)
    allowed = time.monotonic()
    begin_now(rig, number)
    wait_until(lambda: len([one for one in os.listdir(rig.work) if f".slurm-{number}.0.1." in one]) == 2, "it runs again", 120)
    runs = time.monotonic()
    go(rig)
    rig.wait_for_state(number, "COMPLETED", timeout_s=120)
    done = rig.login(["taskd", "goodput", "--ledger", "ledger", "--json"])
    assert done.returncode == 0, done.stderr
    ledger = json.loads(done.stdout)
    assert ledger["job"].endswith(f"-{number}") and ledger["slots"] == 2
    assert re.fullmatch(r"code 143: node [01] \(n[12]\) left: SIGTERM", ledger["attempts"][0]["outcome"])
    assert [a["outcome"] for a in ledger["attempts"][1:]] == ["ended"]
    assert [i["kind"] for i in ledger["incidents"]] == ["eviction"]
    # Two ranks are in the queue from an event between `ordered` and `ended` to one between `allowed` and `runs`.
    assert 2 * (allowed - ended) <= ledger["seconds"]["queue"] <= 2 * (runs - ordered)
    assert re.search(r"^ *queue ", rig.login(["taskd", "goodput", "--ledger", "ledger"]).stdout, re.M)


def test_preemption_requeues(rig):
    number = rig.batch("#!/bin/bash\n#SBATCH -N4 --ntasks-per-node=1 --exclusive --requeue --open-mode=append\nsrun taskd run train.py wait\n")
    wait_up(rig, "go", 4)
    urgent = rig.login(["srun", "-p", "urgent", "-N4", "--exclusive", "taskd", "run", "train.py"])
    assert urgent.returncode == 0, urgent.stderr
    one_world(urgent.stdout, 4)
    begin_now(rig, number)
    wait_until(lambda: any(f".slurm-{number}.0.1." in one for one in os.listdir(rig.work)), "the preempted job runs again", 180)
    go(rig)
    rig.wait_for_state(number, "COMPLETED", timeout_s=120)


def test_scancel_ends_everything(rig):
    child = rig.start(["srun", "-N3", "taskd", "run", "--nproc-per-node", "2", "train.py", "wait"])
    number = wait_output(child, 6)[3].rpartition("-")[2]
    assert rig.login(["scancel", number]).returncode == 0
    assert wait_child(child, 60) == 143
    ended_themselves(slurm_rig.output_of(child)[1], 3)
    rig.wait_idle()


@pytest.mark.parametrize("mode, tasks", [([], 2), (["--mode", "slurm", "--", PYTHON], 4)])
def test_deaf_ranks_are_ended_before_slurm_ends_their_launchers(rig, mode, tasks):
    """The shutdown time-out is less than KillWait: each launcher has its last word, and ends with its own code."""
    child = rig.start(["srun", "-N2", f"--ntasks-per-node={tasks // 2}", "taskd", "run", *mode, "train.py", "wait", "stubborn"],
                      environment={"TASKD_SHUTDOWN_TIMEOUT": "5"})
    number = wait_output(child, tasks)[3].rpartition("-")[2]
    assert rig.login(["scancel", number]).returncode == 0
    assert wait_child(child, 60) == 143
    text = slurm_rig.output_of(child)[1]
    ended_themselves(text, tasks)
    assert sum("SIGTERM: the job is ended" in line for line in lines_of_taskd(text)) == (1 if mode else 2), text
    assert all(read(rig, f"go.signal-{signal.SIGTERM:d}.{rank}") for rank in range(tasks)), "they were told"
    rig.wait_idle()


def test_each_signal_comes_once_to_each_rank(rig):
    """slurmstepd signals every process of the step; the launcher does not do it again, and says one line a node at the end."""
    child = rig.start(["srun", "-N2", "taskd", "run", "--nproc-per-node", "2", "train.py", "wait"])
    number = wait_output(child, 4)[3].rpartition("-")[2]
    wait_up(rig, "go", 4)

    def got():
        return [read(rig, f"go.signal-{signal.SIGUSR1:d}.{rank}") for rank in range(4)]
    for how, count in ((number, 1), (f"{number}.0", 2)):
        assert rig.login(["scancel", "--signal=USR1", how]).returncode == 0
        wait_until(lambda count=count: got() == ["x" * count] * 4, f"each rank has had SIGUSR1 {count} times")
    # Ranks write "x" for each one until they end: by then whoever would pass it on has done so.
    assert rig.login(["scancel", number]).returncode == 0
    assert wait_child(child, 60) == 143
    assert got() == ["xx"] * 4
    text = slurm_rig.output_of(child)[1]
    of_signals = [line for line in lines_of_taskd(text) if "SIG" in line]
    assert len(of_signals) == 2 and all(line.endswith("SIGTERM: the job is ended") for line in of_signals), text
    assert not errors_of_taskd(text), text
    rig.wait_idle()


@pytest.mark.slow
def test_a_time_limit_that_expires(rig):
    """Slurm's smallest is a minute. The checkpoint's signal comes before it, each signal once to each rank, and nothing is left."""
    number = rig.batch("#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=1 --time=1 --signal=USR1@20\nsrun taskd run --nproc-per-node 2 train.py wait\n")
    wait_up(rig, "go", 4)
    rig.wait_for_state(number, "TIMEOUT", timeout_s=180)
    rig.wait_idle()
    for signal_number in (signal.SIGUSR1, signal.SIGTERM):
        assert [read(rig, f"go.signal-{signal_number:d}.{rank}") for rank in range(4)] == ["x"] * 4, signal_number


def test_the_first_failures_code(rig):
    done = rig.login(["srun", "-N2", "taskd", "run", "train.py", "fail"])
    assert done.returncode == 7
