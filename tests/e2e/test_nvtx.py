"""Marks on GPU without a GPU: a program's NVTX ranges through NVTX's injection, and NCCL's operations through its
profiler plugin, into the files of a real proxy.

tests/e2e/gpu_rank_main.cc is the program. `e2e_gpu_rank` reaches NVTX through a client in our own words;
`e2e_gpu_rank_nvtx3` is the same program compiled with NVIDIA's header and is there where CMake found that header. NCCL is
always the program's own caller of the plugin: a collective needs two GPUs.
"""
import json
import os
import re
import struct
import subprocess
import time

import harness
import pytest
from harness import BUILD, KINDS, LIBRARY, TASKD, check_marks, clean_environment, wait_until

PROGRAMS = [p for p in (os.path.join(BUILD, "tests", n) for n in ("e2e_gpu_rank", "e2e_gpu_rank_nvtx3")) if os.path.exists(p)]
PROGRAM = PROGRAMS[-1]  # NVIDIA's header, where it is
TOOL = os.path.join(BUILD, "lib", "libtaskd_nvtx_tool.so")
PLUGIN = os.path.join(BUILD, "lib", "libnccl-profiler-taskd.so")
CLOCK_NS = 2_000_000  # a recorded time may lie so far from the call
ALL_OFF = dict.fromkeys(KINDS, "off")


class GpuRank(harness.Process):
    """Neither preloaded nor initialized: the rank is in the environment, and NVTX or NCCL loads the library."""

    def __init__(self, stage, proxy, rank=0, world=1, program=PROGRAM, count=0, rate=100, versions=7, nvtx=LIBRARY,
                 nccl=None, **environment):
        self.counter_path = os.path.join(stage.folder, f"gpu-rank{rank}.count")
        command = [program, "--count", str(count), "--rate", str(rate), "--versions", str(versions), "--counter",
                   self.counter_path]
        super().__init__(f"gpu-rank{rank}", command, clean_environment(
            RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world, TASKD_SOCKET=proxy.socket, NVTX_INJECTION64_PATH=nvtx,
            NCCL_PROFILER_PLUGIN=nccl, **environment), stage.folder)
        stage.processes.append(self)

    def made(self):
        try:
            with open(self.counter_path, "rb") as counter:
                return struct.unpack("Q", counter.read(8))[0]
        except (FileNotFoundError, struct.error):
            return 0

    def wait_more(self, count=20):
        """Until so many more steps were made."""
        goal = self.made() + count
        wait_until(lambda: self.require_alive() and self.made() >= goal, f"{self.name} makes {count} more steps")


def marks(proxy, rank=0):
    """Every mark in the files of a rank, the files being faultless."""
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    return report.ranks[rank].marks if rank in report.ranks else []


def names(proxy, rank=0):
    """{(domain, name)} of what was started or marked; numbers are N."""
    return {(m.domain, re.sub(r"\d+", "N", m.name)) for m in marks(proxy, rank) if m.domain}


def turn(manager, *switches):
    """Turns the switch. Unix ns: (surely before it, surely after every rank had it)."""
    before = time.time_ns()
    assert manager.switch(*switches)[0] == 0
    return before - CLOCK_NS, time.time_ns() + CLOCK_NS


def verify_notes(rank, found, begin=0):
    """Each step's note once, in order, from `begin` on."""
    notes = [int(m.name[5:]) for m in found if m.name.startswith("note ")]
    assert notes == list(range(begin, rank.made())), f"{len(notes)} notes of {rank.made()} steps"


NVTX_NAMES = {("default", "step N"), ("default", "dataloader"), ("default", "forward"), ("default", "backward"),
              ("default", "save_checkpoint"), ("default", "note N"), ("lib", "attention"), ("lib", "plain"),
              ("lib", "prefetch"), ("lib", "flushed")}


@pytest.mark.parametrize("program", PROGRAMS, ids=os.path.basename)
def test_ranges_become_marks(stage, manager, recording, proxy, program):
    rank = GpuRank(stage, proxy, program=program, count=50)
    assert rank.wait() == 0, rank.log()
    print(rank.log())
    assert proxy.terminate() == 0
    report = proxy.check(keep_marks=True)
    assert report.ok, report.problems[:5]
    assert report.ranks[0].open_ranges == 0
    assert report.ranks[0].counts == {"step": 50, "fp": 50, "dataloader": 50, "save_checkpoint": 10, "communication": 0,
                                      "other": 300}
    assert names(proxy) == NVTX_NAMES
    verify_notes(rank, report.ranks[0].marks)
    # Nested as they were pushed: each forward within its step.
    steps = [m for m in report.ranks[0].marks if m.name.startswith("step ")]
    assert [m.name for m in steps] == [f"step {n}" for n in range(50)]


