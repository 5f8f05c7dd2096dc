"""The diagnosis of a true job: a PyTorch training whose ranks get slow is judged while it runs.

Nothing here depends on how fast the machine is: a step waits for its slowest rank, and the slow one is slow by much. On a
busy machine other ranks may be slow, too, for a while, or the whole job: what counts is the costliest one named, and that
it comes to rest. That nobody else is ever named is tested on recorded jobs (test_recorded_jobs.py).
"""
import pytest
from harness import wait_until
from training import Training

pytestmark = pytest.mark.timeout(900)
PATIENCE_S = 240


@pytest.fixture
def training(recording, stage, manager):
    return Training(stage, manager)


def watch(training, wanted, steps):
    """The report once `wanted` (scope, ids, cause; None: nobody) has been the costliest one named for so many steps."""
    since = None

    def held():
        nonlocal since
        report = training.diagnose()
        verdicts = [v for v in report["verdicts"] if v["state"] == "open" and v["scope"] != "job"]
        named = [(v["scope"], v["ids"], v["cause"]) for v in verdicts]
        if report["state"] == "unknown" or (named[0] if named else None) != wanted:
            since = None
            return None
        step = report["steps"]["last"]
        since = step if since is None else since
        return report if step >= since + steps else None

    return wait_until(held, f"the diagnosis is {wanted} for {steps} steps", PATIENCE_S, 0.3)


def test_names_nobody_without_a_fault(training):
    report = watch(training, None, 40)
    assert report["ranks"] == 4
    training.finish()


@pytest.mark.parametrize("cause, rank", [("compute", 2), ("dataloader", 1)])
def test_names_the_slow_rank(training, cause, rank):
    watch(training, None, 20)
    training.trouble(cause, rank)
    wait_until(lambda: training.since(cause, rank), f"rank {rank} is slow", PATIENCE_S)
    verdict = next(v for v in watch(training, ("rank", [rank], cause), 10)["verdicts"] if v["ids"] == [rank])
    since = training.since(cause, rank)
    assert since - 10 <= verdict["since_step"] <= since + 10, (since, verdict)
    # 100 ms are put in; the other ranks may be slow, too.
    assert 20 < verdict["cost_ms_per_step"] < 1000 and verdict["slowdown"] > 1.1, verdict
    assert f"rank {rank} (node {rank // 2})" in verdict["text"]
    training.no_trouble()
    watch(training, None, 0)
    training.finish()
