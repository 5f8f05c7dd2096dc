"""`taskd trace --from` what profilers wrote: the time line of all ranks, by one clock, with what the diagnosis says of them."""
import json
import os

import pytest
from ascend_profiles import AscendJob
from chrome_traces import GpuJob
from flight_dumps import WORLD, HungJob
from inspector_logs import InspectedJob
from synthetic_job import Job
from test_command_line import usage_error
from test_from_nccl_ras import behind
from test_trace import MS, check_trace, out, spans, trace  # noqa: F401 (a fixture)


def slow_job():
    job = GpuJob()
    job.extra[2] = (30, 20)
    job.clock_ms = {1: 7_200_000, 3: -500}
    return job


def test_contract_traces_of_all_ranks_by_one_clock(stage, tmp_path, out):
    slow_job().write(tmp_path / "traces")
    report = trace(stage, str(tmp_path / "traces"), out)
    assert list(report.processes.values()) == [f"rank {rank} (node {rank // 2}, node-{rank // 2})" for rank in range(4)]
    assert report.other_data["task"] == "traces" and report.other_data["verdicts"] == "1"
    for rank in range(4):
        steps = report.on(rank, "step")
        assert [event.name for event in steps] == [f"step {100 + step}" for step in range(60)]
        ops = report.on(rank, "communication 0")
        assert len(ops) == 60 and ops[0].name == "all_reduce 0" and ops[0].args == {"group": "0", "op": "all_reduce", "bytes": 4 << 20}
        of_first = report.on(0, "communication 0")
        assert all(abs(ops[i].end_ns - of_first[i].end_ns) < 1 * MS for i in range(60)), "two hours apart in the files"
    assert [rank for rank in range(4) if "verdict" in report.tracks(rank)] == [2]


def test_contract_times_are_those_of_the_trace(stage, tmp_path, out):
    job = GpuJob(ranks=1, steps=3)
    [path] = job.write(tmp_path / "traces")
    steps = [event for event in json.loads(path.read_text())["traceEvents"]
             if event["name"].startswith("ProfilerStep#") and event["cat"] == "gpu_user_annotation"]
    first = round(steps[0]["ts"] * 1000)
    assert spans(trace(stage, str(path), out), 0, "step") == [
        (f"step {100 + i}", round(s["ts"] * 1000) - first, round((s["ts"] + s["dur"]) * 1000) - first) for i, s in enumerate(steps)]


def test_contract_ranks_steps_and_suspects(stage, tmp_path, out):
    slow_job().write(tmp_path / "traces", compress=True)
    report = trace(stage, str(tmp_path / "traces"), out, "--ranks", "1,3", "--steps", "110-112")
    assert list(report.processes) == [1, 3]
    assert [event.name for event in report.on(3, "step")] == ["step 110", "step 111", "step 112"]
    assert len(report.on(3, "communication 0")) == 3
    report = trace(stage, str(tmp_path / "traces"), out, "--suspects")
    assert sorted(report.processes) == [0, 1, 2, 3], "the peers too"
    onset = [event for event in report.on(2, "verdict") if event.phase == "X"][0]
    assert 128 <= onset.args["since_step"] <= 134 and len(report.on(2, "step")) == 16


def test_contract_windows_of_a_rank_are_one_line(stage, tmp_path, out):
    GpuJob(ranks=2, steps=5).write(tmp_path / "traces", "rank{rank}_window1.json")
    job = GpuJob(ranks=2, steps=5, seed=2)
    job.first_step = {0: 400, 1: 400}
    job.clock_ms = {0: 60_000, 1: 60_000}
    job.write(tmp_path / "traces", "rank{rank}_window2.json")
    report = trace(stage, str(tmp_path / "traces"), out)
    assert [event.name for event in report.on(1, "step")] == [f"step {n}" for n in (*range(100, 105), *range(400, 405))]


def test_contract_ascend_profiles(stage, tmp_path, out):
    job = AscendJob()
    job.computing[2] = (30, 20)
    job.clock_ms = {1: 7_200_000}
    job.write(tmp_path / "profiles")
    report = trace(stage, str(tmp_path / "profiles"), out)
    ends = {}
    for rank in range(4):
        assert len(report.on(rank, "step")) >= 59
        ends[rank] = sorted(event.end_ns for track in report.tracks(rank) if track.startswith("communication ") for event in report.on(rank, track))
        assert len(ends[rank]) == 120, report.tracks(rank)
    assert [rank for rank in range(4) if "verdict" in report.tracks(rank)] == [2]
    assert max(abs(a - b) for a, b in zip(ends[0], ends[1])) < 1 * MS


def test_contract_sums_have_no_time_line(stage, tmp_path, out):
    AscendJob().write(tmp_path / "profiles", communication=False)
    usage_error(stage.run("trace", "--from", str(tmp_path / "profiles"), "-o", out), "only sums of each step", "Level1")


@pytest.mark.parametrize("what", ["dumps", "ras", "inspector"])
@pytest.mark.parametrize("command", ["trace", "goodput"])
def test_contract_formats_without_a_time_line_say_so(stage, tmp_path, out, what, command):
    folder = tmp_path / what
    title = {"dumps": "flight recorder dumps", "ras": "NCCL RAS", "inspector": "NCCL Inspector"}[what]
    if what == "dumps":
        job = HungJob(4)
        job.all_do((WORLD, "all_reduce", (8,)))
        job.write(folder)
    elif what == "ras":
        folder.mkdir()
        (folder / "ras.json").write_text(behind().answer())
    else:
        job = InspectedJob()
        job.add_groups([list(range(8))])
        job.write(folder)
    words = (f"no time line is in what is there ({title})" if command == "trace" else f"no step that has ended is in what is there ({title})",
             "taskd diagnose says what it proves")
    usage_error(stage.run(command, "--from", str(folder), *(["-o", out] if command == "trace" else [])), *words)
    assert os.listdir(os.path.dirname(out)) == []
    page = tmp_path / "page.html"
    done = stage.run("report", "--from", str(folder), "-o", str(page))
    assert done.returncode == 0 and page.exists(), done.stderr


def test_time_line_is_of_the_marks_where_there_are_any(stage, tmp_path, out):
    job = Job(ranks=4, steps=60)
    job.data_parallel()
    job.write(tmp_path / "job")
    slow_job().write(tmp_path / "traces")
    done = stage.run("trace", "--from", str(tmp_path / "job"), str(tmp_path / "traces"), "-o", out)
    assert done.returncode == 0
    assert done.stderr == "taskd trace: the time line is of TaskD's marks alone, and not of PyTorch profiler traces\n"
    report = check_trace.check(out)
    assert report.problems == [] and report.on(0, "step")[0].name == "step 0"


def test_what_could_not_be_read_is_said(stage, tmp_path, out):
    paths = slow_job().write(tmp_path / "traces")
    data = paths[1].read_bytes()
    paths[1].write_bytes(data[:len(data) * 9 // 10])
    done = stage.run("trace", "--from", str(tmp_path / "traces"), "-o", out)
    assert done.returncode == 0 and paths[1].name in done.stderr and "it is cut at byte" in done.stderr
    assert check_trace.check(out).problems == []


def test_standard_input_is_there_once(stage, out):
    usage_error(stage.run("trace", "--from", "-", "-o", out), "--from", "standard input is there once")