def test_switched_off_and_on_while_it_runs(stage, manager, proxy):
    rank = GpuRank(stage, proxy)
    manager.wait_attached([0])
    manager.wait_applied(ALL_OFF, [0])
    rank.wait_more()
    assert marks(proxy) == []
    assert manager.switch("step=on", "fp=on")[0] == 0
    wait_until(lambda: proxy.counts(0)["fp"] > 5, "forwards are recorded")
    assert names(proxy) >= {("default", "step N"), ("default", "forward"), ("lib", "attention")}
    assert not names(proxy) & {("default", "dataloader"), ("default", "save_checkpoint")}
    _, off_ns = turn(manager, "all=off")
    rank.wait_more()
    on_ns, _ = turn(manager, "dataloader=on")
    wait_until(lambda: proxy.counts(0)["dataloader"] > 5, "batches are recorded")
    rank.terminate()
    assert proxy.terminate() == 0
    began = [m for m in marks(proxy) if m.domain]
    assert not [m for m in began if off_ns < m.timestamp_ns < on_ns]
    assert {m.name for m in began if m.timestamp_ns >= on_ns} & {"dataloader", "forward", "save_checkpoint"} == {"dataloader"}
    assert proxy.check().ranks[0].open_ranges == 0, "what began has ended"


@pytest.mark.parametrize("program", PROGRAMS, ids=os.path.basename)
def test_another_tool_gets_every_call(stage, manager, recording, proxy, program):
    rank = GpuRank(stage, proxy, program=program, count=6, TASKD_NVTX_CHAIN=TOOL)
    assert rank.wait() == 0, rank.log()
    step = ("push(step {0}) push(dataloader) pop() push(forward) domain_push(0x1000,0x2000) domain_push(0x1000,plain) "
            "pop() start(backward) end({1}) {2}pop() mark(note {0}) ")
    expected = "init() domain(lib) string(attention) string(prefetch) " + "".join(
        step.format(n, 100 + n, "push(save_checkpoint) pop() " if n % 5 == 0 else "") for n in range(6))
    calls = [line for line in rank.log().splitlines() if line.startswith("init()")]
    assert [c.strip() for c in calls] == [expected.strip()]
    assert proxy.terminate() == 0
    assert names(proxy) == NVTX_NAMES
    assert proxy.counts(0)["fp"] == 6


def test_another_tool_that_is_not_there(stage, manager, recording, proxy):
    rank = GpuRank(stage, proxy, count=6, TASKD_NVTX_CHAIN="/nonexistent/tool.so")
    assert rank.wait() == 0, rank.log()
    assert len(re.findall("TASKD_NVTX_CHAIN: '/nonexistent/tool.so' cannot be loaded", rank.log())) == 1
    assert proxy.terminate() == 0
    assert proxy.counts(0)["step"] == 6


def test_users_names(stage, manager, recording, proxy):
    rank = GpuRank(stage, proxy, count=10, TASKD_MARK_NAMES="forward=attention;dataloader=prefetch;communication=backward")
    assert rank.wait() == 0, rank.log()
    assert proxy.terminate() == 0
    counts = proxy.counts(0)
    assert (counts["fp"], counts["dataloader"], counts["communication"], counts["other"]) == (20, 20, 10, 30), counts
    communication = [json.loads(m.name) for m in marks(proxy) if m.domain == "communication"]
    assert communication[0] == {"count": "0", "dataType": "na", "groupName": "user", "opName": "backward"}


def test_nothing_is_lost_when_the_proxy_is_killed(stage, manager, recording, proxy):
    rank = GpuRank(stage, proxy, rate=500)
    rank.wait_more(200)
    proxy.kill()
    rank.wait_more(200)
    second = stage.proxy(manager, name="second", profiling_dir=proxy.profiling_dir, socket_path=proxy.socket)
    rank.wait_more(200)
    assert rank.terminate() == 0
    assert second.terminate() == 0
    verify_notes(rank, marks(second))


# ---- NCCL

def nccl_operations(proxy, rank):
    return [json.loads(m.name) for m in marks(proxy, rank) if m.domain == "communication"]


# The fields of HCCL's operations, in torch_npu's order.
HCCL_FIELDS = ["count", "streamId", "dataType", "groupName", "opName"]


@pytest.mark.parametrize("versions", [7, 4, 3, 1])
def test_contract_nccl_operations_of_two_ranks(stage, manager, recording, proxy, versions):
    """contract: TaskD contract 4.4, the name of a communication mark; NCCL's plugin interface, newest first."""
    ranks = [GpuRank(stage, proxy, rank, world=2, count=20, versions=versions, nvtx=None, nccl=PLUGIN) for rank in (0, 1)]
    for rank in ranks:
        assert rank.wait() == 0, rank.log()
    assert proxy.terminate() == 0
    for rank in (0, 1):
        found = nccl_operations(proxy, rank)
        assert len(found) == 20 * 2 * 3
        # Both ranks name a communicator alike.
        assert {o["groupName"] for o in found} == {"dp:00000000000000d0", "tp:0000000000000010"}
        for operation in found:
            assert list(operation)[:5] == HCCL_FIELDS
            assert operation["rank"] == str(rank)
            assert operation.get("ranks") == ("2" if versions >= 4 else None)
        for group in ("dp", "tp"):
            reduces = [o for o in found if o["opName"] == "ncclAllReduce" and o["groupName"].startswith(group)]
            assert [o["seq"] for o in reduces] == [str(n) for n in range(20)]
            assert {(o["count"], o["dataType"]) for o in reduces} == {("4096", "bfp16")}
        sends = [o for o in found if o["opName"] == "ncclSend"]
        receives = [o for o in found if o["opName"] == "ncclRecv"]
        assert {(o["srcRank"], o["destRank"], o["count"], o["dataType"]) for o in sends} == {
            (str(rank), str(1 - rank), "1024", "fp32")}
        assert {(o["srcRank"], o["destRank"]) for o in receives} == {(str(1 - rank), str(rank))}
        assert proxy.check().ranks[rank].open_ranges == 0


