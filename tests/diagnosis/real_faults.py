#!/usr/bin/python3
"""Real PyTorch jobs on this machine, with real faults that are brought upon one rank from outside, and without.

real_faults.py [--ways own,ddp] [--faults none,quota,...] [--ranks 2,3,4] [--runs 1] [--seconds 25] [--out FILE]

Prints who was named, of how many faults that cost at least 10 % of the step, with which cause, and after how many steps;
intervals are Clopper-Pearson's, 95 %. Needs PyTorch, and for `quota` a cgroup (v1 or v2) that may be written.
"""
import argparse
import collections
import contextlib
import json
import math
import os
import random
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import harness  # noqa: E402

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "real")
# Ways in which all waits are marked, and ways in which they are not: there nobody may be called healthy.
MARKED = ("own", "ddp", "ddp-accumulate", "ddp-zero", "ddp-hook")
UNMARKED = ("ddp-unmarked", "ddp-unmarked-logged", "alone")
WARM_STEPS = 40
VISIBLE = 0.10  # of the step


class Storage:
    """Serves data and takes checkpoints, as fast for each rank as it is told to."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "storage.sock")
        self.read_delay_s = collections.defaultdict(float)
        self.write_delay_s = collections.defaultdict(float)  # of one write
        self.next = collections.defaultdict(int)             # step that a rank asked for last
        self.stop_at = -1
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):  # closed
            while True:
                connection = self.listener.accept()[0]
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection, contextlib.suppress(OSError, struct.error):  # the rank has ended
            rank = struct.unpack("<i", connection.recv(4, socket.MSG_WAITALL))[0]
            while True:
                kind, number, size = struct.unpack("<cqi", connection.recv(13, socket.MSG_WAITALL))
                if size:
                    connection.recv(size, socket.MSG_WAITALL)
                delay_s = self.read_delay_s[rank] if kind == b"r" else self.write_delay_s[rank]
                if delay_s:
                    time.sleep(delay_s)
                if kind == b"r":
                    self.next[rank] = number
                connection.sendall(struct.pack("<i", self.stop_at))

    def stop(self):
        """All ranks end before the same step."""
        self.stop_at = max(self.next.values(), default=0) + 5

    def close(self):
        self.listener.close()


# What is done to a rank. Each gives the fault's end back, as a context.

@contextlib.contextmanager
def quota(run, rank):
    """A quarter of a core, by cgroup."""
    name = f"taskd-real-faults-{os.getpid()}"
    if os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        group, limits = os.path.join("/sys/fs/cgroup", name), [("cpu.max", "2500 10000")]
    else:
        group = os.path.join("/sys/fs/cgroup/cpu", name)
        limits = [("cpu.cfs_period_us", "10000"), ("cpu.cfs_quota_us", "2500")]
    os.mkdir(group)
    procs = os.path.join(group, "cgroup.procs")
    try:
        for file, value in limits:
            put(os.path.join(group, file), value)
        put(procs, str(run.pid(rank)))
        yield
    finally:
        with contextlib.suppress(OSError):  # the rank has ended
            put(os.path.join(os.path.dirname(group), "cgroup.procs"), str(run.pid(rank)))
        harness.wait_until(lambda: not open(procs, encoding="ascii").read(), "the cgroup is empty")
        os.rmdir(group)


@contextlib.contextmanager
def stops(run, rank):
    """Stopped for 15 ms, running for 15 ms."""
    over = threading.Event()

    def burst():
        while not over.wait(0.015):
            os.kill(run.pid(rank), signal.SIGSTOP)
            time.sleep(0.015)
            os.kill(run.pid(rank), signal.SIGCONT)

    thread = threading.Thread(target=burst)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def neighbour(run, rank):
    """The rank shares one core with three busy processes."""
    core = {max(os.sched_getaffinity(0))}
    for thread in os.listdir(f"/proc/{run.pid(rank)}/task"):
        os.sched_setaffinity(int(thread), core)
    busy = [subprocess.Popen([harness.PYTHON, "-c", "while True: pass"]) for _ in range(3)]
    for process in busy:
        os.sched_setaffinity(process.pid, core)
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@contextlib.contextmanager
def loader(run, rank):
    """Its data come 25 ms later."""
    run.storage.read_delay_s[rank] = 0.025
    yield
    run.storage.read_delay_s[rank] = 0


@contextlib.contextmanager
def checkpoint(run, rank):
    """Each of some 30 writes of a checkpoint takes 10 ms."""
    run.storage.write_delay_s[rank] = 0.010
    yield
    run.storage.write_delay_s[rank] = 0


@contextlib.contextmanager
def collections_of_garbage(run, rank):
    """Cyclic garbage, collected over and over in another thread (sitecustomize.py)."""
    path = os.path.join(run.folder, f"gc-storm-{rank}")
    put(path, "")
    yield
    os.unlink(path)


FAULTS = {"none": (None, ""), "quota": (quota, "compute"), "stops": (stops, "compute"), "neighbour": (neighbour, "compute"),
          "loader": (loader, "dataloader"), "checkpoint": (checkpoint, "checkpoint"), "gc": (collections_of_garbage, "gc")}


def put(path, text):
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


class Run:
    """One job under TaskD."""

    def __init__(self, folder, way, ranks):
        self.folder = folder
        self.stage = harness.Stage(folder)
        self.storage = Storage(folder)
        self.manager = self.stage.manager()
        self.manager.all_on()
        proxy = self.stage.proxy(self.manager)
        self.proxy = proxy
        common = {
            "MINDX_TASK_ID": harness.TASK, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": harness.free_port(),
            "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": 1, "WAY": way, "STORAGE": self.storage.path, "FOLDER": folder,
            "TASKD_TORCH": 1, "TASKD_SOCKET": proxy.socket,
            "TASKD_PROFILING_DIR": proxy.profiling_dir, "PYTHONPATH": f"{FOLDER}:{harness.PYTHON_PACKAGE}",
            "PYTHONDONTWRITEBYTECODE": 1,
            "LD_PRELOAD": os.path.join(harness.PYTHON_PACKAGE, "taskd", "python", "cython_api", "libs", "libtaskd.so")}
        self.ranks = []
        for rank in range(ranks):
            process = harness.Process(f"rank{rank}", [harness.PYTHON, os.path.join(FOLDER, "job.py")],
                                      harness.clean_environment(**common, RANK=rank, LOCAL_RANK=rank), folder)
            self.stage.processes.append(process)
            self.ranks.append(process)

    def pid(self, rank):
        return self.ranks[rank].pid

    def report(self):
        for process in self.ranks:
            process.require_alive()
        done = self.stage.run("diagnose", "--manager", self.manager.address, "--json")
        assert done.returncode == 0, f"taskd diagnose: code {done.returncode}: {done.stderr}"
        return json.loads(done.stdout)

    def reached(self, step, patience_s=240):
        return harness.wait_until(lambda: (lambda r: r if r["steps"]["last"] >= step else None)(self.report()),
                                  f"step {step}", patience_s, 0.3)

    def finish(self):
        self.storage.stop()
        for process in self.ranks:
            assert process.wait(60) == 0, process.log()[-3000:]

    def close(self):
        for process in self.ranks:  # one that is stopped does not end
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
        self.stage.close()
        self.storage.close()


def entities(report):
    """Who has been named so far, by id of the entity: the whole job is nobody."""
    return [(v["scope"], tuple(map(str, v["ids"])), v["cause"], v["state"], v["since_step"], v["text"])
            for v in report["verdicts"] if v["scope"] != "job"]




def measure(way, fault, ranks, seconds, rng, keep=None):
    """One run; a dictionary of what came of it. Its mark files go to the folder `keep`."""
    inject, cause = FAULTS[fault]
    culprit = rng.randrange(ranks)
    with tempfile.TemporaryDirectory(prefix="taskd-real-") as folder:
        run = Run(folder, way, ranks)
        try:
            before = run.reached(WARM_STEPS)
            named = {entity[:2] + (entity[5],) for entity in entities(before)}
            began = before["steps"]["last"]
            pace, found, states = [], None, collections.Counter()
            clock, last = time.monotonic(), began
            healthy_s = None
            if inject:
                first, since = before["steps"]["last"], time.monotonic()
                after = run.reached(first + 20)
                healthy_s = (time.monotonic() - since) / (after["steps"]["last"] - first)
                began = after["steps"]["last"]
            clock, last = time.monotonic(), began
            with inject(run, culprit) if inject else contextlib.nullcontext():
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    report = run.report()
                    states[report["state"]] += 1
                    for entity in entities(report):
                        if inject and entity[:2] == ("rank", (str(culprit),)) and entity[4] >= began - 15:
                            if found is None and entity[3] == "open":
                                found = {"steps": report["steps"]["last"] - began, "cause": entity[2],
                                         "since": entity[4] - began, "text": entity[5]}
                            elif found is not None:
                                found["cause"] = entity[2]
                        else:
                            named.add(entity[:2] + (entity[5],))
                    time.sleep(0.2)
                pace.append((time.monotonic() - clock) / max(1, report["steps"]["last"] - last))
            result = {"way": way, "fault": fault, "ranks": ranks, "rank": culprit if inject else None, "found": found,
                      "expected": cause, "wrong": sorted({text for _, _, text in named}), "step_s": round(pace[0], 4),
                      "healthy_s": healthy_s and round(healthy_s, 4), "steps": report["steps"]["last"], "state": report["state"],
                      "states": states, "notes": report["notes"],
                      "coverage": [rank["ratio"] for rank in report.get("coverage", [])]}
            run.finish()
            if keep:
                run.proxy.terminate()
                shutil.copytree(run.proxy.task_dir, keep)
            return result
        finally:
            run.close()


def interval(hits, trials):
    """Clopper-Pearson, 95 %."""
    def tail(p, low, high):
        return sum(math.comb(trials, k) * p**k * (1 - p)**(trials - k) for k in range(low, high + 1))

    def solve(below):
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if below(middle) else (low, middle)
        return low

    low = 0.0 if hits == 0 else solve(lambda p: tail(p, hits, trials) < 0.025)
    high = 1.0 if hits == trials else solve(lambda p: tail(p, 0, hits) > 0.025)
    return low, high


def rate(hits, trials):
    if trials == 0:
        return "none"
    low, high = interval(hits, trials)
    return f"{100 * hits / trials:.1f} % ({hits}/{trials}; {100 * low:.1f}–{100 * high:.1f})"


def is_visible(result):
    return result["step_s"] >= (1 + VISIBLE) * result["healthy_s"]


def table(results):
    """As Markdown."""
    lines = ["| way | fault | runs | faults that cost ≥ 10 % | named | with the cause | steps to name, median (most) | others named "
             "| said ok | said unknown |", "|---|---|---|---|---|---|---|---|---|---|"]
    keys = sorted({(r["way"], r["fault"]) for r in results})
    for way, fault in keys:
        rows = [r for r in results if (r["way"], r["fault"]) == (way, fault)]
        seen = [r for r in rows if fault != "none" and is_visible(r)]
        found = [r for r in seen if r["found"]]
        steps = [r["found"]["steps"] for r in found]
        lines.append(f"| {way} | {fault} | {len(rows)} | {len(seen)} | {len(found)} "
                     f"| {sum(r['found']['cause'] == r['expected'] for r in found)} "
                     f"| {f'{statistics.median(steps):.0f} ({max(steps)})' if steps else ''} "
                     f"| {sum(len(r['wrong']) for r in rows)} "
                     f"| {sum(r['state'] == 'ok' for r in rows)} | {sum(r['state'] == 'unknown' for r in rows)} |")
    healthy = [r for r in results if r["fault"] == "none"]
    faulty = [r for r in results if r["fault"] != "none" and r["way"] in MARKED and is_visible(r)]
    found = [r for r in faulty if r["found"]]
    wrong = sum(len(r["wrong"]) for r in results)
    lines += ["", f"healthy runs in which somebody was named: {rate(sum(bool(r['wrong']) for r in healthy), len(healthy))}",
              f"precision: {rate(len(found), len(found) + wrong)}", f"recall: {rate(len(found), len(faulty))}",
              f"cause: {rate(sum(r['found']['cause'] == r['expected'] for r in found), len(found))}",
              "ok although a wait is not marked: "
              + rate(sum(r["state"] == "ok" for r in results if r["way"] in UNMARKED),
                     sum(r["way"] in UNMARKED for r in results))]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default=",".join(MARKED + UNMARKED))
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--ranks", default="2,3,4", help="one of them for each run")
    parser.add_argument("--runs", type=int, default=1, help="of each way and fault")
    parser.add_argument("--seconds", type=float, default=25, help="to watch a fault, or a healthy job")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--keep", help="folder for the mark files of each run")
    parser.add_argument("--out", help="one line of JSON a run, appended")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    print(f"seed {arguments.seed}", file=sys.stderr)
    sizes = [int(size) for size in arguments.ranks.split(",")]
    plan = [(way, fault) for way in arguments.ways.split(",") for fault in arguments.faults.split(",")] * arguments.runs
    rng.shuffle(plan)
    results = []
    for number, (way, fault) in enumerate(plan):
        keep = arguments.keep and os.path.join(arguments.keep, f"{arguments.seed}-{number}-{way}-{fault}")
        result = measure(way, fault, rng.choice(sizes), arguments.seconds, rng, keep)
        results.append(result)
        print(f"{number + 1}/{len(plan)} {json.dumps(result)}", file=sys.stderr, flush=True)
        if arguments.out:
            with open(arguments.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
