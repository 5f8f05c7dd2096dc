"""Jobs that were recorded once (tests/diagnosis/recorded): what `taskd diagnose --from` makes of true marks."""
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
