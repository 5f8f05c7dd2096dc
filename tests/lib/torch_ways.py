#!/usr/bin/python3
"""What TaskD sees of ways to train with PyTorch, and that it changes nothing: torch_ways.py TASKD [--slow] [WAY...]

Trains each way of torch_ways_rank.py twice, without TaskD and with `TASKD run` and everything switched on, and compares.
With --slow rank 1 sleeps in each step, and is to be named. One line a way; the exit code is 1 if anything is not as it has
to be. Needs PyTorch and nothing else, so it runs in the root filesystems of tests/distros.sh, too.
"""
import argparse
import collections
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_marks  # noqa: E402
from ports import free_port  # noqa: E402

RANK_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_ways_rank.py")
RANKS = 2
STEPS = 24
SLOW_S = 0.03
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
                [sys.executable, RANK_SCRIPT, way, folder], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env=_environment(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=RANKS, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)))
    try:
        codes = [rank.wait(PATIENCE_S) for rank in ranks]
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


def with_taskd(taskd, way, folder, *slow):
    profiling = os.path.join(folder, "profiling")
    switch = os.path.join(folder, "switch")
    with open(switch, "w", encoding="utf-8") as file:
        json.dump(dict.fromkeys(("CommunicationOperator", "Step", "SaveCheckpoint", "FP", "DataLoader"), "on"), file)
    job = subprocess.run(
        [taskd, "run", "--standalone", "--nproc-per-node", str(RANKS), "-m", "taskd.torch", RANK_SCRIPT, way, folder, *map(str, slow)],
        env=_environment(TASKD_PROFILING_DIR=profiling, MINDX_TASK_ID="ways", TASKD_SWITCH_FILE=switch, PYTHON_EXEC=sys.executable),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S, check=False)
    assert job.returncode == 0, f"code {job.returncode}: {job.stdout[-3000:]}"
    marks = check_marks.check(os.path.join(profiling, "ways"), keep_marks=True)
    report = subprocess.run([taskd, "diagnose", "--from", os.path.join(profiling, "ways"), "--json"], stdout=subprocess.PIPE,
                            text=True, check=True)
    return Seen(_results(folder), marks, json.loads(report.stdout))


# Operations of each step, once the first steps are over. Where only the functions of torch.distributed are wrapped, C++ is
# seen by the wait of DistributedDataParallel's reducer.
ALL_REDUCE = "HcclAllreduce"
OPERATIONS = {
    "ddp": {ALL_REDUCE: 1}, "ddp-bucket-view": {ALL_REDUCE: 1}, "ddp-static-graph": {ALL_REDUCE: 1},
    "ddp-find-unused": {ALL_REDUCE: 2}, "ddp-accumulation": {ALL_REDUCE: 1}, "ddp-two-models": {ALL_REDUCE: 2},
    "ddp-python-hook": {ALL_REDUCE: 1}, "ddp-cpp-hook": {ALL_REDUCE: 1}, "by-hand": {ALL_REDUCE: 4},
    "async": {ALL_REDUCE: 4}, "functional": {ALL_REDUCE: 4}, "coalesced": {ALL_REDUCE: 1}, "subgroups": {ALL_REDUCE: 4},
    "batched-pipeline": {ALL_REDUCE: 1, "HcclBatchSendRecv": 1}, "grad-scaler": {ALL_REDUCE: 1},
    "optimizers-in-turns": {ALL_REDUCE: 1}, "optimizer-each-parameter": {ALL_REDUCE: 1},
    "compile-module-ddp": {ALL_REDUCE: 1}, "compile-ddp-sequential": {ALL_REDUCE: 1}, "compile-ddp-module": {ALL_REDUCE: 1},
    "ddp-of-compiled": {ALL_REDUCE: 1}, "compile-collectives": {ALL_REDUCE: 1}, "compile-async": {ALL_REDUCE: 1},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("taskd")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("ways", nargs="*", metavar="WAY")
    arguments = parser.parse_intermixed_args()
    from torch_ways_rank import WAYS

    for way in arguments.ways or WAYS:
        with tempfile.TemporaryDirectory(prefix="taskd-ways-") as folder:
            try:
                plain = without_taskd(way, folder)
            except NotPossible as error:
                print(f"{way}: not possible: {error}"[:160], flush=True)
                continue
            try:
                seen = with_taskd(arguments.taskd, way, folder, *([1, SLOW_S] if arguments.slow else []))
            except AssertionError as error:
                print(f"{way}: {error}", flush=True)
                continue
            ops = seen.operations(0)
            usual = collections.Counter(tuple(sorted(o.items())) for n, o in ops.items() if n >= 10).most_common(3)
            print(way, "same" if plain == seen.results else "DIFFERENT", seen.steps(0), seen.steps(1), usual, seen.marks.problems[:2],
                  [seen.marks.ranks[r].open_ranges for r in (0, 1)], seen.report["state"], [v["text"] for v in seen.report["verdicts"]],
                  [n["text"][:150] for n in seen.report["notes"]], flush=True)


if __name__ == "__main__":
    main()
