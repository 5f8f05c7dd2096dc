"""tests/diagnosis/real_faults.py, a little of it: a real fault is named, and hidden waits are no healthy job. And that traces of
PyTorch's profiler say the same (real_traces.py)."""
import argparse
import json
import os
import random
import sys

import pytest
import stubs

sys.path.insert(0, os.path.join(stubs.REPOSITORY, "tests", "diagnosis"))
import real_faults  # noqa: E402
import real_traces  # noqa: E402


def test_intervals():
    # Clopper and Pearson: 1 - (0.05 / 2)^(1 / n) where there are none, and its mirror where there are all.
    assert real_faults.interval(0, 10) == pytest.approx((0, 1 - 0.025**0.1))
    assert real_faults.interval(10, 10) == pytest.approx((0.025**0.1, 1))
    assert real_faults.interval(5, 10) == pytest.approx((0.1871, 0.8129), abs=1e-4)


def test_counts_what_was_named():
    found = {"steps": 4, "cause": "compute", "since": 1, "text": "rank 1 computes longer"}
    run = {"way": "own", "fault": "stops", "expected": "compute", "found": found, "cause_right": True, "wrong": [],
           "step_s": 0.09, "healthy_s": 0.06, "state": "slow", "baselines": {"median": {"steps": 9, "wrong": 0}}}
    healthy = {**run, "fault": "none", "expected": "", "found": None, "healthy_s": None, "state": "ok"}
    hidden = {**healthy, "way": "ddp-unmarked", "state": "ok", "wrong": ["rank 0 loads"]}
    cheap = {**run, "step_s": 0.065, "found": None}
    text = real_faults.table([run, healthy, hidden, cheap])
    assert "| marked | stops | 2 | 1 | 1 | 1 | 4 (4) | 0 | 0 | 0 |" in text
    assert "healthy runs in which somebody was named: 50.0 % (1/2;" in text and "cause: 100.0 % (1/1;" in text
    assert "| TaskD | 0.0 % (0/1;" in text
    assert " | 100.0 % (1/1; 2.5–100.0) | 100.0 % (1/1; 2.5–100.0) | 4 (4) |" in text
    assert "| median | 0.0 % (0/1;" in text and " | 9 (9) |" in text
    assert "ok although a wait is not marked: 100.0 % (1/1;" in text


def test_a_small_fault_is_one_by_what_its_rank_takes_longer():
    small = {"way": "own", "fault": "slow15", "found": None, "cause_right": False, "wrong": [], "step_s": 0.06, "healthy_s": 0.06,
             "state": "ok", "baselines": {}}
    assert real_faults.is_visible({**small, "own_effect": 0.08})
    assert not real_faults.is_visible({**small, "own_effect": 0.07, "step_s": 0.09})
    text = real_faults.table([{**small, "own_effect": 0.12}, {**small, "own_effect": 0.01}])
    assert "| marked | slow15 | 2 | 1 | 0 | 0 |" in text


def test_what_is_said_is_compared_with_the_scripts_stopwatch(tmp_path):
    # Rank 1 takes 25 ms longer from step 20 on; rank 2 is as slow in every fifth step, in which that costs nothing.
    for rank in range(3):
        rows = [0.040 + (0.025 if (rank == 1 and step >= 20) or (rank == 2 and step % 5 == 0) else 0) for step in range(100)]
        lines = [f"{step} {own - 0.03} 0.0 0.03 {own + 0.01}\n" for step, own in enumerate(rows)]
        (tmp_path / f"stopwatch-{rank}").write_text("".join(lines))
    verdict = {"cost_ms_per_step": 22, "cost_interval_ms": [17, 24], "evidence": [{"value": 67, "reference": 42, "steps": [20, 99]}]}
    run = {"way": "own", "fault": "loader", "rank": 1, "began": 20, "from_start": True, "cause_right": True, "wrong": [],
           "step_s": 0.09, "healthy_s": 0.06, "state": "slow", "baselines": {},
           "found": {"steps": 4, "text": "", **real_faults.numbers(verdict)}}
    run["measured"] = real_faults.stopwatch(tmp_path, run)
    extra = 25 * 0.8 + 12.5 * 0.2  # against the median of two others
    assert run["measured"]["excess"] == pytest.approx(extra)
    assert run["measured"]["cost"] == pytest.approx(0.8 * extra)
    text = real_faults.table([run])
    assert "| marked | loader from the first step | 1 | 1 | 1 | 1 | 4 (4) | 0 | 0 | 0 | 1.22 (1.22 to 1.22) | 1.11 " in text
    assert "| 1 of 1 |" in text


