"""Real PyTorch jobs on this machine under TaskD, and what can be done to one of their ranks from outside: what real_faults.py
and real_traces.py share. Needs PyTorch, and root for cgroups, a swap file and network namespaces."""
import argparse
import collections
import contextlib
import errno
import glob
import json
import os
import random
import shlex
import signal
import socket
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
CHECKPOINT_STEPS = 20  # as job.py has it


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
        """All ranks end before the same step; a second call changes nothing."""
        if self.stop_at >= 0:
            return
        self.stop_at = max(self.next.values(), default=0) + 5

    def is_over(self):
        """All ranks have been told that there is no further step."""
        return 0 <= self.stop_at <= min(self.next.values(), default=-1)

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
# the throttling of a quota are. Files do not tell that a rank waited for a CPU: there it computes for longer.
FAULTS = {"none": (None, ()), "quota": (quota, ("host", "compute", "gc")),
          "stops": (bursts(0.015, 0.015), ("compute", "gc")),
          "neighbour": (neighbour, ("host", "compute")), "memory": (memory, ("compute", "memory")),
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
    """One job under TaskD. For `link` each rank is on a node of its own; for `memory` the `culprit` is in a group of its own.
    `more` is of the ranks' environment."""

    def __init__(self, folder, way, ranks, fault, culprit, python, **more):
        self.folder = folder
        self.python = python
        self.common = more
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
        self.common |= {
            "MINDX_TASK_ID": harness.TASK, "WORLD_SIZE": ranks, "MASTER_ADDR": address, "MASTER_PORT": harness.free_port(),
            "GLOO_SOCKET_IFNAME": device, "USE_LIBUV": 0, "OMP_NUM_THREADS": 1, "WAY": way, "STORAGE": self.storage.path,
            "FOLDER": self.folder, "TASKD_TORCH": 1, "PYTHONPATH": f"{FOLDER}:{harness.PYTHON_PACKAGE}", "PYTHONDONTWRITEBYTECODE": 1,
            "LD_PRELOAD": os.path.join(harness.PYTHON_PACKAGE, "taskd", "python", "cython_api", "libs", "libtaskd.so")}
        if fault in ("imbalance", "ragged"):
            self.common["LOAD"] = fault
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
            process.wait()
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
            assert process.wait(timeout_s=60) == 0, process.log()[-3000:]

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


def parser(description, ways, faults, seconds):
    """Reads what run_all and recorded want."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--ways", default=",".join(ways))
    result.add_argument("--faults", default=",".join(faults))
    result.add_argument("--ranks", default="2,3,4", help="one of them for each run")
    result.add_argument("--runs", type=int, default=1, help="of each way and fault")
    result.add_argument("--seconds", type=float, default=seconds, help="to watch a fault, or a healthy job")
    result.add_argument("--restless", type=int, default=0, help="so many busy processes beside each run")
    result.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    result.add_argument("--python", type=shlex.split, default=[harness.PYTHON],
                        help="command that runs the ranks; tests/distros/torch_ways.sh gives that of another root filesystem")
    result.add_argument("--keep", help="folder for the files of each run")
    result.add_argument("--out", help="one line of JSON a run, appended")
    result.add_argument("--of", nargs="+", help="no runs, but the table of those in these files of --out")
    result.add_argument("--again", help="with --of: as this build judges their files in this folder of --keep")
    return result


def recorded(arguments, judge_again):
    """The runs of --of; with --again as judge_again(run, folder of its files) has them now."""
    results = [json.loads(line) for path in arguments.of for line in get(path).splitlines()]
    if not arguments.again:
        return results
    return [judge_again(result, os.path.join(arguments.again, result["run"])) for result in results]


def run_all(arguments, prefix, measure, summary):
    """Each way with each fault, in any order: what measure(way, fault, ranks, rng, folder to keep its files in) returns, with the
    run's name, which begins with `prefix`. summary(result): the line about it."""
    rng = random.Random(arguments.seed)
    print(f"seed {arguments.seed}", file=sys.stderr)
    sizes = [int(size) for size in arguments.ranks.split(",")]
    plan = [(way, fault) for way in arguments.ways.split(",") for fault in arguments.faults.split(",")] * arguments.runs
    rng.shuffle(plan)
    if arguments.keep and glob.glob(os.path.join(glob.escape(arguments.keep), f"{prefix}{arguments.seed}-*")):
        sys.exit(f"--keep: {arguments.keep} has runs of --seed {arguments.seed}; another folder, or another --seed")
    results = []
    with contextlib.ExitStack() as stack:
        if any(fault == "memory" for _, fault in plan):
            stack.enter_context(swap_file())
        stack.enter_context(restless(arguments.restless))
        for number, (way, fault) in enumerate(plan):
            name = f"{prefix}{arguments.seed}-{number}-{way}-{fault}"
            keep = arguments.keep and os.path.join(arguments.keep, name)
            results.append({"run": name, **measure(way, fault, rng.choice(sizes), rng, keep)})
            print(f"{number + 1}/{len(plan)} {summary(results[-1])}", file=sys.stderr, flush=True)
            if arguments.out:
                with open(arguments.out, "a", encoding="utf-8") as file:
                    file.write(json.dumps(results[-1]) + "\n")
    return results
