"""Jobs that were recorded once (tests/diagnosis/recorded): what `taskd diagnose --from` makes of true marks, and of true dumps
of a flight recorder."""
import glob
import json
import os
import tarfile

import pytest
import stubs

RECORDED = os.path.join(stubs.REPOSITORY, "tests", "diagnosis", "recorded")


@pytest.fixture
def diagnose(stage):
    def run(name):
        with tarfile.open(os.path.join(RECORDED, name + ".tar.xz")) as archive:
            archive.extractall(os.path.join(stage.folder, name))
        done = stage.run("diagnose", "--from", name, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize("name, rank, cause, since", [("slow_compute", 2, "compute", 30),
                                                      ("slow_dataloader", 1, "dataloader", 31)])
def test_slow_rank(diagnose, name, rank, cause, since):
    report = diagnose(name)
    assert [(v["scope"], v["ids"], v["cause"]) for v in report["verdicts"]] == [("rank", [rank], cause)], report
    verdict = report["verdicts"][0]
    assert (report["state"], verdict["state"]) == ("slow", "open")
    assert abs(verdict["since_step"] - since) <= 2, verdict
    # Put in were 100 ms in each step of 160 ms.
    assert 80 <= verdict["cost_ms_per_step"] <= 120, verdict
    assert verdict["confidence"] >= 0.9


def test_healthy_job(diagnose):
    report = diagnose("healthy")
    assert report["state"] == "ok" and report["verdicts"] == [], report


@pytest.fixture
def hangs(stage):
    """The folder with a folder of dumps for each job."""
    folder = os.path.join(stage.folder, "hangs")
    for library in ("gloo", "nccl"):
        with tarfile.open(os.path.join(RECORDED, f"{library}_hangs.tar.xz")) as archive:
            archive.extractall(os.path.join(folder, library))

    def run(how, form):
        done = stage.run("diagnose", "--json", "--from", *sorted(glob.glob(os.path.join(folder, how, form + "_*"))))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize("form", ["pickle", "json"])
@pytest.mark.parametrize("how, origin, kind, operation, group", [
    ("missing", 2, "missing", "all_reduce", "default_pg,0"), ("groups", 3, "missing", "all_reduce", "TENSOR,2"),
    ("order", 1, "order", "all_reduce", "default_pg,0"), ("group_order", 1, "order", "all_reduce", "FIRST,5"),
    ("size", 1, "size", "all_reduce", "default_pg,0")])
def test_hang(hangs, how, origin, kind, operation, group, form):
    report = hangs(f"gloo/{how}", form)
    assert report["state"] == "hung", report
    hang = report["hang"]
    assert (hang["origins"], hang["kind"], hang["operation"], hang["group"]) == ([origin], kind, operation, group), hang
    # The rank that gloo ended for its peer's size has left no dump, and two others an error of their connections.
    assert hang["waiting"] == ("2" if how == "size" else ", ".join(str(r) for r in range(4) if r != origin).replace("0, 1, 2", "0-2"))
    if form == "pickle":
        assert hang["frames"][0].startswith("broadcast " if how == "order" else "all_reduce "), hang


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_messages_that_a_recorder_leaves_out_accuse_nobody(hangs, form):
    """Rank 1 of a pipeline sends nothing on; that ranks 2 and 3 wait for a message is not in their dumps."""
    report = hangs("gloo/pipeline", form)
    assert report["state"] == "hung" and report["hang"]["origins"] == [], report
    assert any("leaves sends and receives out" in note["text"] for note in report["notes"])


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_job_that_does_not_hang(hangs, form):
    report = hangs("gloo/healthy", form)
    assert report["state"] == "unknown" and "hang" not in report, report


@pytest.mark.parametrize("form", ["pickle", "json", "ras"])
@pytest.mark.parametrize("how, origin, kind, operation", [
    ("missing", 2, "missing", "all_reduce"), ("pair", 3, "missing", "all_reduce"), ("order", 2, "order", "all_reduce"),
    ("size", 2, "size", "all_reduce")])
def test_hang_of_nccl(hangs, how, origin, kind, operation, form):
    report = hangs(f"nccl/{how}", form)
    hang = report["hang"]
    assert (report["state"], hang["origins"]) == ("hung", [origin]), report
    assert hang["waiting"] == ("0-2" if origin == 3 else "0, 1, 3")
    if form == "ras":  # counts alone: the other two have launched one of two kinds, and sizes are not in them
        assert hang["kind"] == ("missing" if how == "size" else kind)
        assert hang["operation"] == ("AllGather" if how == "size" else "AllGather or AllReduce"), hang
    else:
        assert (hang["kind"], hang["operation"], hang["group"]) == (kind, operation, "default_pg,0")
