"""A PyTorch training that hangs under `taskd run`: what NCCL's RAS and the dumps of flight recorders say of it is in the answer. The
training uses gloo, which has neither: a server and files of the test's own stand for them."""
import json
import os
import socket
import threading
import time
import urllib.request

import pytest

import harness
from deadlines import HANG_S
from flight_dumps import WORLD, HungJob
from launchers import Jobs, wait_log
from ras_answers import RasJob

pytestmark = pytest.mark.timeout(300)
NOTICED_S = 120  # 30 s pass before a hang is one, and its evidence comes some seconds later
RANKS = 4

# Steps with an all-reduce; once there is a file "hang" rank 2 does not come to it any more.
RANK = r"""
import os, sys, threading, time
import torch, torch.distributed as dist
from taskd import mstx
dist.init_process_group("gloo")
rank = dist.get_rank()
with open(os.path.join(sys.argv[1], f"pid.{rank}"), "w") as file:
    file.write(str(os.getpid()))
for step in range(10_000):
    mark = mstx.range_start(f"step {step}")
    if rank == 2 and os.path.exists(os.path.join(sys.argv[1], "hang")):
        threading.Event().wait()
    dist.all_reduce(torch.ones(4))
    time.sleep(0.05)
    mstx.range_end(mark)
"""


class Ras:
    """Listens as NCCL's RAS does. `answer`: gives what is said to STATUS; None: nothing is ever said."""

    def __init__(self, answer):
        self.answer, self.asked, self.questions = answer, 0, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.asked += 1
            threading.Thread(target=self.speak, args=(connection,), daemon=True).start()

    def speak(self, connection):
        with connection, connection.makefile("rw", encoding="utf-8", newline="\n") as lines:
            for line in lines:
                if self.answer is None:
                    continue
                self.questions.append(line.rstrip("\n"))
                if line.startswith("STATUS"):
                    lines.write(self.answer())
                    return
                lines.write("SERVER PROTOCOL 2\n" if line.startswith("CLIENT") else "OK\n")
                lines.flush()


