#!/usr/bin/python3
"""What TaskD sees of ways to train with PyTorch, and that it changes nothing: torch_ways.py TASKD [--slow|--short] [WAY...]

Trains each way of torch_ways_rank.py twice, without TaskD and with `TASKD run` and everything switched on, and compares.
With --slow rank 1 sleeps in each step, and is to be named. With --short each way trains 80 steps of some 80 ms, healthy and
with a rank 1 that sleeps 30 ms more from step 10 on: what the diagnosis says of each. One line a way; the exit code is 1 if
anything is not as it has to be. Needs PyTorch and nothing else: tests/distros/torch_ways.sh runs it in root filesystems with other releases.
"""
import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_marks  # noqa: E402
import deadlines  # noqa: E402
from ports import free_port  # noqa: E402

RANK_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_ways_rank.py")
RANKS = 2
STEPS = 24
SLOW_S = 0.1
SLOW_STEPS = 160  # more than 15 s of them: of two ranks on a busy machine nobody is named before
PATIENCE_S = 240
_STEERING = re.compile(r"TASKD_(?!BUILD_DIR)|MINDX_|POD_IP|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_|LD_PRELOAD|OMPI_|TORCHELASTIC_")


class NotPossible(Exception):
    """This PyTorch cannot train so, without TaskD either."""


def _environment(**extra):
    environment = {name: value for name, value in os.environ.items() if not _STEERING.match(name)}
    return {**environment, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
            "USE_LIBUV": "0", **{name: str(value) for name, value in extra.items()}}


def _results(folder):
    results = []
    for rank in range(RANKS):
        with open(os.path.join(folder, f"rank.{rank}.json"), encoding="utf-8") as file:
            results.append(json.load(file))
    return results


