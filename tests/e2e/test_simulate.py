"""`taskd simulate`: files that the checker and the reader take, the truth beside them, and a manager that is fed."""
import json
import os
import re

import check_marks
import pytest
from harness import wait_until

FAULT = ["--fault", "compute:5:1.5@20"]


def simulate(stage, *arguments, timeout_s=120):
    done = stage.run("simulate", *arguments, timeout_s=timeout_s)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "no progress where stderr is no terminal"
    return done.stdout


def content(folder):
    """path: bytes of everything below a folder."""
    found = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = file.read()
    return found


def test_files_are_what_the_proxy_would_write(stage):
    out = os.path.join(stage.folder, "job")
    text = simulate(stage, "--ranks", "16", "--tp", "2", "--pp", "2", "--ranks-per-node", "4", "--steps", "30",
                    "--microbatches", "4", *FAULT, "--out", out)
    assert "30 steps of 16 ranks" in text and "rank 5" in text
    report = check_marks.check(out)
    assert report.ok, report.problems[:5]
    assert sorted(report.ranks) == list(range(16))
    for rank in report.ranks.values():
        assert rank.counts["step"] == 30 and rank.counts["dataloader"] == 30 and rank.counts["fp"] == 120
        assert rank.counts["communication"] >= 30 * 20 and rank.open_ranges == 0
    with open(os.path.join(out, "5", ".rank.json"), encoding="utf-8") as file:
        assert json.load(file) == {"node": 1, "host": "node1", "local_rank": 1}
    with open(os.path.join(out, "5", "parallel_group.json"), encoding="utf-8") as file:
        groups = {g["group_name"]: g for g in json.load(file).values()}
    assert groups["tp"]["global_ranks"] == [4, 5] and groups["tp"]["group_rank"] == 1
    assert groups["pp"]["global_ranks"] == [5, 13]
    with open(os.path.join(out, "labels.json"), encoding="utf-8") as file:
        fault = json.load(file)["faults"][0]
    assert fault["scope"] == "rank" and fault["ids"] == [5] and fault["first_step"] == 20 and fault["effect"] > 0.02


def test_same_seed_same_bytes(stage):
    first, second, third = (os.path.join(stage.folder, name) for name in "abc")
    for out, seed in ((first, "7"), (second, "7"), (third, "8")):
        simulate(stage, "--dp", "4", "--steps", "5", "--seed", seed, "--out", out)
    assert content(first) == content(second) != content(third)


def test_switches_of_marks(stage):
    out = os.path.join(stage.folder, "host")
    simulate(stage, "--dp", "4", "--steps", "5", "--host-only", "--out", out)
    assert all(b'"SourceKind":1' not in data for data in content(out).values())
    out = os.path.join(stage.folder, "quiet")
    simulate(stage, "--dp", "4", "--steps", "5", "--no-communication", "--out", out)
    report = check_marks.check(out)
    assert all(rank.counts["communication"] == 0 and rank.counts["step"] == 5 for rank in report.ranks.values())


