#!/usr/bin/python3
"""Real PyTorch jobs on this machine, with real faults that are brought upon one rank from outside, and without.

real_faults.py [--ways own,ddp] [--faults none,quota,...] [--ranks 2,3,4] [--runs 1] [--seconds 25] [--out FILE]
               [--restless N] [--python COMMAND]

Prints who was named, of how many faults that had an effect, with which cause, and after how many steps; intervals are
Clopper-Pearson's, 95 %. A fault has one if it costs at least 10 % of the step, or, where it is meant to be small, if the
rank's own time has grown by 8 % against its peers': time outside of communication, read from the mark files by this
script. Needs PyTorch, and root for cgroups, a swap file and network namespaces.
"""
import argparse
import collections
import contextlib
import errno
import glob
import itertools
import json
import math
import os
import random
import shlex
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
import namespaces  # noqa: E402

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "real")
# Ways in which all waits are marked, and ways in which they are not: there nobody may be called healthy.
MARKED = ("own", "ddp", "ddp-accumulate", "ddp-zero", "ddp-hook", "own-ragged", "ddp-ragged")
UNMARKED = ("ddp-unmarked", "ddp-unmarked-logged", "alone")
WARM_STEPS = 40
VISIBLE = 0.10  # of the step
FELT = 0.08     # of the rank's own time against its peers'
DETECTORS = os.path.join(harness.BUILD, "bench", "baseline_claims")


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
        self.accepting = threading.Thread(target=self._accept, daemon=True)
        self.accepting.start()

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
        self.listener.shutdown(socket.SHUT_RDWR)  # else the thread stays in accept(), and may go on with the next one's descriptor
        self.accepting.join()
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


def bursts(running_s, stopped_s):
    """Running and stopped by turns."""
    @contextlib.contextmanager
    def inject(run, rank):
        over = threading.Event()

        def burst():
            while not over.wait(running_s):
                os.kill(run.pid(rank), signal.SIGSTOP)
                time.sleep(stopped_s)
                os.kill(run.pid(rank), signal.SIGCONT)

        thread = threading.Thread(target=burst)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
    return inject


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
def memory(run, rank):
    """224 MiB of some 390, by cgroup: what it needs comes back from the swap file."""
    limit = os.path.join(run.memory_group, "memory.limit_in_bytes")
    for mib in range(320, 220, -4):
        harness.wait_until(lambda mib=mib: can_put(limit, str(mib << 20)), f"{mib} MiB are enough for now")
    yield
    put(limit, "-1")


@contextlib.contextmanager
def link(run, rank):
    """Its node sends and gets 20 Mbit/s."""
    limit = ["root", "tbf", "rate", "20mbit", "burst", "16k", "latency", "400ms"]
    devices = [(run.rig.fabric, f"port{rank}"), (run.rig.nodes[rank].namespace, "eth0")]
    for namespace, device in devices:
        subprocess.run(["tc", "-n", namespace, "qdisc", "add", "dev", device, *limit], check=True)
    yield
    for namespace, device in devices:
        subprocess.run(["tc", "-n", namespace, "qdisc", "del", "dev", device, "root"], check=True)


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


@contextlib.contextmanager
def optimizer(run, rank):
    """Its optimizer takes 16 ms longer (sitecustomize.py)."""
    path = os.path.join(run.folder, f"slow-optimizer-{rank}")
    put(path, "")
    yield
    os.unlink(path)