def without_taskd(way, folder):
    """What each rank says of itself."""
    port = free_port()
    logs = [os.path.join(folder, f"plain.{rank}.log") for rank in range(RANKS)]
    ranks = []
    for rank, log in enumerate(logs):
        with open(log, "wb") as output:
            ranks.append(subprocess.Popen(
                [sys.executable, RANK_SCRIPT, way, folder, str(STEPS)], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env=_environment(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=RANKS, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)))
    try:
        codes = [deadlines.wait_child(rank, PATIENCE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(codes):
        said = []
        for log in logs:
            with open(log, encoding="utf-8", errors="replace") as file:
                said += [line for line in file.read().splitlines() if re.match(r"[\w.]*(Error|Exception)\b", line)]
        raise NotPossible(said[-1] if said else f"codes {codes}")
    return _results(folder)


class Seen:
    """What TaskD saw of a training."""

    def __init__(self, results, marks, report):
        self.results = results
        self.marks = marks  # check_marks.Report
        self.report = report  # of `taskd diagnose --json`

    def steps(self, rank):
        return self.marks.ranks[rank].counts["step"]

    def operations(self, rank):
        """{step: Counter of opName}: those that began in the step."""
        found = {}
        step = None
        for mark in self.marks.ranks[rank].marks:
            if mark.flag not in (check_marks.START, check_marks.START_STREAM):
                continue
            if mark.name.startswith("step "):
                step = int(mark.name[5:])
                found[step] = collections.Counter()
            elif mark.domain == "communication" and step is not None:
                found[step][json.loads(mark.name)["opName"]] += 1
        return found


def with_taskd(taskd, way, folder, slow_rank=None, training=None, **environment):
    profiling = os.path.join(folder, "profiling")
    switch = os.path.join(folder, "switch")
    with open(switch, "w", encoding="utf-8") as file:
        json.dump(dict.fromkeys(("CommunicationOperator", "Step", "SaveCheckpoint", "FP", "DataLoader"), "on"), file)
    training = training or ([STEPS] if slow_rank is None else [SLOW_STEPS, slow_rank, SLOW_S])
    job = deadlines.run(
        [taskd, "run", "--standalone", "--nproc-per-node", str(RANKS), "-m", "taskd.torch", RANK_SCRIPT, way, folder,
         *map(str, training)], PATIENCE_S,
        env=_environment(TASKD_PROFILING_DIR=profiling, MINDX_TASK_ID="ways", TASKD_SWITCH_FILE=switch, PYTHON_EXEC=sys.executable,
                         **environment),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert job.returncode == 0, f"code {job.returncode}: {job.stdout[-3000:]}"
    marks = check_marks.check(os.path.join(profiling, "ways"), keep_marks=True)
    report = subprocess.run([taskd, "diagnose", "--from", os.path.join(profiling, "ways"), "--json"], stdout=subprocess.PIPE,
                            text=True, check=True)
    return Seen(_results(folder), marks, json.loads(report.stdout))


# Operations of each step of rank 0, once the first steps are over.
ALL_REDUCE = "HcclAllreduce"
_ONE = {ALL_REDUCE: 1}
OPERATIONS = {
    "ddp": _ONE, "ddp-bucket-view": _ONE, "ddp-static-graph": _ONE, "ddp-accumulation": _ONE, "ddp-python-hook": _ONE,
    "ddp-cpp-hook": _ONE, "ddp-find-unused": {ALL_REDUCE: 2}, "ddp-two-models": {ALL_REDUCE: 2}, "by-hand": {ALL_REDUCE: 4},
    "ddp-logged": {ALL_REDUCE: 2}, "async": {ALL_REDUCE: 4}, "functional": {ALL_REDUCE: 4}, "coalesced": _ONE, "subgroups": {ALL_REDUCE: 4},
    "pipeline": {"HcclSend": 1, "HcclRecv": 1}, "batched-pipeline": {"HcclBatchSendRecv": 1},
    "grad-scaler": _ONE, "optimizer-each-parameter": _ONE, "lbfgs": {ALL_REDUCE: 2}, "no-optimizer": _ONE,
    "compile-module-ddp": _ONE, "compile-ddp-sequential": _ONE, "compile-ddp-module": _ONE, "ddp-of-compiled": _ONE,
    "compile-module": {}, "compile-own-module": {}, "compile-optimizer": _ONE,
    "compile-collectives": {ALL_REDUCE: 2}, "compile-async": {ALL_REDUCE: 2}, "compile-step": _ONE,
    # Some in each step.
    "ddp-power-sgd": None, "ddp-join": None, "zero": None, "fsdp": None, "tensor-parallel": None,
}
# Where C++ is not seen: the reducer's wait stands for all that it does.
ONE_WAIT = {"ddp-find-unused": _ONE}


def check(way, plain, seen):
    """Complete and right marks of a healthy training, which is the same as without TaskD."""
    assert plain == seen.results, f"TaskD changes what is computed or compiled:\n{plain}\n{seen.results}"
    assert not seen.marks.problems, seen.marks.problems[:3]
    for rank in range(RANKS):
        by_step = seen.operations(rank)
        expected = [OPERATIONS[way]] + ([ONE_WAIT[way]] if way in ONE_WAIT else [])
        wrong = {step: dict(found) for step, found in by_step.items() if 5 <= step < STEPS - 1 and (
            not found if expected[0] is None else dict(found) not in expected)}
        assert not wrong, f"rank {rank}: not {OPERATIONS[way]} in steps {wrong}"
        # The last one is open: nothing has ended it.
        assert sorted(by_step) in (list(range(STEPS)), list(range(STEPS + 1))), f"rank {rank}: steps {sorted(by_step)}"
        assert seen.marks.ranks[rank].open_ranges <= 1, f"rank {rank}: {seen.marks.ranks[rank].open_ranges} ranges have no end"
    assert not seen.report["verdicts"], seen.report


def check_slow(way, seen):
    """Rank 1 was slow, and no other rank. On a busy machine transfers may be slow as well."""
    if OPERATIONS[way] == {}:  # nobody waits for it
        assert not seen.report["verdicts"] and "a step of rank 1 takes" in seen.report["notes"][0]["text"], seen.report
        return
    found = [(verdict["scope"], verdict["ids"], verdict["cause"]) for verdict in seen.report["verdicts"]]
    assert [one for one in found if one[0] == "rank"] == [("rank", [1], "compute")], seen.report


def short(taskd, way):
    """What the diagnosis says of a first try, healthy and with a slow rank 1."""
    said = []
    for training in ([80], [80, 1, 0.03]):
        with tempfile.TemporaryDirectory(prefix="taskd-ways-") as folder:
            report = with_taskd(taskd, way, folder, training=training, WAYS_BUSY_S=0.075).report
        named = [verdict["ids"] for verdict in report["verdicts"] if verdict["state"] == "open" and verdict["scope"] == "rank"]
        own = report["resolution"]["own_time"]
        said.append(f"{report['state']} {named} {own['ratio'] if own else '-'}")
    return f"healthy: {said[0]:24s} slow: {said[1]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("taskd")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("ways", nargs="*", metavar="WAY")
    arguments = parser.parse_intermixed_args()
    failed = 0
    for way in arguments.ways or OPERATIONS:
        with tempfile.TemporaryDirectory(prefix="taskd-ways-") as folder:
            try:
                if arguments.short:
                    print(f"{way:26s} {short(arguments.taskd, way)}", flush=True)
                    continue
                plain = without_taskd(way, folder)
                if arguments.slow:
                    check_slow(way, with_taskd(arguments.taskd, way, folder, slow_rank=1))
                else:
                    check(way, plain, with_taskd(arguments.taskd, way, folder))
                print(f"{way:26s} passed", flush=True)
            except NotPossible as error:
                print(f"{way:26s} not possible here: {error}"[:150], flush=True)
            except AssertionError as error:
                failed = 1
                print(f"{way:26s} FAILED: {error}"[:1500], flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