def test_own_time_is_read_from_the_marks(tmp_path):
    def write(rank, own_ms):
        lines, identifier, now = [], 0, 1_700_000_000_000_000_000

        def mark(flag, number, name="", domain=""):
            lines.append(json.dumps({"Flag": flag, "Timestamp": now, "Id": number, "Name": name, "Domain": domain}))
        for step in range(30):
            mark(16, identifier + 1, f"step {step}", "default")
            now += own_ms(step) * 1_000_000
            for number, length_ms in ((identifier + 2, 5), (identifier + 3, 10)):  # the second one begins within the first
                mark(16, number, "{}", "communication")
                now += length_ms * 500_000
            mark(32, identifier + 2)
            now += 5_000_000
            mark(32, identifier + 3)
            mark(32, identifier + 1)
            identifier += 3
        folder = tmp_path / str(rank)
        folder.mkdir()
        (folder / "1700000000").write_text("\n".join(lines) + "\n")
    write(0, lambda step: 40)
    write(1, lambda step: 40 if step < 20 else 50)
    assert real_faults.own_times(tmp_path)[1][25] == pytest.approx(0.050, abs=1e-9)
    assert real_faults.own_effect(tmp_path, 1, 20, 30) == pytest.approx(0.25)
    assert real_faults.own_effect(tmp_path, 1, 0, 30) == pytest.approx(0.125), "10 of the 20 steps from the tenth on"


def test_verdicts_of_traces_are_compared_with_those_of_marks():
    def said(state, *named):
        return {"state": state, "named": [{"scope": "rank", "ids": [rank], "cause": cause, "state": "open", "since_step": since,
                                           "text": f"rank {rank} is slow"} for rank, cause, since in named]}
    run = {"run": "a", "torch": "2.6", "fault": "stops", "rank": 1, "ranks": 3, "began": 40, "marks": said("slow", (1, "compute", 40))}
    same = {**run, "traces": said("slow", (1, "compute", 43))}
    other_cause = {**run, "traces": said("slow", (1, "gc", 40))}
    other_rank = {**run, "traces": said("slow", (2, "compute", 40))}
    healthy = {**run, "torch": "2.14", "fault": "none", "rank": None, "marks": said("ok"), "traces": said("slow", (0, "gc", 9))}
    text = real_traces.table([healthy, same, other_cause, other_rank])
    assert text.index("| 2.6 | stops | 3 | 3 | 2 | 2 | 1 | 1 |") < text.index("| 2.14 | none | 1 | 0 | 1 | 0 | 0 | 0 |")
    assert "the same named: 50.0 % (2/4;" in text and "with the same cause: 25.0 % (1/4;" in text
    assert "traces somebody is named: 100.0 % (1/1;" in text and "median (most): 2 (3)" in text
    assert "traces, slow: rank 2 is slow (open)" in text and "marks, ok: nobody" in text


@pytest.mark.slow
def test_traces_say_what_marks_say():
    arguments = argparse.Namespace(python=[real_faults.harness.PYTHON], seconds=20)
    run = real_traces.measure("1.13", "ddp", "loader", 2, arguments, random.Random(1), None)
    assert real_traces.is_same(run, "scope", "ids", "cause") and real_traces.is_named(run, "traces"), run


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["stops", "loader"])
def test_names_a_rank_with_a_real_fault(fault):
    run = real_faults.measure("own", fault, 2, 40, random.Random(1))
    assert run["found"] and run["cause_right"], run


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["none", "stops"])
def test_batches_that_differ_in_size_are_no_fault_and_hide_none(fault):
    run = real_faults.measure("own-ragged", fault, 3, 40, random.Random(1))
    assert not run["wrong"], run
    assert bool(run["found"]) == (fault != "none"), run


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp-unmarked", "ddp-unmarked-logged"])
def test_hidden_waits_are_no_healthy_job(way):
    run = real_faults.measure(way, "stops", 2, 15, random.Random(1))
    assert run["state"] == "unknown" and run["found"] is None, run
    assert "coverage" in [note["kind"] for note in run["notes"]], run
