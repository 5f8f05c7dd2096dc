"""`--from` under conditions that are the same for all formats: many files, few descriptors, files that grow, no right to write,
names that nobody would choose."""
import json
import os
import pickle
import re
import shutil
import threading

import harness
import pytest
from ascend_profiles import AscendJob
from chrome_traces import GpuJob, slow_job
from flight_dumps import WORLD, HungJob
from from_files import diagnose, named
from inspector_logs import InspectedJob
from test_from_flight_recorders import diagnose_with_peak, missing_rank
from test_from_nccl_ras import LATER, behind

UNSAFE = re.compile("[\u202a-\u202e\u2066-\u2069\x00-\x09\x0b-\x1f]")
NAME = "o'\"\u202ed\nd\x1b[31m"
FORMATS = ["kineto", "ascend", "nccl_inspector", "flight_recorder", "nccl_ras"]


def write(what, folder):
    """A job of which there is something to say."""
    if what == "kineto":
        slow_job().write(folder)
    elif what == "ascend":
        job = AscendJob()
        job.computing[2] = (30, 20)
        job.write(folder)
    elif what == "nccl_inspector":
        job = InspectedJob()
        job.add_groups([list(range(8))])
        job.add_groups([[0, 2], [1, 3], [4, 6], [5, 7]], slow=2)
        job.write(folder)
    elif what == "flight_recorder":
        missing_rank().write(folder)
    else:
        folder.mkdir()
        (folder / "ras.json").write_text(behind().answer() + behind().answer(LATER))


def linked(path, ranks):
    """The same content for each rank, which only its name says."""
    for rank in range(1, ranks):
        os.link(path, path.with_name(path.name.replace("rank_0", f"rank_{rank}")))


RANKS = 2048 if harness.sanitized() else 16384


def test_more_dumps_than_1024_descriptors(stage, tmp_path):
    job = HungJob(2)
    job.all_do((WORLD, "all_reduce", (8,)))
    job.programs[1].pop()
    dump = job.dumps()[0]
    dump["pg_config"]["0"]["ranks"] = str(list(range(RANKS)))
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(dump, protocol=2))
    linked(path, RANKS - 1)
    report, peak_kib = diagnose_with_peak(tmp_path)
    assert report["ranks"] == RANKS and len(report["sources"]) == RANKS - 1
    assert report["hang"]["origins"] == [] and f"nothing is known of rank {RANKS - 1}" in report["hang"]["text"]
    if not harness.sanitized():
        assert peak_kib < 256 << 10


def test_more_traces_than_1024_descriptors(stage, tmp_path):
    trace = GpuJob(ranks=1, steps=4).traces()[0]
    trace["distributedInfo"] = {"world_size": RANKS}
    path = tmp_path / "rank_0.json"
    path.write_text(json.dumps(trace))
    linked(path, RANKS)
    report, peak_kib = diagnose_with_peak(tmp_path)
    assert report["ranks"] == RANKS and report["verdicts"] == [] and report["steps"]["last"] == 103
    if not harness.sanitized():
        assert peak_kib < 1 << 20


@pytest.mark.parametrize("what", FORMATS)
def test_file_that_grows_while_it_is_read(stage, tmp_path, what):
    """Somebody writes to it faster than anybody reads: it is read as far as it went when it was opened."""
    write(what, tmp_path / "job")
    paths = [path for path in (tmp_path / "job").rglob("*") if path.is_file() and path.name != "step_trace_time.csv"]
    before = diagnose(stage, tmp_path / "job")
    written, done = threading.Event(), threading.Event()

    def append():
        block = b" " * (1 << 20)
        with open(max(paths, key=lambda path: path.stat().st_size), "ab") as file:
            for _ in range(512):
                if done.is_set():
                    return
                file.write(block)
                written.set()

    writer = threading.Thread(target=append)
    writer.start()
    written.wait()
    report = diagnose(stage, tmp_path / "job")
    done.set()
    writer.join()
    assert (report["state"], named(report), report.get("hang")) == (before["state"], named(before), before.get("hang"))


@pytest.mark.parametrize("what", FORMATS)
def test_no_right_to_write_anywhere(stage, tmp_path, what):
    write(what, tmp_path / "job")
    folders = [tmp_path, *(path for path in tmp_path.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        os.chdir(tmp_path)
        assert diagnose(stage, tmp_path / "job")["state"] in ("slow", "hung")
        done = stage.run("report", "--from", str(tmp_path / "job"), "-o", "-")
        assert done.returncode == 0 and "<html" in done.stdout
        if what in ("kineto", "ascend"):
            assert stage.run("goodput", "--from", str(tmp_path / "job")).returncode == 0
            assert json.loads(stage.run("trace", "--from", str(tmp_path / "job"), "-o", "-").stdout)["traceEvents"]
    finally:
        os.chdir("/")
        for folder in folders:
            folder.chmod(0o755)


@pytest.mark.parametrize("what", FORMATS)
def test_names_are_made_safe(stage, tmp_path, what):
    """The folder's name, that of a file of which something has to be said, and the job's."""
    write(what, tmp_path / NAME)
    (tmp_path / NAME / f"rank_{NAME}.json").write_text('{"traceEvents": [{"ph": "X", "name": "step 1')
    for command in (["diagnose"], ["report", "-o", str(tmp_path / "page.html")], ["goodput"], ["trace", "-o", str(tmp_path / "trace.json")]):
        done = stage.run(command[0], "--from", str(tmp_path / NAME), *command[1:])
        assert done.returncode == (0 if what in ("kineto", "ascend") or command[0] in ("diagnose", "report") else 2), done.stderr
        assert not UNSAFE.search(done.stdout + done.stderr), (command, done.stdout, done.stderr)
    if what in ("kineto", "ascend"):
        assert json.loads((tmp_path / "trace.json").read_text())["otherData"]["task"] == NAME
    assert not UNSAFE.search((tmp_path / "page.html").read_text())
    report = diagnose(stage, tmp_path / NAME)
    assert [source["path"] for source in report["sources"] if source["note"]] == [str(tmp_path / NAME / f"rank_{NAME}.json")]


def test_same_rank_twice_of_ascend(stage, tmp_path):
    write("ascend", tmp_path / "profiles")
    first = sorted((tmp_path / "profiles").iterdir())[0]
    shutil.copytree(first, first.with_name("zz_copy_ascend_pt"))
    report = diagnose(stage, tmp_path / "profiles")
    assert named(report) == [("rank", [2])]
    assert ["left out" in source["note"] for source in report["sources"]] == [False] * 4 + [True]


def test_two_jobs_of_ascend_are_not_mixed(stage, tmp_path):
    write("ascend", tmp_path / "profiles")
    AscendJob(ranks=2).write(tmp_path / "profiles", name="other_{rank}_ascend_{framework}")
    report = diagnose(stage, tmp_path / "profiles")
    assert named(report) == [("rank", [2])] and report["ranks"] == 4
    assert sum("of a job of 2 ranks" in source["note"] for source in report["sources"]) == 2


def test_same_process_of_nccl_inspector_twice(stage, tmp_path):
    write("nccl_inspector", tmp_path / "logs")
    first = sorted((tmp_path / "logs").iterdir())[0]
    shutil.copy(first, first.with_name("zz_copy.log"))
    report = diagnose(stage, tmp_path / "logs")
    assert named(report) in ([("link", [[4, 6]])], [("group", [4, 6])])
    assert [source["note"] for source in report["sources"] if source["note"]] == [f"left out: {first} is of the same process"]