@pytest.mark.parametrize("arguments,words", [
    (["--ranks", "10", "--tp", "4"], ["10", "tp 4"]),
    (["--ranks", "16", "--dp", "3"], ["16", "dp 3"]),
    (["--ranks", "many"], ["many"]),
    (["--tp", "0"], ["--tp", "0"]),
    (["--dp", "4", "--ep", "3"], ["ep 3", "dp 4"]),
    (["--steps", "0"], ["--steps", "0"]),
    (["--step-ms", "-1"], ["step-ms", "-1"]),
    (["--fault", "tired:3"], ["tired", "compute"]),
    (["--fault", "compute"], ["compute", "target"]),
    (["--fault", "compute:x"], ["'x'"]),
    (["--fault", "compute:3:fast"], ["'fast'"]),
    (["--fault", "compute:3:2:1"], ["'1'"]),
    (["--fault", "compute:3@9-5"], ["9-5"]),
    (["--fault", "compute:16"], ["16", "15"]),
    (["--fault", "compute:3@500"], ["500", "120"]),
    (["--fault", "pp_link:0,1"], ["0,1", "neighbours"]),
    (["--fault", "host:n2"], ["2", "1"]),
    (["--fault", "fabric:0"], ["'0'"]),
    (["--shape", "round"], ["round"]),
    (["--shape", "intermittent:2"], ["intermittent:2"]),
    (["--rate", "3"], ["--rate"]),
    (["--distinct-steps", "5"], ["--distinct-steps 5", "--manager"]),
    (["--manager", "127.0.0.1:1"], ["--manager"]),
], ids=" ".join)
def test_wrong_value_is_one_line_and_nothing_is_written(stage, arguments, words):
    out = os.path.join(stage.folder, "out")
    done = stage.run("simulate", *arguments, "--out", out)
    assert done.returncode == 2, (done.returncode, done.stderr)
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and done.stdout == "", done.stderr
    for word in words:
        assert word in lines[0], lines[0]
    assert not os.path.exists(out)


def test_needs_somewhere_to_go(stage):
    done = stage.run("simulate", "--dp", "4")
    assert done.returncode == 2 and "--out" in done.stderr


def test_folder_with_ranks_is_left_alone(stage):
    out = os.path.join(stage.folder, "job")
    simulate(stage, "--dp", "2", "--steps", "3", "--out", out)
    before = content(out)
    done = stage.run("simulate", "--dp", "2", "--steps", "3", "--seed", "2", "--out", out)
    assert done.returncode == 2 and out in done.stderr and len(done.stderr.splitlines()) == 1
    assert content(out) == before


def test_diagnosis_finds_the_fault_in_the_files(stage):
    out = os.path.join(stage.folder, "job")
    simulate(stage, "--dp", "16", "--steps", "80", *FAULT, "--out", out)
    done = stage.run("diagnose", "--from", out, "--json", timeout_s=120)
    assert done.returncode == 0, done.stderr
    verdicts = json.loads(done.stdout)["verdicts"]
    assert [(v["scope"], v["ids"]) for v in verdicts] == [("rank", [5])]


def test_manager_is_fed_as_by_its_proxies(stage, manager):
    text = simulate(stage, "--dp", "16", "--steps", "80", *FAULT, "--manager", manager.address)
    assert re.search(r"sent 80 steps of 16 ranks on 2 nodes", text), text

    def verdicts():
        done = stage.run("diagnose", "--manager", manager.address, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["verdicts"]

    assert wait_until(lambda: [(v["scope"], v["ids"]) for v in verdicts()] == [("rank", [5])], "the verdict on rank 5")


def test_the_same_steps_again_are_a_longer_job(stage, manager):
    text = simulate(stage, "--dp", "16", "--steps", "80", "--distinct-steps", "20", "--fault", "compute:5:1.5@2",
                    "--manager", manager.address)
    assert re.search(r"sent 80 steps of 16 ranks on 2 nodes", text), text

    def report():
        done = stage.run("diagnose", "--manager", manager.address, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    last = wait_until(lambda: (lambda r: r if r["steps"]["last"] >= 78 else None)(report()), "the last step")
    assert last["coverage"] and all(rank["sufficient"] for rank in last["coverage"]), last["coverage"]
    assert [(v["scope"], v["ids"]) for v in last["verdicts"]] == [("rank", [5])]


def test_many_nodes_towards_a_manager(stage, manager):
    text = simulate(stage, "--dp", "300", "--ranks-per-node", "1", "--steps", "3", "--microbatches", "1", "--manager",
                    manager.address)
    assert "3 steps of 300 ranks on 300 nodes" in text
    status = manager.status()
    assert len(status["nodes"]) == 300


def test_no_manager_there(stage):
    done = stage.run("simulate", "--dp", "2", "--manager", "127.0.0.1:1", timeout_s=60)
    assert done.returncode == 1 and "127.0.0.1:1" in done.stderr and len(done.stderr.splitlines()) == 1