class Training:
    """Two nodes of two ranks each, on one machine."""

    def __init__(self, stage, manager, ras, *options):
        self.stage, self.manager, self.jobs = stage, manager, Jobs(stage)
        self.dumps = os.path.join(stage.folder, "dumps")
        os.makedirs(self.dumps)
        script = os.path.join(stage.folder, "hangs.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(RANK)
        port = harness.free_port()
        environment = {"TASKD_MANAGER": manager.address, "TASKD_LISTEN": "127.0.0.1:0", "PYTHONPATH": harness.PYTHON_PACKAGE,
                       "TASKD_PROFILING_DIR": os.path.join(stage.folder, "profiling"),
                       "TORCH_FR_DUMP_TEMP_FILE": os.path.join(self.dumps, "rank_"), "NCCL_RAS_ADDR": ras.address}
        self.launchers = [self.jobs.static(node, port, *options, script=script, script_arguments=(self.jobs.folder,),
                                           environment=environment) for node in range(2)]
        manager.wait_stepping(range(RANKS), 100, NOTICED_S)
        self.jobs.put("hang")

    def pids(self):
        pids = {}
        for rank in range(RANKS):
            with open(os.path.join(self.jobs.folder, f"pid.{rank}"), encoding="utf-8") as file:
                pids[rank] = int(file.read())
        return pids

    def hang(self):
        for launcher in self.launchers:
            launcher.require_alive()
        with urllib.request.urlopen(f"http://{self.manager.http}/api/v1/hang", timeout=HANG_S) as answer:
            return json.load(answer)["hang"]

    def await_hang(self, what, condition, timeout_s=NOTICED_S):
        """The answer, once `condition` of it."""
        def known():
            hang = self.hang()
            return hang if hang is not None and condition(hang) else None
        return harness.wait_until(known, what, timeout_s, interval_s=0.2)


def dumps_without(rank):
    """Of a job in which all ranks but this one have entered the last all-reduce."""
    job = HungJob(RANKS)
    job.all_do((WORLD, "all_reduce", (4,)), (WORLD, "all_reduce", (4,)))
    del job.programs[rank][-1]
    job.start_ns = time.time_ns()
    return job


def test_ras_and_dumps_say_who_never_came(stage, manager, tmp_path):
    manager.all_on()
    answers = []

    def answer():
        job = RasJob(RANKS)
        pids = training.pids()
        job._process = lambda rank: {"host": "127.0.0.1", "pid": pids[rank], "cuda_dev": rank, "nvml_dev": rank}
        for rank in set(range(RANKS)) - {2}:
            job.counts["0x5111", rank] = {"AllReduce": 8, "AllGather": 3}
        answers.append(job)
        return job.answer(f"2026-06-19 06:51:{len(answers):02}")
    ras = Ras(answer)
    training = Training(stage, manager, ras)
    # Left from an earlier hang, in which rank 1 never came.
    dumps_without(1).write(tmp_path / "old", name="rank_{rank}")
    for rank in range(RANKS):
        os.rename(tmp_path / "old" / f"rank_{rank}", os.path.join(training.dumps, f"rank_{rank}"))
    training.await_hang("the job hangs", lambda hang: hang["ranks"] == RANKS)

    hang = training.await_hang("RAS has answered", lambda hang: hang["operation"] == "AllReduce")
    assert (hang["origins"], hang["kind"], hang["waiting"], hang["operation"]) == ([2], "missing", "0, 1, 3", "AllReduce")
    assert [(source["format"], source["path"], source["records"]) for source in hang["sources"]] == [
        ("nccl_ras", ras.address, 2)]
    assert ras.asked == 2, "one node asks, twice"
    assert ras.questions[:4] == ["CLIENT PROTOCOL 2", "TIMEOUT 2", "SET FORMAT json", "STATUS"]
    assert hang["text"].startswith("hang: rank 2 never entered AllReduce")

    # The watchdogs dump, one after the other, and one file is long in the writing.
    dumps_without(2).write(tmp_path / "new", name="rank_{rank}")
    whole = (tmp_path / "new" / "rank_3").read_bytes()
    for rank in range(RANKS):
        with open(os.path.join(training.dumps, f"rank_{rank}"), "wb") as file:
            file.write((tmp_path / "new" / f"rank_{rank}").read_bytes() if rank != 3 else whole[:40])
    training.await_hang("all dumps are seen", lambda hang: len(hang["sources"]) == RANKS + 1)
    with open(os.path.join(training.dumps, "rank_3"), "wb") as file:
        file.write(whole)
    hang = training.await_hang("the dumps are whole", lambda hang: hang["waiting"] == "0, 1, 3" and
                               not any(source["note"] for source in hang["sources"]))
    assert (hang["origins"], hang["kind"], hang["operation"], hang["group"]) == ([2], "missing", "all_reduce", "default_pg,0")
    assert hang["frames"] == ["train_step (/job/train.py:40)", "<module> (/job/train.py:9)"]
    assert hang["text"].startswith("hang: rank 2 never entered all_reduce 2 of default_pg,0; 3 ranks wait for it; no rank has ended")
    assert {source["path"]: source["rank"] for source in hang["sources"]} == {
        ras.address: None, **{os.path.join(training.dumps, f"rank_{rank}"): rank for rank in range(RANKS)}}
    assert any("rank 2 never entered AllReduce" in text for text in hang["evidence"])

    status = stage.run("status", "--manager", manager.address).stdout
    line = f"evidence: rank 2 never entered all_reduce 2 of default_pg,0; 3 ranks wait for it (NCCL RAS at {ras.address}; {training.dumps}/rank_* of ranks 0-3)"
    assert line in status, status
    assert "hang: rank 2 never entered all_reduce 2" in training.launchers[0].log()
    diagnosed = json.loads(stage.run("diagnose", "--manager", manager.address, "--json").stdout)
    assert diagnosed["state"] == "hung" and diagnosed["sources"] == hang["sources"]
    assert diagnosed["hang"] == {**{key: hang[key] for key in diagnosed["hang"]}, "text": hang["text"].removeprefix("hang: ")}
    with urllib.request.urlopen(f"http://{manager.http}/api/v1/diagnosis", timeout=HANG_S) as answered:
        assert {key: value for key, value in json.load(answered).items() if key in ("state", "hang", "sources")} == {
            key: diagnosed[key] for key in ("state", "hang", "sources")}
    why = json.loads(stage.run("diagnose", "--manager", manager.address, "--why", "1", "--json").stdout)
    assert why["text"].startswith(f"{hang['text']}; rank 1: ")
    text = stage.run("diagnose", "--manager", manager.address).stdout
    assert text.startswith("hung: rank 2 never entered all_reduce 2 of default_pg,0") and "train_step (/job/train.py:40)" in text
    report = stage.run("report", "--manager", manager.address, "-o", "-").stdout
    assert "<h1>hangs: rank 2 never entered all_reduce 2 of default_pg,0" in report
    written = stage.run("report", "--manager", manager.address, "-o", str(tmp_path / "report.html")).stdout
    assert ": hung: rank 2 never entered all_reduce 2 of default_pg,0" in written
    assert ras.asked == 2, "RAS has said what it knows"


@pytest.mark.parametrize("options", [(), ("--ras=off",)], ids=["silent", "off"])
def test_ras_that_says_nothing_holds_nothing_up(stage, manager, options):
    manager.all_on()
    ras = Ras(None)
    training = Training(stage, manager, ras, "--hang-action=stop", *options)
    if not options:
        hang = training.await_hang("the job hangs", lambda hang: True)
        assert hang["origins"] == [2] and "rank 2 is in no communication, in step" in hang["text"]
        diagnosed = json.loads(stage.run("diagnose", "--manager", manager.address, "--json").stdout)
        assert diagnosed["state"] == "hung" and diagnosed["hang"]["kind"] == "missing"
    assert training.launchers[0].wait(NOTICED_S) == 1
    log = training.launchers[0].log()
    assert "stacks of 4 ranks" in log
    if options:
        assert ras.asked == 0 and "NCCL RAS" not in log
    else:
        assert ras.asked >= 1
        wait_log(training.launchers[0], f"NCCL RAS at {ras.address}: it does not answer in time")