def test_nccl_switched_off_and_on(stage, manager, proxy):
    rank = GpuRank(stage, proxy, nccl=PLUGIN)
    manager.wait_attached([0])
    manager.wait_applied(ALL_OFF, [0])
    rank.wait_more()
    assert marks(proxy) == []
    assert manager.switch("communication=on")[0] == 0
    wait_until(lambda: proxy.counts(0)["communication"] > 20, "operations are recorded")
    assert proxy.counts(0)["step"] == 0
    _, off_ns = turn(manager, "communication=off", "step=on")
    wait_until(lambda: proxy.counts(0)["step"] > 5, "steps are recorded")
    on_ns, _ = turn(manager, "communication=on")
    rank.wait_more()
    rank.terminate()
    assert proxy.terminate() == 0
    times = [m.timestamp_ns for m in marks(proxy) if m.domain == "communication"]
    assert [t for t in times if t < off_ns] and [t for t in times if t > on_ns]
    assert not [t for t in times if off_ns < t < on_ns]


def test_nccl_without_the_library(stage, manager, proxy, tmp_path):
    lonely = tmp_path / "libnccl-profiler-taskd.so"
    lonely.write_bytes(open(PLUGIN, "rb").read())
    rank = GpuRank(stage, proxy, count=5, nvtx=None, nccl=str(lonely))
    assert rank.wait() == 0
    assert "init of the profiler failed" in rank.log()


# ---- All of it

def test_taskd_run_brings_both_and_the_files_are_read(stage, manager):
    """Nothing but `taskd run`, which points the ranks' NVTX and NCCL at TaskD."""
    manager.all_on()
    profiling = os.path.join(stage.folder, "profiling")
    job = stage._add(harness.Process(
        "run", [TASKD, "run", "--standalone", "--nproc-per-node=2", "--no-python", PROGRAM, "--count", "60"],
        clean_environment(TASKD_MANAGER=manager.address, TASKD_LISTEN="127.0.0.1:0", TASKD_PROFILING_DIR=profiling,
                          TMPDIR=stage.folder, MINDX_TASK_ID=harness.TASK), stage.folder))
    assert job.wait(timeout_s=60) == 0, job.log()
    folder = os.path.join(profiling, harness.TASK)
    report = check_marks.check(folder, keep_marks=True)
    assert report.ok, report.problems[:5]
    for rank in (0, 1):
        counts = report.ranks[rank].counts
        assert counts["step"] == 60 and counts["fp"] == 60 and counts["communication"] == 60 * 2 * 3, counts
    diagnosis = stage.run("diagnose", "--from", folder, "--json")
    assert diagnosis.returncode == 0, diagnosis.stderr
    verdict = json.loads(diagnosis.stdout)
    assert verdict["ranks"] == 2
    trace = os.path.join(stage.folder, "trace.json")
    assert stage.run("trace", "--from", folder, "-o", trace).returncode == 0
    with open(trace, encoding="utf-8") as file:
        assert {event.get("args", {}).get("op") for event in json.load(file)["traceEvents"]} >= {"all_reduce", "send", "recv"}


def test_taskd_run_leaves_the_users_tools_in_place(stage, manager):
    manager.all_on()
    profiling = os.path.join(stage.folder, "profiling")
    job = stage._add(harness.Process(
        "run", [TASKD, "run", "--standalone", "--nproc-per-node=1", "--no-python", PROGRAM, "--count", "3"],
        clean_environment(TASKD_MANAGER=manager.address, TASKD_LISTEN="127.0.0.1:0", TASKD_PROFILING_DIR=profiling,
                          TMPDIR=stage.folder, MINDX_TASK_ID=harness.TASK, NVTX_INJECTION64_PATH=TOOL,
                          NCCL_PROFILER_PLUGIN="none"), stage.folder))
    assert job.wait(timeout_s=60) == 0, job.log()
    assert "mark(note 2)" in job.log()
    assert "no profiler plugin in none" in job.log()
    counts = check_marks.check(os.path.join(profiling, harness.TASK)).ranks[0].counts
    assert (counts["step"], counts["communication"]) == (3, 0), counts


def test_no_new_dependencies():
    """Neither NVTX nor NCCL is linked: libc alone, with the two libraries that were apart from it before 2.34."""
    for library in (LIBRARY, PLUGIN):
        dynamic = subprocess.run(["readelf", "-dW", library], capture_output=True, text=True, check=True).stdout
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
        assert needed <= {"libc.so.6", "libdl.so.2", "libpthread.so.0", "libasan.so.8", "libubsan.so.1"}, f"{library} needs {needed}"
