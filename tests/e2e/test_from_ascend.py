"""`taskd diagnose --from` the folders of the Ascend profilers (tests named contract: by a writer of our own)."""
import gzip
import json

import pytest
from ascend_profiles import AscendJob
from from_files import diagnose, named, notes


def slow_job(**options):
    job = AscendJob(**options)
    job.computing[2] = (30, 20)
    return job


@pytest.mark.parametrize("framework", ["pt", "ms"])
def test_contract_slow_rank(stage, tmp_path, framework):
    slow_job().write(tmp_path / "profiles", framework=framework)
    report = diagnose(stage, tmp_path / "profiles")
    assert report["state"] == "slow" and named(report) == [("rank", [2])]
    verdict = report["verdicts"][0]
    assert verdict["cause"] == "compute"
    assert 38 <= verdict["since_step"] <= 44  # the first step is 10
    assert verdict["since_time"].startswith("2026-01-01T00:00:0")
    assert 15 < verdict["cost_ms_per_step"] < 25
    assert [(s["format"], s["rank"], s["records"], s["note"]) for s in report["sources"]] == [
        ("ascend", rank, 180, "") for rank in range(4)]
    assert "node 1" in stage.run("diagnose", "--from", str(tmp_path / "profiles")).stdout  # the host is in the folder's name


def test_contract_device_that_waits_for_its_host(stage, tmp_path):
    job = AscendJob()
    job.waiting[1] = (20, 25)
    job.write(tmp_path / "profiles")
    report = diagnose(stage, tmp_path / "profiles")
    assert named(report) == [("rank", [1])] and report["verdicts"][0]["cause"] == "host"


@pytest.mark.parametrize("files", [{}, {"communication": False}, {"csv_file": False},
                                   {"communication": False, "csv_file": False, "trace": True}],
                         ids=["both", "sums", "operations", "trace"])
def test_contract_whatever_is_there_of_it(stage, tmp_path, files):
    slow_job().write(tmp_path / "slow", **files)
    report = diagnose(stage, tmp_path / "slow")
    assert named(report) == [("rank", [2])] and 15 < report["verdicts"][0]["cost_ms_per_step"] < 25
    assert ("only sums of each step" in notes(report)) == (files == {"communication": False})
    AscendJob(steps=400, seed=3).write(tmp_path / "healthy", **files)
    healthy = diagnose(stage, tmp_path / "healthy")
    assert (healthy["state"], healthy["verdicts"]) == ("ok", [])


def test_contract_clocks_hours_apart(stage, tmp_path):
    job = slow_job()
    job.clock_ms = {1: 7_200_000, 3: -500}
    job.write(tmp_path / "profiles")
    assert named(diagnose(stage, tmp_path / "profiles")) == [("rank", [2])]


@pytest.mark.parametrize("communication", [True, False], ids=["operations", "sums"])
def test_contract_several_windows_of_a_rank(stage, tmp_path, communication):
    slow_job(steps=30).write(tmp_path / "profiles", "first_rank{rank}", communication=communication)
    later = AscendJob(steps=40, seed=2)
    later.computing[2] = (0, 20)
    later.first_step, later.start_ms = 400, 60_000
    later.write(tmp_path / "profiles", "second_rank{rank}", communication=communication)
    report = diagnose(stage, tmp_path / "profiles")
    assert named(report) == [("rank", [2])] and report["steps"]["last"] == 439
    assert [source["note"] for source in report["sources"]] == [""] * 8


def test_contract_groups_without_metadata_are_of_those_that_name_them(stage, tmp_path):
    slow_job().write(tmp_path / "profiles", metadata=False)
    assert named(diagnose(stage, tmp_path / "profiles")) == [("rank", [2])]


def test_contract_stages_that_differ_by_design_are_no_fault(stage, tmp_path):
    job = AscendJob(ranks=8, steps=400)
    job.bubble_ms = 3.0
    job.computing = {rank: (0, 20) for rank in range(4, 8)}
    job.groups = [("dp", [0, 1, 2, 3]), ("dp", [4, 5, 6, 7])] + [("pp", [rank, rank + 4]) for rank in range(4)]
    job.write(tmp_path / "profiles", communication=False)
    assert named(diagnose(stage, tmp_path / "profiles")) == []
    # Nothing says which ranks are of one stage.
    job.write(tmp_path / "unknown", communication=False, metadata=False)
    report = diagnose(stage, tmp_path / "unknown")
    assert report["verdicts"] == [] and "of which pipeline stage" in notes(report)


def test_contract_a_file_by_itself(stage, tmp_path):
    outputs = slow_job().write(tmp_path / "profiles")
    assert named(diagnose(stage, *[output / "communication.json" for output in outputs])) == [("rank", [2])]
    packed = []
    for rank, output in enumerate(outputs):  # known by what is in it, whatever it is called
        packed.append(tmp_path / f"rank{rank}.gz")
        packed[-1].write_bytes(gzip.compress((output / "step_trace_time.csv").read_bytes()))
    assert named(diagnose(stage, *packed)) == [("rank", [2])]


def test_contract_steps_without_numbers_say_what_to_add(stage, tmp_path):
    job = slow_job(steps=1)
    job.step_numbers = False
    job.write(tmp_path / "profiles")
    report = diagnose(stage, tmp_path / "profiles")
    assert report["state"] == "unknown" and report["verdicts"] == []
    assert "prof.step()" in notes(report)


def test_cut_file_gives_what_is_before_the_cut(stage, tmp_path):
    outputs = slow_job().write(tmp_path / "profiles", csv_file=False)
    data = (outputs[1] / "communication.json").read_bytes()
    (outputs[1] / "communication.json").write_bytes(data[:len(data) * 9 // 10])
    report = diagnose(stage, tmp_path / "profiles")
    assert named(report) == [("rank", [2])]
    assert "it is cut at byte" in report["sources"][1]["note"] and 100 < report["sources"][1]["records"] < 120


def test_folder_that_says_no_rank_is_named(stage, tmp_path):
    outputs = slow_job(ranks=2).write(tmp_path / "profiles", rank_file=False)
    errors = diagnose(stage, tmp_path / "profiles", code=1)
    assert str(outputs[0]) in errors and "which rank" in errors


@pytest.mark.parametrize("text", ["", "Device_id,Step\n0,1\n", "Step,Computing,Communication(Not Overlapped),Communication,Free\n",
                                  "Step,Computing,Communication(Not Overlapped),Communication,Free\n1,nan,inf,-1,1e999\n"])
def test_sums_that_are_none(stage, tmp_path, text):
    outputs = slow_job().write(tmp_path / "profiles", communication=False)
    (outputs[1] / "step_trace_time.csv").write_text(text)
    report = diagnose(stage, tmp_path / "profiles")
    assert report["state"] in ("slow", "unknown", "ok") and json.dumps(report)
    assert all(ids == [2] for _, ids in named(report))
    assert "rank 1" in notes(report)