@contextlib.contextmanager
def restless(processes):
    """So many busy processes run beside the job."""
    busy = [subprocess.Popen([harness.PYTHON, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


# With the causes that are right. "gc" says: garbage collection or another stop of its process, which bursts of SIGSTOP and
# the throttling of a quota are.
FAULTS = {"none": (None, ()), "quota": (quota, ("compute", "gc")), "stops": (bursts(0.015, 0.015), ("compute", "gc")),
          "neighbour": (neighbour, ("compute",)), "memory": (memory, ("compute", "memory")),
          "loader": (loader, ("dataloader",)), "checkpoint": (checkpoint, ("checkpoint",)),
          "gc": (collections_of_garbage, ("gc",)), "link": (link, ("network", "fabric")),
          "slow8": (bursts(0.004 / 0.08, 0.004), ("compute", "gc")), "slow15": (bursts(0.004 / 0.15, 0.004), ("compute", "gc")),
          "slow25": (bursts(0.004 / 0.25, 0.004), ("compute", "gc")), "slow40": (bursts(0.004 / 0.4, 0.004), ("compute", "gc")),
          "optimizer": (optimizer, ("memory", "compute")),
          # The rank is slow, then the job goes on without it: nobody is left to be named.
          "shrink": (bursts(0.015, 0.015), ("compute", "gc")),
          # Work that is not the same: rank 0 always has 1.6 times as much; or each rank and step has its own.
          "imbalance": (None, ()), "ragged": (None, ())}
HEALTHY = ("none", "imbalance", "ragged")
BY_OWN_TIME = ("slow8", "slow15", "slow25", "slow40", "optimizer")


def get(path):
    with open(path, encoding="ascii") as file:
        return file.read()


def put(path, text):
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def can_put(path, text):
    try:
        put(path, text)
    except OSError as error:
        if error.errno != errno.EBUSY:  # it has more, and all of it in use at this moment
            raise
        return False
    return True


class Run:
    """One job under TaskD. For `link` each rank is on a node of its own; for `memory` the `culprit` is in a group of its own."""

    def __init__(self, folder, way, ranks, fault, culprit, python):
        self.folder = folder
        self.python = python
        self.stage = harness.Stage(folder)
        self.storage = Storage(folder)
        self.rig = self.memory_group = None
        self.ranks = []
        try:
            self._start(way, ranks, fault, culprit)
        except BaseException:
            self.close()
            raise

    def _start(self, way, ranks, fault, culprit):
        if fault == "link":
            self.rig = namespaces.Rig(self.folder, [f"worker-{rank}" for rank in range(ranks)])
        elif fault == "memory":
            self.memory_group = f"/sys/fs/cgroup/memory/taskd-real-faults-{os.getpid()}"
            os.mkdir(self.memory_group)
        self.manager = self.stage.manager()
        self.manager.all_on()
        nodes = ranks if self.rig else 1
        proxies = [self.stage.proxy(self.manager, node=node, profiling_dir=os.path.join(self.folder, "profiling"))
                   for node in range(nodes)]
        self.task_dir = proxies[0].task_dir
        self.proxies = proxies
        address, device = (self.rig.nodes[0].address, "eth0") if self.rig else ("127.0.0.1", "lo")
        common = {
            "MINDX_TASK_ID": harness.TASK, "WORLD_SIZE": ranks, "MASTER_ADDR": address, "MASTER_PORT": harness.free_port(),
            "GLOO_SOCKET_IFNAME": device, "USE_LIBUV": 0, "OMP_NUM_THREADS": 1, "WAY": way, "STORAGE": self.storage.path,
            "FOLDER": self.folder, "TASKD_TORCH": 1, "PYTHONPATH": f"{FOLDER}:{harness.PYTHON_PACKAGE}", "PYTHONDONTWRITEBYTECODE": 1,
            "LD_PRELOAD": os.path.join(harness.PYTHON_PACKAGE, "taskd", "python", "cython_api", "libs", "libtaskd.so")}
        if fault in ("imbalance", "ragged"):
            common["LOAD"] = fault
        self.common = common
        self._launch(ranks, culprit)

    def _launch(self, ranks, culprit):
        for rank in range(ranks):
            proxy = self.proxies[rank % len(self.proxies)]
            environment = {**self.common, "RANK": rank, "LOCAL_RANK": 0 if self.rig else rank, "TASKD_SOCKET": proxy.socket,
                           "TASKD_PROFILING_DIR": proxy.profiling_dir}
            script = 'exec "$@"'
            if self.memory_group and rank == culprit:
                script = f"echo $$ >{self.memory_group}/cgroup.procs; {script}"
            command = ["env", *(f"{name}={value}" for name, value in environment.items()), "sh", "-ec", script, "sh",
                       *self.python, os.path.join(FOLDER, "job.py")]
            if self.rig:
                command = self.rig.command(self.rig.nodes[rank], command)
            process = harness.Process(f"rank{rank}", command, harness.clean_environment(), self.folder)
            self.stage.processes.append(process)
            self.ranks.append(process)

    def shrink(self):
        """All ranks are killed, and the job is started again without the last one."""
        for process in self.ranks:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(60)
        ranks, self.ranks = len(self.ranks) - 1, []
        self.storage.next.clear()
        self.common |= {"WORLD_SIZE": ranks, "MASTER_PORT": harness.free_port()}
        self._launch(ranks, None)

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
        if self.rig:
            self.rig.close()
        if self.memory_group:
            os.rmdir(self.memory_group)


def entities(report, fault):
    """Who has been named so far. The whole job is nobody, but where all ranks are one group that is what a slow link slows."""
    return [verdict for verdict in report["verdicts"] if verdict["scope"] != "job" or
            (fault == "link" and verdict["cause"] in FAULTS[fault][1])]


def names(verdict, fault, culprit):
    """The rank; of a link its two ends or, where marks cannot place it better, its group."""
    if verdict["scope"] == "job":
        return True
    if verdict["scope"] == "link":
        return fault == "link" and all(culprit in ends for ends in verdict["ids"])
    return verdict["ids"] == [culprit] or (fault == "link" and verdict["scope"] == "group" and culprit in verdict["ids"])


def measure(way, fault, ranks, seconds, rng, keep=None, python=(harness.PYTHON,)):
    """One run; a dictionary of what came of it. Its mark files go to the folder `keep`; `python` runs the ranks."""
    inject, causes = FAULTS[fault]
    culprit = None if not inject else ranks - 1 if fault == "shrink" else rng.randrange(ranks)
    with tempfile.TemporaryDirectory(prefix="taskd-real-") as folder:
        run = Run(folder, way, ranks, fault, culprit, python)
        try:
            before = run.reached(WARM_STEPS)
            wrong = {(v["scope"], str(v["ids"])): v["text"] for v in entities(before, fault)}
            began, found, states = before["steps"]["last"], None, collections.Counter()
            healthy_s = None
            if inject:
                since = time.monotonic()
                after = run.reached(began + 20)
                healthy_s = (time.monotonic() - since) / (after["steps"]["last"] - began)
                began = after["steps"]["last"]
            clock = time.monotonic()
            with inject(run, culprit) if inject else contextlib.nullcontext():
                while time.monotonic() < clock + seconds:
                    report = run.report()
                    states[report["state"]] += 1
                    right = []
                    for verdict in entities(report, fault):
                        if inject and names(verdict, fault, culprit) and verdict["since_step"] >= began - 15:
                            right.append(verdict)
                        else:
                            wrong[verdict["scope"], str(verdict["ids"])] = verdict["text"]
                    if right:  # open ones first, by cost
                        found = found or {"steps": report["steps"]["last"] - began, "text": right[0]["text"]}
                        found |= {"cause": right[0]["cause"], "since": right[0]["since_step"] - began}
                    time.sleep(0.2)
                step_s = (time.monotonic() - clock) / max(1, report["steps"]["last"] - began)
            if fault == "shrink":
                wrong |= after_shrinking(run, culprit, seconds)
            result = {"way": way, "fault": fault, "ranks": ranks, "rank": culprit, "began": began, "found": found,
                      "cause_right": bool(found) and found["cause"] in causes, "wrong": sorted(wrong.values()),
                      "step_s": round(step_s, 4), "healthy_s": healthy_s and round(healthy_s, 4),
                      "steps": report["steps"]["last"], "state": report["state"], "states": states, "notes": report["notes"],
                      "coverage": [rank["ratio"] for rank in report.get("coverage", [])]}
            run.finish()
            for proxy in run.proxies:
                proxy.terminate()
            result["baselines"] = baselines(run.task_dir, began, culprit)
            if fault in BY_OWN_TIME:
                result["own_effect"] = own_effect(run.task_dir, culprit, began, result["steps"])
            if keep:
                shutil.copytree(run.task_dir, keep)
            return result
        finally:
            run.close()


def after_shrinking(run, culprit, seconds):
    """What is said of anybody when the job has gone on without the culprit for so long."""
    run.shrink()
    over = time.monotonic() + seconds
    harness.wait_until(lambda: run.report()["ranks"] == culprit or time.monotonic() > over, "the smaller job is judged", seconds + 60, 0.5)
    while time.monotonic() < over:
        run.report()
        time.sleep(1)
    return {(v["scope"], str(v["ids"])): v["text"] for v in run.report()["verdicts"] if v["state"] == "open" and v["scope"] != "job"}


def own_times(folder):
    """By rank and step: seconds outside of communication, from the end of the step before."""
    times = {}
    for path in sorted(glob.glob(os.path.join(folder, "[0-9]*", "[0-9]*"))):
        ranges, operations, steps = {}, [], {}
        with open(path, encoding="utf-8") as file:
            for line in file:
                mark = json.loads(line)
                if mark["Flag"] in (2, 16):
                    ranges[mark["Id"]] = mark
                elif mark["Id"] in ranges:
                    start = ranges.pop(mark["Id"])
                    if start["Domain"] == "communication":
                        operations.append((start["Timestamp"], mark["Timestamp"]))
                    elif start["Name"].startswith("step "):
                        steps[int(start["Name"][5:])] = mark["Timestamp"]
        operations.sort()
        own = times.setdefault(int(os.path.basename(os.path.dirname(path))), {})
        for step in sorted(steps):
            if step - 1 not in steps:
                continue
            begin, end = steps[step - 1], steps[step]
            covered, until = 0, begin
            for first, last in operations:
                if last > until and first < end:
                    covered += min(last, end) - max(first, until)
                    until = min(last, end)
            own[step] = (end - begin - covered) / 1e9
    return times


def own_effect(folder, culprit, began, last):
    """By how much the culprit's own time has grown against its peers' since `began`, in the mean."""
    times = own_times(folder)

    def ratio(first, until):
        means = {rank: statistics.fmean(own for step, own in steps.items() if first <= step < until) for rank, steps in times.items()}
        return means[culprit] / statistics.fmean(own for rank, own in means.items() if rank != culprit)
    return round(ratio(began + 2, last) / ratio(10, began - 1) - 1, 4)


def baselines(folder, began, culprit):
    """What the other detectors say of the same marks, counted as TaskD's verdicts are."""
    done = subprocess.run([DETECTORS, folder], capture_output=True, text=True, check=True)
    result = {}
    for name, claims in json.loads(done.stdout).items():
        right = [claim for claim in claims if claim["ranks"] == [culprit] and claim["since_step"] >= began - 15]
        wrong = {str(claim["ranks"]) for claim in claims if claim not in right}
        result[name] = {"steps": right[0]["opened"] - began if right else None, "wrong": len(wrong)}
    return result


def judge_again(result, folder):
    """The same run with what this build's `taskd diagnose` says of its marks."""
    def judge(before):
        with tempfile.TemporaryDirectory(prefix="taskd-real-") as part:
            marks = marks_before(folder, before, os.path.join(part, "marks"))
            done = subprocess.run([harness.TASKD, "diagnose", "--from", marks, "--json"], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def rightly(report):
        return [v for v in entities(report, result["fault"]) if result["rank"] is not None and
                names(v, result["fault"], result["rank"]) and v["since_step"] >= result["began"] - 15]
    report = judge(result["steps"])  # without what is done to end the run
    found = rightly(report)
    wrong = [v["text"] for v in entities(report, result["fault"]) if v not in found]
    result = {**result, "state": report["state"], "found": None, "cause_right": False, "wrong": sorted(wrong)}
    if found:
        # Verdicts that have been cleared stay in the report: what is named once is named from then on.
        low, high = result["began"], result["steps"]
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if rightly(judge(middle)) else (middle, high)
        result["found"] = {"steps": high - result["began"], "cause": found[0]["cause"],
                           "since": found[0]["since_step"] - result["began"], "text": found[0]["text"]}
        result["cause_right"] = found[0]["cause"] in FAULTS[result["fault"]][1]
    return result


def marks_before(folder, step, copy):
    """The marks of each rank until that step of its begins."""
    shutil.copytree(folder, copy)
    for path in glob.glob(os.path.join(copy, "[0-9]*", "[0-9]*")):
        with open(path, encoding="utf-8") as file:
            lines = list(itertools.takewhile(lambda line: f'"Name":"step {step}"' not in line, file))
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(lines)
    return copy


@contextlib.contextmanager
def swap_file():
    """On a disk, 1 GB."""
    with tempfile.NamedTemporaryFile(prefix="taskd-swap-", dir="/var/tmp") as file:
        subprocess.run(["dd", "if=/dev/zero", f"of={file.name}", "bs=1M", "count=1024", "conv=fsync", "status=none"], check=True)
        subprocess.run(["mkswap", "-q", file.name], check=True)
        subprocess.run(["swapon", file.name], check=True)
        try:
            yield
        finally:
            subprocess.run(["swapoff", file.name], check=True)


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
    if result["fault"] in HEALTHY:
        return False
    if result.get("own_effect") is not None:
        return result["own_effect"] >= FELT
    return result["step_s"] >= (1 + VISIBLE) * result["healthy_s"]


def spread(values):
    return f"{statistics.median(values):.0f} ({max(values)})" if values else ""


def table(results):
    """As Markdown."""
    lines = ["| ways | fault | runs | with effect | named | with the cause | steps to name, median (most) | others named "
             "| said ok | said unknown |", "|---|---|---|---|---|---|---|---|---|---|"]
    ways = {way: "marked" for way in MARKED}
    for way, fault in sorted({(ways.get(r["way"], r["way"]), r["fault"]) for r in results}):
        rows = [r for r in results if (ways.get(r["way"], r["way"]), r["fault"]) == (way, fault)]
        seen = [r for r in rows if is_visible(r)]
        found = [r for r in seen if r["found"]]
        lines.append(f"| {way} | {fault} | {len(rows)} | {len(seen)} | {len(found)} | {sum(r['cause_right'] for r in found)} "
                     f"| {spread([r['found']['steps'] for r in found])} | {sum(len(r['wrong']) for r in rows)} "
                     f"| {sum(r['state'] == 'ok' for r in rows)} | {sum(r['state'] == 'unknown' for r in rows)} |")
    return "\n".join([*lines, "", *detectors(results), "", *rates(results)])


def detectors(results):
    """The lines of a table: TaskD beside the other detectors, on jobs whose waits are marked."""
    lines = ["| detector | healthy runs in which it names somebody | precision | recall | steps to name, median (most) |",
             "|---|---|---|---|---|"]
    results = [r for r in results if r["way"] in MARKED]
    healthy = [r for r in results if r["fault"] in HEALTHY]
    visible = [r for r in results if is_visible(r)]
    for name in ["TaskD", *(results[0]["baselines"] if results else ())]:
        if name == "TaskD":
            steps = [r["found"]["steps"] for r in visible if r["found"]]
            wrong = {id(r): len(r["wrong"]) for r in results}
        else:
            steps = [r["baselines"][name]["steps"] for r in visible if r["baselines"][name]["steps"] is not None]
            wrong = {id(r): r["baselines"][name]["wrong"] for r in results}
        lines.append(f"| {name} | {rate(sum(wrong[id(r)] > 0 for r in healthy), len(healthy))} "
                     f"| {rate(len(steps), len(steps) + sum(wrong.values()))} | {rate(len(steps), len(visible))} | {spread(steps)} |")
    return lines


def rates(results):
    healthy = [r for r in results if r["fault"] in HEALTHY]
    found = [r for r in results if is_visible(r) and r["found"]]
    unmarked = [r for r in results if r["way"] in UNMARKED]
    return [f"healthy runs in which somebody was named: {rate(sum(bool(r['wrong']) for r in healthy), len(healthy))}",
            f"cause: {rate(sum(r['cause_right'] for r in found), len(found))}",
            f"ok although a wait is not marked: {rate(sum(r['state'] == 'ok' for r in unmarked), len(unmarked))}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default=",".join(MARKED + UNMARKED))
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--ranks", default="2,3,4", help="one of them for each run")
    parser.add_argument("--runs", type=int, default=1, help="of each way and fault")
    parser.add_argument("--seconds", type=float, default=25, help="to watch a fault, or a healthy job")
    parser.add_argument("--restless", type=int, default=0, help="so many busy processes beside each run")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--python", type=shlex.split, default=[harness.PYTHON],
                        help="command that runs the ranks; tests/distros/torch_ways.sh gives that of another root filesystem")
    parser.add_argument("--keep", help="folder for the mark files of each run")
    parser.add_argument("--out", help="one line of JSON a run, appended")
    parser.add_argument("--of", nargs="+", help="no runs, but the table of those in these files of --out")
    parser.add_argument("--again", help="with --of: as this build judges their marks in this folder of --keep")
    arguments = parser.parse_args()
    if arguments.of:
        results = [json.loads(line) for path in arguments.of for line in get(path).splitlines()]
        if arguments.again:
            results = [judge_again(result, os.path.join(arguments.again, result["run"])) for result in results]
        print(table(results))
        return
    rng = random.Random(arguments.seed)
    print(f"seed {arguments.seed}", file=sys.stderr)
    sizes = [int(size) for size in arguments.ranks.split(",")]
    plan = [(way, fault) for way in arguments.ways.split(",") for fault in arguments.faults.split(",")] * arguments.runs
    rng.shuffle(plan)
    plan = [(f"{arguments.seed}-{number}-{way}-{fault}", way, fault) for number, (way, fault) in enumerate(plan)]
    for name, _, _ in plan:
        if arguments.keep and os.path.exists(os.path.join(arguments.keep, name)):
            parser.error(f"--keep: {os.path.join(arguments.keep, name)} is of a run before; another folder, or another --seed")
    with contextlib.ExitStack() as stack:
        if any(fault == "memory" for _, _, fault in plan):
            stack.enter_context(swap_file())
        stack.enter_context(restless(arguments.restless))
        print(table(run_all(plan, sizes, arguments, rng)))


def run_all(plan, sizes, arguments, rng):
    results = []
    for number, (name, way, fault) in enumerate(plan, 1):
        keep = arguments.keep and os.path.join(arguments.keep, name)
        result = {"run": name, **measure(way, fault, rng.choice(sizes), arguments.seconds, rng, keep, arguments.python)}
        results.append(result)
        print(f"{number}/{len(plan)} {json.dumps(result)}", file=sys.stderr, flush=True)
        if arguments.out:
            with open(arguments.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
    return results


if __name__ == "__main__":
    main()
