#!/usr/bin/python3
"""How long `taskd run` takes to start ranks and to end after a failure, beside torchrun, in one run on one machine.

    tests/bench/run_startup.py [--build build/release] [--repeat 7] [--ranks 4] [--json FILE]

* first line: from the start of the launcher until a script of two ranks has printed its first line; the script imports nothing.
* all-reduce: from the start of two launchers until the last of their ranks is through its first gloo all-reduce. Real PyTorch; its import
  is part of it, and is shown beside it.
* failure: from the SIGKILL of one of two ranks until the launcher has ended.

All take turns within each repetition, and who is first changes. Debian's torchrun (PyTorch 1.13) needs `-r 9:1 -t 9:1` on Python 3.11,
which asks for nothing, because local rank 9 does not exist. `taskd run` is measured as users start it, with its manager and proxies
("taskd"), and without ("no daemons"). torchrun looks at its ranks every 5 s by default; "torchrun, 0.1 s" is with
--monitor_interval=0.1.
"""
import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "lib"))
from deadlines import wait_child  # noqa: E402
from ports import free_port  # noqa: E402

PYTHON = "/usr/bin/python3"
TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "-r", "9:1", "-t", "9:1"]
PATIENCE_S = 120

# Each line in one write: several ranks share a file.
FIRST_LINE = r"""
import sys, time
sys.stdout.write(f"first {time.monotonic()}\n")
sys.stdout.flush()
"""
ALL_REDUCE = r"""
import sys, time
began = time.monotonic()
import torch
import torch.distributed as dist
imported = time.monotonic()
dist.init_process_group("gloo", init_method="env://")
value = torch.ones(1)
dist.all_reduce(value)
sys.stdout.write(f"reduced {time.monotonic()} {imported - began} {int(value.item())}\n")
sys.stdout.flush()
"""
FOREVER = r"""
import os, sys, time
sys.stdout.write(f"pid {os.environ['RANK']} {os.getpid()}\n")
sys.stdout.flush()
time.sleep(600)
"""


class Bench:
    def __init__(self, build, ranks, folder):
        self.taskd = os.path.join(build, "bin", "taskd")
        self.ranks = ranks
        self.folder = folder
        self.scripts = {}
        for name, text in (("first_line", FIRST_LINE), ("all_reduce", ALL_REDUCE), ("forever", FOREVER)):
            self.scripts[name] = os.path.join(folder, f"{name}.py")
            with open(self.scripts[name], "w", encoding="utf-8") as file:
                file.write(text)

    def launcher(self, kind):
        """kind: what comes before torchrun's own options."""
        if kind.startswith("torchrun"):
            return [*TORCHRUN, "--monitor_interval=0.1"] if kind != "torchrun" else TORCHRUN
        options = {"taskd": [], "no daemons": ["--no-taskd"], "taskd, tiered": ["--enable-tiered-parallel-tcpstore=true"]}
        return [self.taskd, "run", *options[kind]]

    def start(self, kind, options, script):
        environment = {k: v for k, v in os.environ.items() if not re.match("TASKD_|PET_|MASTER_|RANK|WORLD_SIZE", k)}
        environment.update(PYTHON_EXEC=PYTHON, OMP_NUM_THREADS="1", TMPDIR=self.folder, GLOO_SOCKET_IFNAME="lo")
        log = tempfile.NamedTemporaryFile("w+", dir=self.folder, suffix=".log", delete=False)
        process = subprocess.Popen([*self.launcher(kind), *options, self.scripts[script]], env=environment,
                                   stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        process.log = log.name
        return process

    @staticmethod
    def log_matches(process, pattern):
        with open(process.log, encoding="utf-8", errors="replace") as log:
            return re.findall(pattern, log.read(), re.M)

    def end(self, process, code=0):
        if wait_child(process, PATIENCE_S) != code:
            with open(process.log, encoding="utf-8", errors="replace") as log:
                raise SystemExit(f"{process.args[:3]} ended with {process.returncode}, not {code}:\n{log.read()[-3000:]}")

    @staticmethod
    def one_node():
        # Not --standalone, with which torchrun of PyTorch 1.13 takes port 29400 whoever has it.
        return ["--nnodes=1", "--nproc_per_node=2", "--node_rank=0", "--master_addr=127.0.0.1",
                f"--master_port={free_port()}"]

    def first_line(self, kind):
        began = time.monotonic()
        process = self.start(kind, self.one_node(), "first_line")
        self.end(process)
        times = [float(text) for text in self.log_matches(process, r"^first (\S+)")]
        assert len(times) == 2, times
        return min(times) - began, time.monotonic() - began

    def all_reduce(self, kind):
        port = free_port()
        began = time.monotonic()
        nodes = [self.start(kind, ["--nnodes=2", f"--nproc_per_node={self.ranks}", f"--node_rank={node}",
                                   "--master_addr=127.0.0.1", f"--master_port={port}"], "all_reduce") for node in (0, 1)]
        for node in nodes:
            self.end(node)
        lines = [line for node in nodes for line in self.log_matches(node, r"^reduced (\S+) (\S+) (\d+)$")]
        assert [int(line[2]) for line in lines] == [2 * self.ranks] * (2 * self.ranks), lines
        return max(float(line[0]) for line in lines) - began, statistics.median(float(line[1]) for line in lines)

    def failure(self, kind):
        process = self.start(kind, self.one_node(), "forever")
        deadline = time.monotonic() + PATIENCE_S
        while len(ranks := self.log_matches(process, r"^pid (\d) (\d+)$")) < 2:
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit(f"{kind}: the ranks did not start")
            time.sleep(0.01)
        # At another moment of the launcher's own rhythm each time.
        time.sleep(random.random())
        began = time.monotonic()
        os.kill(int(dict(ranks)["1"]), signal.SIGKILL)
        wait_child(process, PATIENCE_S)
        took = time.monotonic() - began
        expected = 1 if kind.startswith("torchrun") else 128 + signal.SIGKILL
        if process.returncode != expected:
            raise SystemExit(f"{kind}: exit code {process.returncode}, not {expected}")
        return took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"))
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=4, help="of each of the two nodes of the all-reduce")
    parser.add_argument("--json")
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options.build, options.ranks, folder)
        all_reduce = f"all-reduce, 2 nodes of {options.ranks}"
        plan = [(bench.first_line, ["torchrun", "torchrun, 0.1 s", "taskd", "no daemons"],
                 lambda r: {"first line": r[0], "whole run": r[1]}),
                (bench.all_reduce,
                 ["torchrun", "taskd", "taskd, tiered"],
                 lambda r: {all_reduce: r[0], "of that, import of PyTorch": r[1]}),
                (bench.failure, ["torchrun", "torchrun, 0.1 s", "taskd", "no daemons"], lambda r: {"failure to end": r})]
        for measure, kinds, name in plan:
            for repetition in range(options.repeat):
                for kind in (kinds if repetition % 2 == 0 else kinds[::-1]):
                    for what, value in name(measure(kind)).items():
                        results.setdefault(what, {}).setdefault(kind, []).append(value)
    print(f"medians of {options.repeat} (smallest to largest), seconds; ratio to torchrun\n")
    print("| what | launcher | s | range | ratio |\n|---|---|---|---|---|")
    for what, kinds in results.items():
        base = statistics.median(kinds["torchrun"])
        for kind, values in kinds.items():
            median = statistics.median(values)
            print(f"| {what} | {kind} | {median:.3f} | {min(values):.3f} to {max(values):.3f} | {median / base:.3f} |")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
