"""The diagnosis of a true job: a PyTorch training whose rank 2 gets slow is judged while it runs.

Nothing here depends on how fast the machine is: a step waits for its slowest rank, however busy the machine, and the slow
one is slow by much.
"""
import pytest
from harness import wait_until
from training import Training

PATIENCE_S = 100


def named(report):
    return [(v["scope"], v["ids"], v["cause"]) for v in report["verdicts"]]


def judged(report):
    return report["steps"]["last"] - report["steps"]["first"] + 1 if report["steps"]["first"] >= 0 else 0


@pytest.fixture
def training(recording, stage, manager):
    return Training(stage, manager)


def test_names_nobody_without_a_fault(training):
    report = wait_until(lambda: (r := training.diagnose()) and judged(r) >= 60 and r, "60 steps are judged", PATIENCE_S, 0.5)
    assert named(report) == [], report
    assert (report["state"], report["ranks"]) == ("ok", 4)
    training.finish()


@pytest.mark.parametrize("cause, rank", [("compute", 2), ("dataloader", 1)])
def test_names_the_slow_rank(training, cause, rank):
    wait_until(lambda: judged(training.diagnose()) >= 30, "30 steps are judged", PATIENCE_S, 0.5)
    training.trouble(cause, rank)
    wait_until(lambda: training.since(cause, rank), f"rank {rank} is slow", PATIENCE_S)
    report = wait_until(lambda: (r := training.diagnose())["state"] == "slow" and r, "the diagnosis says so", PATIENCE_S, 0.5)
    assert named(report) == [("rank", [rank], cause)], report
    verdict = report["verdicts"][0]
    since = training.since(cause, rank)
    assert since - 5 <= verdict["since_step"] <= since + 5, (since, verdict)
    assert verdict["state"] == "open"
    assert verdict["cost_ms_per_step"] > 10 and verdict["slowdown"] > 1.1, verdict
    training.no_trouble()
    wait_until(lambda: training.diagnose()["state"] == "ok", "it is over", PATIENCE_S, 0.5)
    training.finish()
